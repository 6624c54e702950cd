r"""Discover in front of Muon: every matrix of the step is made orthogonal.

For a matrix of o rows and i columns (a weight [out, …] is the matrix [out, rest]), with X₀ = d/(‖d‖ + ε) and five
steps of Newton–Schulz,

    X ← 3.4445·X − 4.7750·(XXᵀ)X + 2.0315·(XXᵀ)²X                                           (M1)
    u = 0.2·√max(o, i)·√max(1, o/i) · X₅                                                    (M2)

and for every other parameter, scales and biases, 0.2 times Adam's step from d, with β₁ = 0:

    v ← β₂ v + (1 − β₂) d²,      u = 0.2 · d / (√(v/(1 − β₂ᵗ)) + ε)                         (M3)

then θ ← θ(1 − λμ) − μ·u. In JAX a kernel is [in, out], the transpose: the step is the same.
"""

import math
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT

from discover.torch.adamw import MOMENTS, adam, adam_memory
from discover.torch.clusters import ClustersLike
from discover.torch.optimizer import ClusterOptimizer
from discover.torch.part import Memory

SIZE = 0.2  # of a step's numbers, in the root of their mean square: about what Adam's are
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
STEPS = 5


class DiscoverMuon(ClusterOptimizer):
    """Discover in front of Muon: (M1) to (M3) on the direction of (F1). `discover.discover_muon` for PyTorch.

    Args:
      params, clusters, beta, nu, damping, weight_decay, l2, rate, buffer_dtype, buffers, ranks, skip_nonfinite: see
        `Discover`.
      lr: μ. Steps have about the size of Adam's.
      beta2: β₂ in [0, 1], how long (M3) remembers the squares.
      eps: ε in (M1) and (M3).
      orthogonal: whether parameters of two or more dimensions are made orthogonal. Give it as False to the group of
        the parameters that should take Adam's step, embeddings for instance.
      matrix_dtype: dtype of (M1). None: bfloat16, which it was made for; on a CPU, and for float64, the direction's.

    Raises:
      ValueError: if an argument is outside of its range.

    Example:
      >>> model = torch.nn.Linear(3, 2)
      >>> opt = DiscoverMuon(model.named_parameters(), lr=0.02, clusters=2)
      >>> opt.cluster = 1
      >>> model(torch.ones(2, 3)).sum().backward()
      >>> opt.step()
    """

    numbers = ("beta2", "eps", "orthogonal", "matrix_dtype")
    moments = MOMENTS

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor,
        clusters: ClustersLike,
        *,
        beta: float = 0.95,
        nu: float = 0.95,
        damping: float | None = None,
        beta2: float = 0.999,
        eps: float = 1e-8,
        orthogonal: bool = True,
        matrix_dtype: torch.dtype | None = None,
        weight_decay: float = 0.0,
        l2: float = 0.0,
        rate: str = "proportional",
        buffer_dtype: torch.dtype | None = None,
        buffers: str | None = None,
        ranks: str = "same",
        skip_nonfinite: bool = False,
    ):
        options: dict[str, Any] = {"lr": lr, "beta": beta, "nu": nu, "damping": damping, "beta2": beta2, "eps": eps}
        options |= {"orthogonal": orthogonal, "matrix_dtype": matrix_dtype, "weight_decay": weight_decay, "l2": l2}
        options |= {"rate": rate, "buffer_dtype": buffer_dtype, "buffers": buffers}
        super().__init__(params, clusters, ranks, skip_nonfinite, options)

    def new_memory(self, param: Tensor, options: dict[str, Any]) -> Memory:
        """Adam's squares for the parameters that are not made orthogonal."""
        return {} if _is_matrix(param, options) else adam_memory(param, momentum=False)

    @staticmethod
    def transform(direction: list[Tensor], memory: list[Memory], options: dict[str, Any]) -> list[Tensor]:
        """(M1) to (M3)."""
        update = list(direction)
        matrices = [number for number, d in enumerate(direction) if _is_matrix(d, options)]
        vectors = [number for number, d in enumerate(direction) if not _is_matrix(d, options)]
        if matrices:
            made = orthogonalized([direction[n] for n in matrices], options["eps"], options["matrix_dtype"])
            for number, one in zip(matrices, made):
                update[number] = one
        if vectors:
            beta2, eps = options["beta2"], options["eps"]
            made = adam([direction[n] for n in vectors], [memory[n] for n in vectors], 0.0, beta2, eps)
            torch._foreach_mul_(made, SIZE)
            for number, one in zip(vectors, made):
                update[number] = one
        return update


def orthogonalized(matrices: list[Tensor], eps: float, dtype: torch.dtype | None = None) -> list[Tensor]:
    """(M1) and (M2); matrices of one shape together, as a GPU likes it.

    Args:
      matrices: tensors of two or more dimensions; each is a matrix whose rows are its first axis.
      eps: ε.
      dtype: see `DiscoverMuon`.
    """
    alike: dict[tuple[int, int], list[int]] = {}
    for number, one in enumerate(matrices):
        alike.setdefault((one.shape[0], math.prod(one.shape[1:])), []).append(number)
    result = list(matrices)  # also where there is nothing in a tensor
    for (rows, columns), members in alike.items():
        if not rows * columns:
            continue
        stack = torch.stack([_whole(matrices[number]).reshape(rows, columns) for number in members])
        precise = stack.dtype == torch.float64 or stack.device.type == "cpu"
        orthogonal = _newton_schulz(stack.to(dtype or (stack.dtype if precise else torch.bfloat16)), eps)
        size = SIZE * math.sqrt(max(rows, columns)) * math.sqrt(max(1.0, rows / columns))
        for number, one in zip(members, orthogonal.to(stack.dtype) * size):
            result[number] = _placed_like(matrices[number], one.reshape(matrices[number].shape))
    return result


def _newton_schulz(x: Tensor, eps: float) -> Tensor:
    """(M1) for matrices [M, rows, columns]; the smaller of XXᵀ and XᵀX is formed."""
    if x.shape[1] > x.shape[2]:
        return _newton_schulz(x.mT, eps).mT
    a, b, c = COEFFICIENTS
    x = x / (torch.linalg.vector_norm(x, dim=(1, 2), keepdim=True) + eps)
    for _ in range(STEPS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x


def _is_matrix(tensor: Tensor, options: dict[str, Any]) -> bool:
    return tensor.ndim > 1 and options["orthogonal"]


def _whole(tensor: Any) -> Tensor:
    """All of a matrix of which this process may hold a shard (a DTensor): a shard of it is no matrix."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def _placed_like(other: Any, tensor: Tensor) -> Tensor:
    """The shard that `other` is of, where it is one."""
    if not hasattr(other, "full_tensor"):
        return tensor
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(tensor, other.device_mesh, other.placements)
