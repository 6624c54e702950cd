r"""(D1) of `discover/damping.py`: shorter steps along the directions in which the clusters disagree.

For each parameter, with the buffers after the step, U has the rows u_n = √p_n·(g_n − ḡ), and

    d ← d − Uᵀ(λI + UUᵀ)⁻¹U d,        λ = κ·trace(UUᵀ)/N                                    (D1)
"""

from collections.abc import Callable

import torch
from torch import Tensor


def damp(
    direction: list[Tensor],
    means: list[Tensor],
    buffers: list[list[Tensor]],
    probs: Tensor,
    strength: float,
    total: Callable[[Tensor], Tensor] = lambda partial: partial,
) -> None:
    """(D1) in place, each parameter with a U of its own.

    U is made twice, so that it is in memory for one parameter at a time.

    Args:
      direction: d.
      means: ḡ.
      buffers: g_n of all N clusters for each parameter.
      probs: p_n, [N].
      strength: κ, at least 0.
      total: sums over processes, where each has a slice of every parameter.
    """
    grams, along = [], []
    for d, mean, rows in zip(direction, means, buffers):
        u = _centred(rows, mean, probs)
        grams.append(u @ u.T)
        along.append(u @ d.reshape(-1))
    noise = [(mean * (16 * torch.finfo(mean.dtype).eps)).square().sum() for mean in means]
    weights = _solved(total(torch.stack(grams)), total(torch.stack(along)), total(torch.stack(noise)), strength)
    for d, mean, rows, x in zip(direction, means, buffers, weights):
        d.sub_((x @ _centred(rows, mean, probs)).view_as(d))


def _centred(buffers: list[Tensor], mean: Tensor, probs: Tensor) -> Tensor:
    """U, [N, numbers of the parameter]."""
    rows = torch.stack([g.to(mean.dtype) for g in buffers]).sub_(mean).reshape(len(buffers), mean.numel())
    return rows.mul_(probs.sqrt()[:, None])


def _solved(gram: Tensor, along: Tensor, noise: Tensor, strength: float) -> Tensor:
    """(λI + UUᵀ)⁻¹Ud for each parameter, [L, N], from UUᵀ [L, N, N] and Ud [L, N]; 0 where U is 0.

    As (I + UUᵀ/λ)⁻¹Ud/λ, so that an infinite λ is a zero. λ is at least what rounding makes of UUᵀ.
    """
    size = gram.shape[-1]
    trace = gram.diagonal(dim1=1, dim2=2).sum(-1)
    least = max(strength / size, 16 * torch.finfo(gram.dtype).eps)
    ridge = torch.maximum(torch.where(trace > 0, trace, 1) * least, noise)
    inverse = torch.where(trace > 0, 1 / ridge, 0)
    system = torch.eye(size, dtype=gram.dtype, device=gram.device) + gram * inverse[:, None, None]
    factor, _ = torch.linalg.cholesky_ex(system)  # which, unlike `cholesky`, does not wait for the GPU
    return torch.cholesky_solve((along * inverse[:, None])[..., None], factor)[..., 0]
