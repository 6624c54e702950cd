"""Numbers of a gradient that are not finite."""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor


def zero_where_not_finite_(tensors: Sequence[Tensor]) -> None:
    """Each tensor in place; of a shard only what this process has."""
    for one in tensors:
        here(one).nan_to_num_(0.0, 0.0, 0.0)


def all_finite(tensors: Sequence[Tensor], device: torch.device, *, everywhere: bool) -> bool:
    """Whether every number is finite; it waits for the GPU.

    Args:
      tensors: which.
      device: where the answer is put together.
      everywhere: in all processes, each of which asks for its own tensors.
    """
    # The greatest number and not the sum of squares, which may be infinite of finite numbers.
    greatest = torch._foreach_norm([here(one) for one in tensors if here(one).numel()], float("inf"))
    finite = torch.stack([one.to(device) for one in greatest]).isfinite().all() if greatest else torch.tensor(True)
    if everywhere and dist.is_available() and dist.is_initialized():
        finite = finite.to(device, torch.int32)
        dist.all_reduce(finite, dist.ReduceOp.MIN)
    return bool(finite)


def here(tensor: Tensor) -> Tensor:
    """What this process has of a tensor: all of it, or its shard of a DTensor."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor  # pyright: ignore[reportAttributeAccessIssue]
