"""Discover in front of Adam."""

from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from discover.torch.batch import wide_dtype
from discover.torch.clusters import ClustersLike
from discover.torch.optimizer import ClusterOptimizer
from discover.torch.part import Memory

MOMENTS = ("step", "exp_avg", "exp_avg_sq")
"""What Adam may remember of a parameter."""


class DiscoverAdamW(ClusterOptimizer):
    r"""Adam on the direction of Discover, with decoupled weight decay. `discover.discover_adam` for PyTorch.

        m ← β₁ m + (1 − β₁) d,      v ← β₂ v + (1 − β₂) d²                                  (A1)
        θ ← θ(1 − λμ) − μ · m̂ / (√v̂ + ε)              m̂, v̂: m/(1 − β₁ᵗ), v/(1 − β₂ᵗ)       (A2)

    Args:
      params, clusters, beta, nu, damping, weight_decay, l2, rate, buffer_dtype, buffers, ranks, skip_nonfinite: see
        `Discover`.
      lr: μ. Start below Adam's: d has less noise, so its squares are smaller and steps longer.
      beta1: β₁ in [0, 1], Adam's own momentum; 0, as the clusters remember already.
      beta2: β₂ in [0, 1], how long Adam remembers the squares.
      eps: ε, added to the root of the squares.

    Raises:
      ValueError: if an argument is outside of its range.

    Example:
      >>> model = torch.nn.Linear(3, 1)
      >>> opt = DiscoverAdamW(model.parameters(), lr=1e-3, clusters={"nli": 5000, "qa": 2000}, weight_decay=0.01)
      >>> opt.cluster = "qa"
      >>> model(torch.ones(2, 3)).sum().backward()
      >>> opt.step()
    """

    numbers = ("beta1", "beta2", "eps")
    moments = MOMENTS

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor,
        clusters: ClustersLike,
        *,
        beta: float = 0.95,
        nu: float = 0.95,
        beta1: float = 0.0,
        beta2: float = 0.999,
        eps: float = 1e-8,
        damping: float | None = None,
        weight_decay: float = 0.0,
        l2: float = 0.0,
        rate: str = "proportional",
        buffer_dtype: torch.dtype | None = None,
        buffers: str | None = None,
        ranks: str = "same",
        skip_nonfinite: bool = False,
    ):
        options: dict[str, Any] = {"lr": lr, "beta": beta, "nu": nu, "beta1": beta1, "beta2": beta2, "eps": eps}
        options |= {"damping": damping, "weight_decay": weight_decay, "l2": l2, "rate": rate}
        options |= {"buffer_dtype": buffer_dtype, "buffers": buffers}
        super().__init__(params, clusters, ranks, skip_nonfinite, options)

    def new_memory(self, param: Tensor, options: dict[str, Any]) -> Memory:
        """Adam's squares, and its momentum where it has one."""
        return adam_memory(param, momentum=options["beta1"] > 0)

    @staticmethod
    def transform(direction: list[Tensor], memory: list[Memory], options: dict[str, Any]) -> list[Tensor]:
        """(A1), and m̂ / (√v̂ + ε)."""
        return adam(direction, memory, options["beta1"], options["beta2"], options["eps"])


def adam_memory(param: Tensor, *, momentum: bool) -> Memory:
    """What Adam remembers of a parameter before its first step."""
    moments = ("exp_avg", "exp_avg_sq") if momentum else ("exp_avg_sq",)
    zeros = {name: torch.zeros_like(param, dtype=wide_dtype(param)) for name in moments}
    # On the CPU, where reading it waits for no GPU, and in float64: 1 − β₂ in float32 is wrong in its fifth digit.
    return {"step": torch.zeros((), dtype=torch.float64, device="cpu"), **zeros}


def adam(direction: list[Tensor], memory: list[Memory], beta1: float, beta2: float, eps: float) -> list[Tensor]:
    """m̂ / (√v̂ + ε) after (A1), in tensors of its own; the direction is used up."""
    steps = [one["step"] for one in memory]
    squares = [one["exp_avg_sq"] for one in memory]
    torch._foreach_add_(steps, 1)
    torch._foreach_mul_(squares, beta2)
    torch._foreach_addcmul_(squares, direction, direction, value=1 - beta2)
    roots = torch._foreach_div(squares, _corrections(beta2, steps))
    torch._foreach_sqrt_(roots)
    torch._foreach_add_(roots, eps)
    update: Any = direction
    if beta1:
        moments = [one["exp_avg"] for one in memory]
        torch._foreach_lerp_(moments, direction, 1 - beta1)
        update = torch._foreach_div(moments, _corrections(beta1, steps))
    torch._foreach_div_(update, roots)
    return update


def _corrections(decay: float, steps: list[Tensor]) -> Any:
    """1 − βᵗ for each parameter: numbers, and while a program is being compiled, tensors."""
    compiling = torch.compiler.is_compiling()
    return [1 - decay ** (step if compiling else step.item()) for step in steps]
