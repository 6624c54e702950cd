r"""(F1) to (F5) of `discover/rule.py`, for lists of tensors.

    direction    d  = ḡ + (1 − νβ)·Σ_n w_n δ_n        δ_n = ĝ_n − g_n, over the clusters in the batch       (F1)
    buffers      g_n ← g_n + ρ_n·δ_n                                                                        (F2)
    mean         ḡ  ← ḡ + Σ_n p_n ρ_n δ_n             the same change, so ḡ = Σ p_n g_n stays               (F3)
    rate         ρ_n = min(1, (1 − β)·w_n/p_n)        "proportional"                                        (F4)
                 ρ_n = 1 − β                          "per_visit"                                           (F5)

A list holds one tensor for each parameter. Only the buffers of the batch's clusters are read or written. But (F3) never
forgets a rounding error, so all of ḡ is also summed afresh, Σ_n p_n g_n, after every `AFRESH` steps.
"""

import sys
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from discover.torch.finite import here, zero_where_not_finite_

AFRESH = 512
"""Steps after which ḡ is summed afresh."""
RATES = ("proportional", "per_visit")
Tensors = list[Tensor] | tuple[Tensor, ...]
"""What torch's functions of lists take; which of both they return depends on its version."""
Number = float | Tensor
"""What differs from step to step: in a compiled program a tensor, or there would be a program for each value."""


class Visit(NamedTuple):
    """One cluster of a batch, seen by some parameters."""

    grads: list[Tensor]  # ĝ_n
    buffers: list[Tensor]  # g_n; perhaps narrower than ḡ, perhaps in another memory
    weight: Number  # (1 − νβ)·w_n
    prob: Number  # p_n
    rate: Number  # ρ_n


def rate_of(kind: str, beta: float, share: float, prob: float) -> float:
    """(F4) or (F5)."""
    return min(1.0, (1 - beta) * share / max(prob, sys.float_info.min)) if kind == "proportional" else 1 - beta


def advance(means: list[Tensor], visits: list[Visit]) -> list[Tensor]:
    """(F1) to (F3): moves ḡ and the buffers in place; the direction is in tensors of its own.

    Args:
      means: ḡ.
      visits: the clusters of the batch.
    """
    direction = means
    for grads, buffers, weight, prob, rate in visits:
        old = _beside(means, buffers)
        innovation = torch._foreach_sub(grads, old)
        direction = plus(direction, innovation, weight)
        # What is not finite reaches the step, and no buffer: p_n times NaN would bring it to all clusters.
        zero_where_not_finite_(innovation)
        if old is buffers:
            plus_(buffers, innovation, rate)
            plus_(means, innovation, prob * rate)
        else:
            new = plus(old, innovation, rate)
            stored = [one.to(g.dtype) for one, g in zip(new, buffers)]
            torch._foreach_copy_([here(g) for g in buffers], [here(g) for g in stored], non_blocking=True)
            # From the buffers as stored: that is what keeps ḡ = Σ p_n g_n.
            change = torch._foreach_sub([one.to(mean.dtype) for one, mean in zip(stored, means)], old)
            plus_(means, change, prob)
    return direction


def sum_afresh(means: list[Tensor], buffers: Sequence[list[Tensor]], probs: Sequence[float]) -> None:
    """ḡ ← Σ_n p_n g_n, in place.

    Args:
      means: ḡ.
      buffers: g_n, of all clusters.
      probs: p_n, of all clusters.
    """
    torch._foreach_zero_(means)
    for rows, prob in zip(buffers, probs):
        plus_(means, _beside(means, rows), prob)


def _beside(means: list[Tensor], buffers: list[Tensor]) -> list[Tensor]:
    """Buffers in ḡ's dtype and memory: the list itself, where they are so already."""
    if (buffers[0].dtype, buffers[0].device) == (means[0].dtype, means[0].device):
        return buffers
    return [g.to(mean.device, mean.dtype, non_blocking=True) for g, mean in zip(buffers, means)]


def move(params: list[Tensor], update: list[Tensor], lr: Number, decay: float) -> None:
    """θ ← θ − μ·(u + λθ), in place; the update is used up."""
    if decay:
        plus_(update, params, decay)
    if not isinstance(lr, Tensor):
        plus_(params, update, -lr)
        return
    if not torch.compiler.is_compiling():
        lr = lr.to(update[0].device, non_blocking=True)
    torch._foreach_mul_(update, -lr)
    torch._foreach_add_(params, update)


def plus(left: list[Tensor], right: Tensors, factor: Number) -> list[Tensor]:
    """left + factor·right."""
    if isinstance(factor, Tensor):
        return torch._foreach_add(left, torch._foreach_mul(right, factor))  # pyright: ignore[reportReturnType]
    return torch._foreach_add(left, right, alpha=factor)  # pyright: ignore[reportReturnType]


def plus_(left: list[Tensor], right: Tensors, factor: Number) -> None:
    """left ← left + factor·right."""
    if isinstance(factor, Tensor):
        torch._foreach_add_(left, torch._foreach_mul(right, factor))
    else:
        torch._foreach_add_(left, right, alpha=factor)
