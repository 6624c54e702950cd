"""What a step asks of a device, counted: launches, memory that is read and written, and no waiting."""

import runpy
from collections import Counter
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'discover-optim[torch]'")

from torch.utils._python_dispatch import TorchDispatchMode

from tests.torch.problem import OURS

WAITS = {"_local_scalar_dense", "nonzero", "equal", "masked_select"}
NO_KERNEL = {"alias", "detach", "diagonal", "permute", "promote_types", "select", "slice", "squeeze_", "t", "transpose"}
NO_KERNEL |= {"unbind", "unsqueeze", "view", "lift_fresh", "split", "_unsafe_view"}
KINDS = pytest.mark.parametrize("kind", OURS)
MATRIX = (512, 64)
BENCHMARKS = Path(__file__).parent.parent.parent / "benchmarks"


class Counted(TorchDispatchMode):
    """Operations by name, numbers in the tensors that they read and write, and tensors that Python waited for."""

    def __init__(self):
        super().__init__()
        self.operations, self.numbers, self.awaited, self.blocking = Counter(), 0, [], []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        space, name = func._schema.name.split("::")
        if name in ("_to_copy", "copy_") and tensors_in([out])[0].device != tensors_in(args)[-1].device:
            self.blocking += [] if (kwargs or {}).get("non_blocking") or args[-1] is True else [name]
        if name in WAITS:
            self.awaited += tensors_in(args)
        elif space == "aten" and name not in NO_KERNEL:
            given = (
                [out, args[2]] if name == "index_select" else [*args, *(kwargs or {}).values()]
            )  # reads what it takes
            written = [one for one, told in zip(args, func._schema.arguments) if told.alias_info]
            self.operations[name] += 1
            made = [] if written else tensors_in([out])
            self.numbers += sum(x.numel() for x in [*tensors_in(given), *tensors_in(written), *made])
        return out


def tensors_in(values):
    """Those in a list, and in lists in it."""
    found = []
    for one in values:
        found += [one] if isinstance(one, torch.Tensor) else tensors_in(one) if isinstance(one, list | tuple) else []
    return found


def one_step(kind, number, shape=MATRIX, device="cpu", lr=0.1, **options):
    """The second step of an optimizer, with another cluster than the first; and the optimizer."""
    params = [torch.nn.Parameter(torch.ones(shape, device=device)) for _ in range(number)]
    opt = OURS[kind](params, lr, 10, **options)
    for n in range(2):
        for p in params:
            p.grad = torch.ones_like(p)
        opt.cluster = n
        with Counted() as found:
            opt.step()
    return found, opt


@KINDS
def test_launches_do_not_grow_with_the_number_of_parameters_but_for_one_small_one(kind):
    few, many = (one_step(kind, number)[0].operations for number in (3, 40))
    assert many - few == {"nan_to_num_": 37}
    assert few.total() < 45
    assert few - many == Counter()


@pytest.mark.parametrize(("kind", "most"), [("discover", 17), ("adam", 32)])
def test_what_a_step_reads_and_writes(kind, most):
    """In values of a parameter: of torch's SGD with momentum they are 8."""
    found, _ = one_step(kind, 8)
    assert found.numbers / (8 * MATRIX[0] * MATRIX[1]) == pytest.approx(most, rel=1e-3)
    params = [torch.nn.Parameter(torch.ones(MATRIX))]
    sgd = torch.optim.SGD(params, 0.1, momentum=0.9, foreach=True)
    for _ in range(2):
        params[0].grad = torch.ones(MATRIX)
        with Counted() as found:
            sgd.step()
    assert found.numbers / (MATRIX[0] * MATRIX[1]) == 8


def test_what_damping_by_ten_clusters_adds_in_the_network_whose_speed_was_measured():
    """WideResNet-26-10, told in docs/pytorch.md: for each number, and for each of its tensors."""
    make = runpy.run_path(str(BENCHMARKS / "torch_wide_resnet.py"))["make"]
    params, found = list(make(26, 10, torch.device("meta")).parameters()), []
    for damping in (None, 0.1):
        opt = OURS["discover"](params, 0.1, 10, damping=damping)
        for n in range(2):
            for p in params:
                p.grad = torch.empty_like(p)
            opt.cluster = n
            with Counted() as counted:
                opt.step()
        found.append((counted.numbers / sum(p.numel() for p in params), counted.operations.total() / len(params)))
    (values, launches), (damped_values, damped_launches) = found
    assert (round(values), round(launches)) == (17, 1)
    assert round(damped_values - values) <= 45
    assert round(damped_launches - launches) <= 6


class Watched(dict):
    """Notes what is read of it by name; to look through all of it is an error."""

    def __init__(self, given):
        super().__init__(given)
        self.read = []

    def __getitem__(self, key):
        self.read.append(key)
        return super().__getitem__(key)

    def __iter__(self):
        raise AssertionError("all of it was looked through")

    keys = values = items = __iter__


@KINDS
def test_a_step_looks_at_no_more_of_its_memory_where_there_are_more_clusters(kind):
    found = []
    for clusters in (2, 50):
        p = torch.nn.Parameter(torch.ones(4))
        opt = OURS[kind]([p], 0.1, clusters)
        for n in range(2):
            p.grad = torch.ones(4)
            opt.cluster = n
            opt.step()
            opt.state[p] = Watched(opt.state[p]) if n == 0 else opt.state[p]
        found.append(opt.state[p].read)
    assert found[0] == found[1] != []


@pytest.mark.parametrize("options", [{}, {"damping": 0.1}, {"buffer_dtype": torch.bfloat16}, {"lr": torch.tensor(0.1)}])
@KINDS
def test_a_step_never_waits_for_the_device(kind, options):
    """On `meta`, whose values nobody can ask for; a copy from the host waits for a GPU unless it is `non_blocking`."""
    found, _ = one_step(kind, 2, device="meta", **options)
    assert all(tensor.device.type == "cpu" for tensor in found.awaited)
    assert found.blocking == []
