"""A mistake is said in one sentence, as early as it can be known."""

import re

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'discover-optim[torch]'")

from discover.torch import Discover, DiscoverMuon
from tests.torch.problem import NAMES, equal, loss_of, model, train


def test_a_step_without_a_cluster_is_refused_each_time():
    net = model()
    opt = Discover(net.parameters(), 0.01, NAMES)
    train(net, opt, range(2))
    loss_of(net, 0).backward()
    with pytest.raises(RuntimeError, match=r"no cluster was set since the last step: say `opt\.cluster = name`"):
        opt.step()


@pytest.mark.parametrize("wrong", ["quora", 0, None, 1.5, ["qa"]])
def test_an_unknown_cluster_is_refused_with_the_choices(wrong):
    opt = Discover(model().parameters(), 0.01, NAMES)
    if wrong is None:
        opt.cluster = None  # forgets it
        return
    with pytest.raises(ValueError, match=r"the clusters are 'nli', 'qa', 'news'"):
        opt.cluster = wrong
    with pytest.raises(ValueError, match=re.escape(f"there is no cluster {wrong!r}")):
        opt.collect(wrong)


def test_numbers_of_all_kinds_name_a_cluster():
    opt = Discover(model().parameters(), 0.01, 30)
    for number in (7, torch.tensor(7), torch.tensor([7])[0], np.int64(7)):
        opt.cluster = number
        assert opt.cluster == 7
        assert type(opt.cluster) is int
    for wrong in (True, 7.0, torch.tensor(7.0), torch.tensor([7, 7])):
        with pytest.raises(ValueError, match="there is no cluster"):
            opt.cluster = wrong
    with pytest.raises(ValueError, match=r"no cluster 30; the clusters are 0, 1, .*, 9, …, 29"):
        opt.cluster = 30


def test_the_clusters_cannot_be_set_in_place_of_the_cluster():
    opt = Discover(model().parameters(), 0.01, NAMES)
    with pytest.raises(AttributeError, match="clusters"):
        opt.clusters = "qa"
    assert opt.clusters == tuple(NAMES)


def test_cluster_and_groups_do_not_mix():
    net = model()
    opt = Discover(net.parameters(), 0.01, NAMES)
    with pytest.raises(RuntimeError, match="no gradients to collect"):
        opt.collect("qa")
    loss_of(net, 0).backward()
    opt.collect("qa")
    assert all(p.grad is None for p in net.parameters())
    loss_of(net, 0).backward()
    with pytest.raises(RuntimeError, match="gradients of no group"):
        opt.step()
    opt.cluster = "qa"
    with pytest.raises(RuntimeError, match="not both"):
        opt.step()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"clusters": 0}, "at least 1"),
        ({"clusters": []}, "counts must have a positive sum"),
        ({"clusters": ["a", "a"]}, "names of their own, got 'a', 'a'"),
        ({"clusters": [3, -1]}, "not negative, got -1.0 for cluster 1"),
        ({"beta": 1.5}, r"beta must be in \[0, 1\], got 1.5"),
        ({"nu": -0.1}, r"nu must be in \[0, 1\]"),
        ({"lr": -1.0}, "lr must be finite and at least 0, got -1.0"),
        ({"weight_decay": float("nan")}, "weight_decay must be finite"),
        ({"rate": "fast"}, "rate must be one of 'proportional', 'per_visit', got 'fast'"),
        ({"buffers": "disk"}, "buffers must be one of None, 'cpu', got 'disk'"),
        ({"ranks": "some"}, "ranks must be one of 'same', 'exchange', 'alone', got 'some'"),
        ({"damping": -1.0}, "damping must be None or at least 0, got -1.0"),
        ({"skip_nonfinite": "yes"}, "skip_nonfinite must be one of False, True, got 'yes'"),
        ({"damping": 0.1, "buffers": "cpu"}, "damping reads the buffers of all clusters"),
    ],
)
def test_a_wrong_argument_is_said_at_construction(options, message):
    with pytest.raises(ValueError, match=message):
        Discover(model().parameters(), **{"lr": 0.1, "clusters": NAMES, **options})


def test_clusters_that_are_no_clusters_are_refused():
    for wrong in ("nli", 1.5, None):
        with pytest.raises(TypeError, match="clusters must be a number, a list of names, a list of counts"):
            Discover(model().parameters(), 0.1, wrong)


@pytest.mark.parametrize(
    ("clusters", "error", "message"),
    [
        ({"qa", "nli"}, TypeError, "clusters must be a number, a list of names"),  # in what order?
        ({1: 5, "1": 3}, ValueError, "names of their own, got 1, '1'"),
        ({None: 5, "b": 3}, TypeError, "must be text or whole numbers, got None, 'b'"),
        ({"a": "many"}, ValueError, "counts must be a sequence of numbers"),
        (["a", 3], ValueError, "counts must be a sequence of numbers"),
        ([0, 1, 2], ValueError, r"look like the clusters' own numbers: say clusters=3, got \[0, 1, 2\]"),
        (range(2), ValueError, "say clusters=2"),
    ],
)
def test_names_that_cannot_be_told_apart_are_refused(clusters, error, message):
    with pytest.raises(error, match=message):
        Discover(model().parameters(), 0.1, clusters)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lr": "0.1"}, "lr must be a number, got '0.1'"),
        ({"lr": torch.ones(2)}, "lr must be a number, got tensor"),
        ({"beta": None}, "beta must be a number, got None"),
        ({"damping": True}, "damping must be a number, got True"),
        ({"eps": "1e-8"}, "eps must be a number, got '1e-8'"),
        ({"buffer_dtype": "bfloat16"}, "None or a dtype of real numbers like torch.bfloat16, got 'bfloat16'"),
        ({"buffer_dtype": torch.int8}, "buffer_dtype must be None or a dtype of real numbers .*, got torch.int8"),
        ({"matrix_dtype": "half"}, "matrix_dtype must be None or a dtype of real numbers"),
    ],
)
def test_an_argument_of_another_kind_is_said_at_construction(options, message):
    with pytest.raises(TypeError, match=message):
        DiscoverMuon(model().parameters(), **{"lr": 0.1, "clusters": NAMES, **options})


def test_a_parameter_that_is_there_twice_is_refused():
    """As tied weights are, in this list of parameters."""
    net = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3))
    net[1].weight = net[0].weight
    with pytest.warns(UserWarning, match="duplicate"), pytest.raises(ValueError, match="a parameter is there twice"):
        Discover(net.named_parameters(remove_duplicate=False), 0.1, 2)
    assert len(Discover(net.named_parameters(), 0.1, 2).param_groups[0]["params"]) == 3


def test_a_cluster_is_no_argument_of_a_step():
    net = model()
    opt = Discover(net.parameters(), 0.01, NAMES)
    loss_of(net, 0).backward()
    with pytest.raises(TypeError, match=r"step takes a closure or nothing, got 'qa': say `opt\.cluster = name` before"):
        opt.step("qa")


@pytest.mark.parametrize("first", ["the cluster", "backward"])
def test_gradients_of_several_clusters_that_would_count_as_one_are_noticed(first):
    """As with gradient accumulation in a trainer that draws each batch from another data set."""

    def batch(name):
        if first == "backward":
            loss_of(net, 0).backward()
        opt.cluster = name
        if first == "the cluster":
            loss_of(net, 0).backward()

    net = model()
    opt = Discover(net.parameters(), 0.01, NAMES)
    for name in ("qa", "qa"):  # one cluster, accumulated
        batch(name)
    batch("nli")
    with pytest.warns(UserWarning, match=r"gradients of 'qa' count as 'nli': no step was taken .* `opt\.collect"):
        opt.step()
    opt.zero_grad()
    for name in ("qa", "nli", "news"):  # steps that a GradScaler skips
        batch(name)
        opt.zero_grad()
    batch("qa")
    opt.step()


def test_they_are_noticed_where_a_closure_clears_the_last_steps_gradients():
    """Lightning's order: the cluster, zero_grad unless it accumulates, backward."""

    def batch(name, accumulated=False):
        opt.cluster = name
        if not accumulated:
            opt.zero_grad()
        loss_of(net, 0).backward()

    net = model()
    opt = Discover(net.parameters(), 0.01, NAMES)
    for _ in range(2):
        batch("qa")
        batch("nli", accumulated=True)
        with pytest.warns(UserWarning, match="gradients of 'qa' count as 'nli'"):
            opt.step()
        for name in ("news", "qa"):  # a step that a GradScaler skips, and one that is taken
            batch(name)
        opt.step()


@pytest.mark.parametrize("size", [0, -1, float("nan"), float("inf"), "8", None])
def test_a_group_has_a_size(size):
    net = model()
    opt = Discover(net.parameters(), 0.01, NAMES)
    loss_of(net, 0).backward()
    with pytest.raises((TypeError, ValueError), match=f"size must be .*, got {size!r}"):
        opt.collect("qa", size)


def test_a_group_that_is_wrong_is_not_added():
    net = model()
    opt = Discover(net[0].parameters(), 0.1, NAMES)
    for group, message in (({"beta": 2.0}, "beta must be"), ({"clusters": ("a",)}, "of the whole optimizer")):
        with pytest.raises(ValueError, match=message):
            opt.add_param_group({"params": net[3].parameters(), **group})
    assert len(opt.param_groups) == 1
    opt.add_param_group({"params": net[3].parameters(), "clusters": list(NAMES)})  # the same ones
    assert opt.param_groups[1]["clusters"] == opt.clusters


def test_complex_parameters_and_sparse_gradients_are_refused():
    with pytest.raises(ValueError, match="complex parameters are not supported"):
        Discover([torch.nn.Parameter(torch.ones(2, dtype=torch.complex64))], 0.1, 2)
    table = torch.nn.Embedding(5, 2, sparse=True)
    opt = Discover(table.parameters(), 0.1, 2)
    table(torch.tensor([1])).sum().backward()
    opt.cluster = 0
    with pytest.raises(RuntimeError, match="sparse gradients are not supported"):
        opt.step()


@pytest.mark.parametrize("ranks", ["exchange", "alone"])
def test_a_single_process_may_say_what_ranks_would_hold(ranks):
    ends = []
    for said in ("same", ranks):
        net = model()
        ends.append(train(net, Discover(net.parameters(), 0.01, NAMES, ranks=said), range(3)))
    assert equal(*ends)
