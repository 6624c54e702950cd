r"""(D1) of `discover/damping.py`: shorter steps along the directions in which the clusters disagree.

For each parameter, with the buffers after the step, U has the rows u_n = √p_n·(g_n − ḡ), and

    d ← d − Uᵀ(λI + UUᵀ)⁻¹U d,        λ = κ·trace(UUᵀ)/N                                    (D1)

that is d − Σ_n c_n (g_n − ḡ), with c_n = √p_n·[(λI + UUᵀ)⁻¹U d]_n. Of a large parameter UUᵀ and Ud are taken from a
part of its numbers, the same as in JAX (`discover/sample.py`).
"""

from collections.abc import Callable
from functools import lru_cache

import torch
from torch import Tensor

from discover.sample import BLOCK, Sample, sample_of

CHUNK = 4096  # numbers of each row that are multiplied together


def damp(
    direction: list[Tensor],
    means: list[Tensor],
    buffers: list[list[Tensor]],
    probs: Tensor,
    places: list[Tensor | None],
    strength: float,
    total: Callable[[Tensor], Tensor] = lambda partial: partial,
) -> None:
    """(D1) in place, each parameter with a U of its own.

    g_n − ḡ is made twice, so that it is in memory for one parameter at a time.

    Args:
      direction: d.
      means: ḡ.
      buffers: g_n of all N clusters for each parameter.
      probs: p_n, [N].
      places: what the sums are taken from, as `places_of` says.
      strength: κ, at least 0.
      total: sums over processes, where each has a slice of every parameter.
    """
    parameters = [_in_memory_order(*one) for one in zip(direction, means, buffers)]
    found = [_products(*one, where) for one, where in zip(parameters, places)]
    products = torch.stack([one for one, _ in found])
    rounding = 16 * torch.finfo(products.dtype).eps
    noise = (torch.stack(torch._foreach_norm([mean for _, mean in found])) * rounding).square()
    weights = _weights(total(products), total(noise), probs, strength)
    for (d, mean, rows), c in zip(parameters, weights):
        d.view(-1).addmv_(_centred(mean, rows).T, c, alpha=-1)


def places_of(p: Tensor, mean: Tensor, start: int | None) -> Tensor | None:
    """Where the numbers are that the sums of a parameter are taken from, in the flattened ḡ; None: all are.

    Args:
      p: the parameter.
      mean: its ḡ, or this process's slice of it.
      start: where that slice begins; None: it is no slice.
    """
    sample = sample_of(p.numel())
    if sample.stride == 1:
        return None
    order = _memory_order(mean) if start is None else range(p.ndim)
    return _places(tuple(p.shape), tuple(order), sample, start or 0, mean.numel(), mean.device)


@lru_cache(maxsize=256)
def _places(
    shape: tuple[int, ...], order: tuple[int, ...], sample: Sample, start: int, length: int, device: torch.device
) -> Tensor:
    """The same for all parameters of one shape, whose axes are in this order in memory."""
    blocks = sample.block(torch.arange(sample.blocks))
    numbers = (blocks[:, None] * BLOCK + torch.arange(BLOCK)).flatten()
    theirs = [*range(2, len(shape)), 1, 0][-len(shape) :]  # the axes in JAX: a weight [out, in, …] is […, in, out]
    where = dict(zip(theirs, torch.unravel_index(numbers, [shape[axis] for axis in theirs])))
    places = torch.zeros_like(numbers)
    for axis in order:
        places = places * shape[axis] + where[axis]
    return (places[(places >= start) & (places < start + length)] - start).to(device)


def _memory_order(mean: Tensor) -> list[int]:
    """The axes as they lie in memory, channels last for instance."""
    return sorted(range(mean.ndim), key=mean.stride, reverse=True)


def _in_memory_order(d: Tensor, mean: Tensor, rows: list[Tensor]) -> tuple[Tensor, Tensor, list[Tensor]]:
    """The same tensors, which then are flattened without a copy."""
    order = _memory_order(mean)
    return d.permute(order), mean.permute(order), [g.permute(order) for g in rows]


def _at(where: Tensor | None, tensor: Tensor) -> Tensor:
    return tensor if where is None else tensor.view(-1).index_select(0, where)


def _centred(mean: Tensor, rows: list[Tensor], *others: Tensor) -> Tensor:
    """g_n − ḡ and below them the others as they are, [N + …, numbers of the parameter]."""
    stack = torch.stack([*(g.to(mean.dtype) for g in rows), *others])
    stack[: len(rows)].sub_(mean)
    return stack.reshape(len(stack), mean.numel())


def _products(d: Tensor, mean: Tensor, rows: list[Tensor], where: Tensor | None) -> tuple[Tensor, Tensor]:
    """(g_n − ḡ)·(g_m − ḡ), and in a last row d·(g_m − ḡ): [N + 1, N], over these places; and ḡ there."""
    mean = _at(where, mean)
    flat = _centred(mean, [_at(where, g) for g in rows], _at(where, d))
    # In chunks: one product of a few rows of millions would keep few of a GPU's cores busy.
    count, rest = divmod(flat.shape[1], CHUNK)
    if not count:
        return flat @ flat[:-1].T, mean
    chunks = flat[:, : count * CHUNK].unflatten(1, (count, CHUNK)).transpose(0, 1)
    products = torch.bmm(chunks, chunks[:, :-1].mT).sum(0)
    return (products.addmm_(flat[:, -rest:], flat[:-1, -rest:].T) if rest else products), mean


def _weights(products: Tensor, noise: Tensor, probs: Tensor, strength: float) -> Tensor:
    """c_n for each parameter, [L, N], from the products [L, N + 1, N]; 0 where U is 0.

    As (I + UUᵀ/λ)⁻¹Ud/λ, so that an infinite λ is a zero. λ is at least what rounding makes of UUᵀ.
    """
    size, root = products.shape[-1], probs.sqrt()
    gram, along = products[:, :-1] * root[:, None] * root, products[:, -1] * root
    trace = gram.diagonal(dim1=1, dim2=2).sum(-1)
    least = max(strength / size, 16 * torch.finfo(gram.dtype).eps)
    ridge = torch.maximum(torch.where(trace > 0, trace, 1) * least, noise)
    inverse = torch.where(trace > 0, 1 / ridge, 0)
    system = torch.eye(size, dtype=gram.dtype, device=gram.device) + gram * inverse[:, None, None]
    factor, _ = torch.linalg.cholesky_ex(system)  # which, unlike `cholesky`, does not wait for the GPU
    return torch.cholesky_solve((along * inverse[:, None])[..., None], factor)[..., 0] * root
