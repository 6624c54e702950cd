"""Discover by itself: one momentum per cluster, and a plain step."""

from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from discover.torch.clusters import ClustersLike
from discover.torch.optimizer import ClusterOptimizer


class Discover(ClusterOptimizer):
    """One momentum per cluster: θ ← θ − μ·(d + λθ), with the direction d of (F1). `discover.discover` for PyTorch.

    Every argument but `params`, `clusters`, `ranks` and `skip_nonfinite` may be given to a parameter group of its own.

    Args:
      params: parameters, named parameters, or parameter groups.
      lr: μ, a number or a tensor.
      clusters: how many clusters there are, their names, the examples in each, or a dictionary of both.
      beta: β in [0, 1], how long a cluster remembers.
      nu: ν in [0, 1], how much of the step is momentum.
      damping: κ ≥ 0 of (D1), shorter steps along the directions in which the clusters disagree; 0.1 is a good start.
        None: no damping. It reads all N buffers at each step.
      weight_decay: λ ≥ 0, decoupled.
      l2: λ₂ ≥ 0; λ₂θ is added to every gradient.
      rate: "proportional" moves a buffer by its cluster's share of the batch relative to p_n, (F4); "per_visit" by
        1 − β at each visit, (F5), for very rare clusters.
      buffer_dtype: dtype of the buffers, for instance `torch.bfloat16`. None: float32, or the parameter's if wider.
      buffers: "cpu" keeps the buffers in the host's memory; only those of the batch's clusters visit the GPU.
      ranks: what the processes of `torch.distributed` hold at a step. "same": one cluster in all of them, and
        gradients that DDP or FSDP has averaged; this is checked. "exchange": clusters and gradients of their own; the
        step exchanges them. "alone": this process has nothing to do with the others.
      skip_nonfinite: a group whose gradient holds NaN or infinity counts as one without examples; `opt.skipped` says
        how many there were. It waits for the GPU once a group. Otherwise such a gradient spoils the step, though no
        buffer.

    Raises:
      ValueError: if an argument is outside of its range.

    Example:
      >>> model = torch.nn.Linear(3, 1)
      >>> opt = Discover(model.parameters(), lr=0.1, clusters=["a", "b"])
      >>> opt.cluster = "b"
      >>> model(torch.ones(2, 3)).sum().backward()
      >>> opt.step()
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor,
        clusters: ClustersLike,
        *,
        beta: float = 0.95,
        nu: float = 0.95,
        damping: float | None = None,
        weight_decay: float = 0.0,
        l2: float = 0.0,
        rate: str = "proportional",
        buffer_dtype: torch.dtype | None = None,
        buffers: str | None = None,
        ranks: str = "same",
        skip_nonfinite: bool = False,
    ):
        options: dict[str, Any] = {"lr": lr, "beta": beta, "nu": nu, "damping": damping, "weight_decay": weight_decay}
        options |= {"l2": l2, "rate": rate, "buffer_dtype": buffer_dtype, "buffers": buffers}
        super().__init__(params, clusters, ranks, skip_nonfinite, options)
