r"""(F1) to (F5) of `discover/rule.py`, for lists of tensors.

    direction    d  = ḡ + (1 − νβ)·Σ_n w_n δ_n        δ_n = ĝ_n − g_n, over the clusters in the batch       (F1)
    buffers      g_n ← g_n + ρ_n·δ_n                                                                        (F2)
    mean         ḡ  ← ḡ + Σ_n p_n ρ_n δ_n             the same change, so ḡ = Σ p_n g_n stays               (F3)
    rate         ρ_n = min(1, (1 − β)·w_n/p_n)        "proportional"                                        (F4)
                 ρ_n = 1 − β                          "per_visit"                                           (F5)

A list holds one tensor for each parameter. Only the buffers of the batch's clusters are read or written.
"""

import sys
from typing import NamedTuple

import torch
from torch import Tensor

RATES = ("proportional", "per_visit")


class Visit(NamedTuple):
    """One cluster of a batch, seen by some parameters."""

    grads: list[Tensor]  # ĝ_n
    buffers: list[Tensor]  # g_n; perhaps narrower than ḡ, perhaps in another memory
    share: float  # w_n
    prob: float  # p_n
    rate: float  # ρ_n


def rate_of(kind: str, beta: float, share: float, prob: float) -> float:
    """(F4) or (F5)."""
    return min(1.0, (1 - beta) * share / max(prob, sys.float_info.min)) if kind == "proportional" else 1 - beta


def advance(means: list[Tensor], visits: list[Visit], correction: float) -> list[Tensor]:
    """(F1) to (F3): moves ḡ and the buffers in place; the direction is in tensors of its own.

    Args:
      means: ḡ.
      visits: the clusters of the batch.
      correction: the factor on Σ w_n δ_n, 1 − νβ.
    """
    direction = means
    for grads, buffers, share, prob, rate in visits:
        # The buffers themselves, where they are of ḡ's dtype and in its memory.
        old = [g.to(mean.device, mean.dtype, non_blocking=True) for g, mean in zip(buffers, means)]
        innovation = torch._foreach_sub(grads, old)
        direction = torch._foreach_add(direction, innovation, alpha=correction * share)
        if buffers[0].dtype == means[0].dtype and buffers[0].device == means[0].device:
            torch._foreach_add_(buffers, innovation, alpha=rate)
            torch._foreach_add_(means, innovation, alpha=prob * rate)
        else:
            new = torch._foreach_add(old, innovation, alpha=rate)
            stored = [one.to(g.dtype) for one, g in zip(new, buffers)]
            torch._foreach_copy_(buffers, stored, non_blocking=True)
            # From the buffers as stored: that is what keeps ḡ = Σ p_n g_n.
            change = torch._foreach_sub([one.to(mean.dtype) for one, mean in zip(stored, means)], old)
            torch._foreach_add_(means, change, alpha=prob)
    return direction


def move(params: list[Tensor], update: list[Tensor], lr: float | Tensor, decay: float) -> None:
    """θ ← θ − μ·(u + λθ), in place; the update is used up."""
    if decay:
        torch._foreach_add_(update, params, alpha=decay)
    torch._foreach_mul_(update, -lr)
    torch._foreach_add_(params, update)
