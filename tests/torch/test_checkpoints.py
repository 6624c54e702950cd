"""What an optimizer remembers, in a file, a copy or another optimizer: it goes on bit by bit, or is refused."""

import copy
import io
import pickle

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'discover-optim[torch]'")

from discover.torch import Discover
from tests.torch.problem import NAMES, OURS, equal, model, train

KINDS = pytest.mark.parametrize("kind", OURS)


@KINDS
@pytest.mark.parametrize("options", [{}, {"buffer_dtype": torch.bfloat16}, {"buffers": "cpu"}, {"damping": 0.1}])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_training_resumes_bit_by_bit_from_a_file(kind, options, dtype):
    net = model(dtype)
    opt = OURS[kind](net.named_parameters(), 0.01, dict(zip(NAMES, (3, 2, 1))), weight_decay=0.1, **options)
    train(net, opt, range(4))
    file = io.BytesIO()
    torch.save({"net": net.state_dict(), "opt": opt.state_dict()}, file)
    expected = train(net, opt, range(4, 8))
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    again = model(dtype)
    again.load_state_dict(saved["net"])
    # The clusters in another order: buffers are found by their names.
    other = OURS[kind](again.named_parameters(), 0.5, {"news": 1, "nli": 3, "qa": 2})
    other.load_state_dict(saved["opt"])
    assert other.param_groups[0]["lr"] == 0.01
    for p, q in zip(net.parameters(), again.parameters()):
        assert {k: v.dtype for k, v in opt.state[p].items()} == {k: v.dtype for k, v in other.state[q].items()}
    assert equal(train(again, other, range(4, 8)), expected)


@KINDS
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda pair: pickle.loads(pickle.dumps(pair))])
def test_a_copy_goes_on_as_the_original(kind, copied):
    net = model()
    opt = OURS[kind](net.parameters(), 0.01, NAMES)
    train(net, opt, range(4))
    other_net, other = copied((net, opt))
    assert equal(train(net, opt, range(4, 8)), train(other_net, other, range(4, 8)))


def test_a_state_does_not_share_memory_with_what_it_was_loaded_from():
    net = model()
    opt = Discover(net.parameters(), 0.01, NAMES)
    train(net, opt, range(3))
    saved = opt.state_dict()
    other = Discover(net.parameters(), 0.01, NAMES)
    other.load_state_dict(saved)
    before = saved["state"][0]["mean"].clone()
    train(net, other, range(3))
    assert torch.equal(saved["state"][0]["mean"], before)


@pytest.mark.parametrize(
    ("clusters", "message"),
    [
        (4, r"it has 3 \('nli', 'qa', 'news'\), this optimizer 4 \(0, 1, 2, 3\)"),
        (["nli", "qa", "blogs"], "other clusters"),
    ],
)
def test_the_state_of_other_clusters_is_refused(clusters, message):
    net = model()
    saved = Discover(net.parameters(), 0.01, NAMES).state_dict()
    with pytest.raises(ValueError, match=message):
        Discover(net.parameters(), 0.01, clusters).load_state_dict(saved)


def test_the_state_of_another_optimizer_or_model_is_refused():
    net = model()
    opt = Discover(net.parameters(), 0.01, NAMES)
    with pytest.raises(ValueError, match=r"it has 0 \(\)"):
        opt.load_state_dict(torch.optim.SGD(net.parameters()).state_dict())
    train(net, opt, range(1))
    other = Discover([torch.nn.Parameter(torch.ones(p.numel() + 1)) for p in net.parameters()], 0.01, NAMES)
    with pytest.raises(ValueError, match="of another model, or of another number of processes"):
        other.load_state_dict(opt.state_dict())


@KINDS
@pytest.mark.parametrize("into", [torch.bfloat16, torch.float64])
def test_a_state_is_loaded_into_a_model_of_another_precision(kind, into):
    net, other_net = model(), model(into)
    opt, other, fresh = (OURS[kind](one.parameters(), 0.01, NAMES) for one in (net, other_net, model(into)))
    train(net, opt, range(3))
    other.load_state_dict(opt.state_dict())
    train(other_net, other, range(3, 5))
    assert other.param_groups[0]["steps"] == 5
    assert fresh.param_groups[0]["steps"] == 0
    wide = torch.promote_types(into, torch.float32)
    for p, q in zip(net.parameters(), other_net.parameters()):
        assert {value.dtype for key, value in other.state[q].items() if key != "step"} == {wide}
        assert {key: value.shape for key, value in other.state[q].items()} == {
            key: value.shape for key, value in opt.state[p].items()
        }


@pytest.mark.parametrize(("ours", "others"), [("muon", "adam"), ("adam", "discover"), ("muon", "discover")])
def test_the_state_of_another_of_the_three_is_refused(ours, others):
    saved = OURS[others](model().parameters(), 0.01, NAMES).state_dict()
    with pytest.raises(ValueError, match="the state is of another optimizer: it has no '"):
        OURS[ours](model().parameters(), 0.01, NAMES).load_state_dict(saved)


def test_a_state_from_before_steps_were_counted_is_loaded():
    net = model()
    opt = Discover(net.parameters(), 0.01, NAMES)
    train(net, opt, range(2))
    saved = opt.state_dict()
    for group in saved["param_groups"]:
        del group["steps"], group["skipped"]
    again = Discover(net.parameters(), 0.01, NAMES)
    again.load_state_dict(saved)
    train(net, again, range(2))
    assert (again.param_groups[0]["steps"], again.skipped) == (2, 0)
