"""Any shapes, clusters and visits, against plain NumPy; and what a step may touch."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'discover-optim[torch]'")

from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from discover.clusters import Clusters
from discover.torch import damping
from discover.torch.damping import CHUNK, damp
from tests.torch.problem import OURS, assert_equal_paths, draw, give, parameters, torch_path
from tests.torch.reference import Parameter

SHAPES = st.lists(st.lists(st.integers(1, 4), min_size=0, max_size=4).map(tuple), min_size=1, max_size=4)
COUNTS = (500, 300, 150, 50)


@settings(max_examples=100)
@given(
    kind=st.sampled_from(list(OURS)),
    shapes=SHAPES,
    counts=st.lists(st.integers(1, 50), min_size=1, max_size=5),
    beta=st.floats(0, 1),
    nu=st.floats(0, 1),
    damping=st.sampled_from([None, 0.1, 3.0, float("inf")]),
    seed=st.integers(0, 2**16),
)
def test_any_shapes_clusters_and_visits(kind, shapes, counts, beta, nu, damping, seed):
    options = {"lr": 0.01, "beta": beta, "nu": nu, "damping": damping, "weight_decay": 0.1}
    params, batches = draw(seed, 6, len(counts), {str(number): shape for number, shape in enumerate(shapes)})
    slow = {name: Parameter(p, Clusters.from_counts(counts).probs, kind, **options) for name, p in params.items()}
    expected = []
    for ids, sizes, grads in batches:
        for name, one in slow.items():
            one.step(ids, sizes, [g[name] for g in grads])
        expected.append({name: one.theta for name, one in slow.items()})
    tensors = parameters(params)
    assert_equal_paths(torch_path(OURS[kind](tensors.items(), clusters=counts, **options), tensors, batches), expected)


@pytest.mark.parametrize("numbers", [CHUNK - 1, CHUNK, 2 * CHUNK + 3])
def test_damping_is_the_same_for_parameters_of_many_numbers(numbers):
    params, batches = draw(7, 4, len(COUNTS), {"long": (numbers,)})
    options = {"lr": 0.01, "beta": 0.9, "nu": 0.5, "damping": 0.1, "weight_decay": 0.0}
    slow = Parameter(params["long"], Clusters.from_counts(COUNTS).probs, "discover", **options)
    expected = []
    for ids, sizes, grads in batches:
        slow.step(ids, sizes, [g["long"] for g in grads])
        expected.append({"long": slow.theta})
    tensors = parameters(params)
    opt = OURS["discover"](tensors.items(), clusters=COUNTS, **options)
    assert_equal_paths(torch_path(opt, tensors, batches), expected)


@pytest.mark.parametrize("apart", [1.0, 1e-2, 1e-4])
def test_damping_in_single_precision_where_clusters_hardly_differ(apart):
    """(Σ c_n) ḡ is then far larger than what is left of Σ c_n g_n − (Σ c_n) ḡ."""
    torch.manual_seed(0)
    rows = torch.randn(5000) + apart * torch.randn(10, 5000)
    ends = []
    for dtype in (torch.float32, torch.float64):
        g = rows.to(dtype)
        d = g[0].clone()
        damp([d], [g.mean(0)], [list(g)], torch.full((10,), 0.1, dtype=dtype), [None], 0.1)
        ends.append(d.double())
    assert (ends[0] - ends[1]).norm() < 3e-5 * ends[1].norm()
    assert (ends[1] - rows[0].double()).norm() > 1e-5 * apart * ends[1].norm()


def test_damping_copies_no_more_of_a_large_parameter_than_it_says(monkeypatch):
    monkeypatch.setattr(damping, "HELD", 2**19)
    large = [torch.empty(300, 1000, device="meta") for _ in range(6)]
    made = []

    class Sizes(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            made.append(out.numel() if func.__name__.startswith("stack") else 0)
            return out

    with Sizes():
        damp(large[:1], large[1:2], [large[2:]], torch.ones(4, device="meta"), [torch.ones(9, dtype=int)], 0.1)
    assert 2**18 < max(made) <= 2**19 < 5 * 300 * 1000


@pytest.mark.parametrize("kind", OURS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_the_mean_is_that_of_the_buffers_as_they_are_stored(kind, dtype):
    params, batches = draw(3, 20, 4)
    tensors = parameters(params)
    opt = OURS[kind](tensors.items(), 0.01, COUNTS, buffer_dtype=dtype)
    torch_path(opt, tensors, batches)
    for p in tensors.values():
        state = opt.state[p]
        assert state["buffer:0"].dtype == dtype
        mean = sum(prob * state[f"buffer:{n}"].double() for n, prob in enumerate(opt.probs))
        torch.testing.assert_close(state["mean"], mean, rtol=0, atol=1e-13)


@pytest.mark.parametrize("kind", OURS)
def test_a_step_touches_only_its_cluster_and_no_gradient(kind):
    params, batches = draw(4, 3, 4, groups=(1, 1))
    tensors = parameters(params)
    opt = OURS[kind](tensors.items(), 0.01, COUNTS)
    torch_path(opt, tensors, batches)
    before = {p: {key: value.clone() for key, value in opt.state[p].items()} for p in tensors.values()}
    give(tensors, params)
    grads = {p: p.grad for p in tensors.values()}
    copies = {p: grad.clone() for p, grad in grads.items()}
    opt.cluster = 2
    opt.step()
    for p in tensors.values():
        assert p.grad is grads[p]
        assert torch.equal(p.grad, copies[p])
        memory = {p.grad.untyped_storage().data_ptr(), p.untyped_storage().data_ptr()}
        for key, value in opt.state[p].items():
            assert torch.equal(value, before[p][key]) == key.startswith(("buffer:0", "buffer:1", "buffer:3")), key
            assert value.untyped_storage().data_ptr() not in memory


def test_groups_of_one_cluster_are_one_larger_group():
    params, batches = draw(6, 1, 2, groups=(2, 2))
    grads = batches[0][2]
    ends = []
    for together in (False, True):
        tensors = parameters(params)
        opt = OURS["discover"](tensors.items(), 0.1, ["a", "b"])
        if together:
            give(tensors, {name: 0.25 * grads[0][name] + 0.75 * grads[1][name] for name in params})
            opt.cluster = "b"
        else:
            for one, size in zip(grads, (2, 6)):
                give(tensors, one)
                opt.collect("b", size)
        opt.step()
        ends.append(tensors)
    for name in params:
        torch.testing.assert_close(ends[0][name], ends[1][name], rtol=0, atol=1e-14)


def test_a_parameter_that_only_some_groups_reach_has_gradient_zero_in_the_others():
    ends = []
    for missing in (None, 0.0):
        p = torch.nn.Parameter(torch.ones(3, dtype=torch.float64))
        other = torch.nn.Parameter(torch.ones(2, dtype=torch.float64))
        opt = OURS["discover"]([p, other], 0.1, 2)
        p.grad, other.grad = torch.full_like(p, 2.0), torch.ones_like(other)
        opt.collect(0)
        p.grad, other.grad = None if missing is None else torch.full_like(p, missing), torch.ones_like(other)
        opt.collect(1)
        opt.step()
        ends.append(p.detach().clone())
    assert torch.equal(*ends)
