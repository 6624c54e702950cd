"""The state of a parameter: ḡ and a buffer for each cluster, as new, and as they were saved."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from discover.torch.batch import wide_dtype
from discover.torch.clusters import Name
from discover.torch.part import Memory


def key_of(name: Name) -> str:
    """A cluster's buffer: one tensor of the parameter's shape, so that FSDP can shard it."""
    return f"buffer:{name}"


def new_state(p: Tensor, own: Tensor, names: Sequence[Name], group: dict[str, Any]) -> Memory:
    """Zeros.

    Args:
      p: the parameter.
      own: a tensor like what this process remembers of it.
      names: of all clusters.
      group: the options of its parameter group.
    """
    dtype = group["buffer_dtype"] or wide_dtype(p)
    place: dict[str, Any] = {"device": "cpu", "pin_memory": p.is_cuda} if group["buffers"] == "cpu" else {}
    mean = torch.zeros_like(own, dtype=wide_dtype(p))
    return {"mean": mean, **{key_of(name): torch.zeros_like(own, dtype=dtype, **place) for name in names}}


def placed(saved: dict[str, Any], p: Tensor, own: Tensor, group: dict[str, Any]) -> Memory:
    """A copy of what was saved, each tensor where it belongs.

    Raises:
      ValueError: if it is of a parameter of another shape.
    """
    if saved["mean"].shape != own.shape:
        raise ValueError(
            f"the state has {tuple(saved['mean'].shape)} where {tuple(own.shape)} is needed for a parameter of "
            f"shape {tuple(p.shape)}: it is of another model, or of another number of processes that exchange"
        )
    state = {}
    for key, value in saved.items():
        is_buffer = key.startswith(key_of(""))
        on_host = key == "step" or (is_buffer and group["buffers"] == "cpu")
        narrow = group["buffer_dtype"] if is_buffer else None
        dtype = value.dtype if key == "step" else narrow or wide_dtype(p)
        state[key] = value.detach().to("cpu" if on_host else p.device, dtype, copy=True)
        if on_host and p.is_cuda and key != "step":
            state[key] = state[key].pin_memory()
    return state
