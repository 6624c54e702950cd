"""What a step asks of the device, counted: few launches, and no waiting."""

from collections import Counter

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'discover-optim[torch]'")

from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tests.torch.problem import OURS

WAITS = ("_local_scalar_dense", "nonzero", "equal", "item", "masked_select")
NO_KERNEL = ("detach", "view", "_unsafe_view", "reshape", "permute", "transpose", "t", "expand", "select", "slice", "empty")
KINDS = pytest.mark.parametrize("kind", OURS)


class Counted(TorchDispatchMode):
    """Operations by name, and numbers in the tensors that they read or write."""

    def __init__(self):
        super().__init__()
        self.operations, self.numbers, self.awaited = Counter(), 0, []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        name = func._schema.name.removeprefix("aten::")
        if name in WAITS:
            self.awaited += [one for one in tree_leaves(args) if isinstance(one, torch.Tensor)]
        elif name not in NO_KERNEL:
            self.operations[name] += 1
            self.numbers += sum(x.numel() for x in tree_leaves((args, kwargs, out)) if isinstance(x, torch.Tensor))
        return out


def counted(kind, tensors, numbers, **options):
    """A step after the first, on parameters of one shape."""
    params = [torch.nn.Parameter(torch.ones(numbers)) for _ in range(tensors)]
    opt = OURS[kind](params, 0.1, 10, **options)
    for n in (0, 1):
        for p in params:
            p.grad = torch.ones_like(p)
        opt.cluster = n
        with Counted() as found:
            opt.step()
    return found, opt


if __name__ == "__main__":
    for kind in OURS:
        for t in (1,80):
            for o in ({}, {"damping":.1}):
                f,_=counted(kind,t,1000,**o); print(kind,t,o,sum(f.operations.values()),f.numbers/t/1000,f.operations, len(f.awaited))
