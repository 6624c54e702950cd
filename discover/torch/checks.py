"""What an optimizer is given, checked when it is given: a mistake is said in one sentence."""

from typing import Any

import torch
from torch import Tensor

from discover.torch.rule import RATES

UNIT_INTERVAL = ("beta", "nu", "beta1", "beta2")
NOT_NEGATIVE = ("lr", "weight_decay", "l2", "eps")
CHOICES = {"rate": RATES, "buffers": (None, "cpu"), "orthogonal": (True, False)}
DTYPES = ("buffer_dtype", "matrix_dtype")


def check_group(group: dict[str, Any], *, whole: bool) -> None:
    """The options and the parameters of one parameter group.

    Args:
      group: one of an optimizer's `param_groups`.
      whole: whether each process must have all of every parameter.

    Raises:
      TypeError: if an option is not of the kind that it should be.
      ValueError: if it is outside of its range, or a parameter is complex, twice there, or sharded or flattened and
        must not be.
    """
    for name in UNIT_INTERVAL:
        if name in group and not 0.0 <= _number(name, group[name]) <= 1.0:
            raise ValueError(f"{name} must be in [0, 1], got {group[name]}")
    for name in NOT_NEGATIVE:
        if name in group and not 0.0 <= _number(name, group[name]) < float("inf"):
            raise ValueError(f"{name} must be finite and at least 0, got {group[name]}")
    for name, choices in CHOICES.items():
        if name in group:
            check_choice(name, group[name], choices)
    for name in DTYPES:
        dtype = group.get(name)
        if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
            raise TypeError(f"{name} must be None or a dtype of real numbers like torch.bfloat16, got {dtype!r}")
    if group["damping"] is not None and not _number("damping", group["damping"]) >= 0.0:
        raise ValueError(f"damping must be None or at least 0, got {group['damping']}")
    if group["damping"] is not None and group["buffers"] == "cpu":
        raise ValueError("damping reads the buffers of all clusters at each step: it does not go with buffers='cpu'")
    if any(p.is_complex() for p in group["params"]):
        raise ValueError("complex parameters are not supported: torch.view_as_real gives their two parts")
    if len(set(group["params"])) < len(group["params"]):
        raise ValueError("a parameter is there twice, and would be moved twice: model.parameters() has each once")
    if group.get("orthogonal") and any(map(is_flattened, group["params"])):
        raise ValueError(
            "FullyShardedDataParallel has flattened the matrices, and they cannot be made orthogonal: shard the model "
            "with fully_shard, or make the optimizer with orthogonal=False"
        )
    if whole and any(map(is_sharded, group["params"])):
        raise ValueError(
            "ranks='exchange' needs whole parameters, and FSDP has sharded these: draw one cluster for all ranks, and "
            "make the optimizer with ranks='same'"
        )


def is_sharded(p: Tensor) -> bool:
    """Whether this process may hold only a part of a parameter: a DTensor, or what the older FSDP flattened."""
    return hasattr(p, "full_tensor") or is_flattened(p)


def is_flattened(p: Tensor) -> bool:
    """Whether `FullyShardedDataParallel` holds it in one vector with others, of which each process has a part."""
    return getattr(p, "_fsdp_flattened", False)


def check_choice(name: str, value: Any, choices: tuple[Any, ...]) -> Any:
    """The value, which must be one of the choices."""
    if not any(value is choice or (isinstance(value, str) and value == choice) for choice in choices):
        raise ValueError(f"{name} must be one of {listed(choices)}, got {value!r}")
    return value


def check_size(size: Any) -> float:
    """How many examples a group has."""
    number = _number("size", size)
    if not 0.0 < number < float("inf"):
        raise ValueError(f"size must be finite and above 0, got {size}")
    return number


def dense(grads: dict[Tensor, Tensor]) -> dict[Tensor, Tensor]:
    """The gradients.

    Raises:
      RuntimeError: if one is sparse.
    """
    if any(grad.layout != torch.strided for grad in grads.values()):
        raise RuntimeError(
            "sparse gradients are not supported, as every step moves all of a parameter: "
            "make embeddings with sparse=False"
        )
    return grads


def listed(values: Any) -> str:
    """The values as a reader would write them."""
    return ", ".join(map(repr, values))


def _number(name: str, value: Any) -> float:
    """A number of any kind, also in a tensor; words and truth values are none."""
    try:
        if not isinstance(value, str | bytes | bool):
            return float(value)
    except (TypeError, ValueError, RuntimeError):
        pass
    raise TypeError(f"{name} must be a number, got {value!r}")
