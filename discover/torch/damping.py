r"""(D1) of `discover/damping.py`: shorter steps along the directions in which the clusters disagree.

For each parameter, with the buffers after the step, U has the rows u_n = √p_n·(g_n − ḡ), and

    d ← d − Uᵀ(λI + UUᵀ)⁻¹U d,        λ = κ·trace(UUᵀ)/N                                    (D1)

that is d − Σ_n c_n (g_n − ḡ), with c_n = √p_n·[(λI + UUᵀ)⁻¹U d]_n. Of a large parameter UUᵀ and Ud are taken from a
part of its numbers, the same as in JAX (`discover/sample.py`).
"""

from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from discover.sample import BLOCK, Sample, sample_of

HELD = 2**24  # numbers that are copied at a time
IN_CACHE = 2**18  # the same on a CPU
CHUNK = 4096  # numbers of each row that are multiplied together; parameters of fewer share launches


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

    The buffers are put side by side twice, `HELD` numbers at a time where a parameter is large.

    Args:
      direction: d.
      means: ḡ.
      buffers: g_n of all N clusters for each parameter.
      probs: p_n, [N].
      places: what the sums are taken from, as `places_of` says.
      strength: κ, at least 0.
      total: sums over processes, where each has a slice of every parameter.
    """
    lists = list(_alike(zip(map(_flat, direction, means, buffers), places)))
    found = [_products(*one) for one in lists]
    products = torch.cat([one for one, _ in found])
    rounding = 16 * torch.finfo(products.dtype).eps
    norms = torch._foreach_norm([mean for _, centres in found for mean in centres])
    weights = _weights(total(products), total((torch.stack(norms) * rounding).square()), probs, strength)
    # Σ c_n (g_n − ḡ) as Σ c_n g_n − (Σ c_n) ḡ: it reads the rows as they are.
    weights = torch.cat([weights, -weights.sum(1, keepdim=True)], 1)
    for (members, _), c in zip(lists, weights.split([len(members) for members, _ in lists])):
        if len(members) > 1:
            change = torch.bmm(c[:, None], _side_by_side([[*rows, mean] for _, mean, rows in members]))
            torch._foreach_sub_([one.direction for one in members], list(change[:, 0].unbind()))
            continue
        ((d, mean, rows),) = members
        length = max(1, (IN_CACHE if d.device.type == "cpu" else HELD) // c.shape[1])
        for d_part, *row_parts in zip(*(one.split(length) for one in (d, *rows, mean))):
            d_part.addmv_(_side_by_side([row_parts])[0].T, c[0], alpha=-1)


class Flat(NamedTuple):
    """A parameter's d, ḡ and g_n as vectors, without a copy."""

    direction: Tensor
    mean: Tensor
    rows: list[Tensor]


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


def _flat(d: Tensor, mean: Tensor, rows: list[Tensor]) -> Flat:
    order = _memory_order(mean)
    flat = [one.permute(order).view(-1) for one in (d, mean, *rows)]
    return Flat(flat[0], flat[1], flat[2:])


def _alike(parameters: Iterable[tuple[Flat, Tensor | None]]) -> Iterator[tuple[list[Flat], Tensor | None]]:
    """Small parameters of one size together; each large one by itself, and its places."""
    lists: dict[int, list[Flat]] = {}
    for one, where in parameters:
        if where is not None or one.mean.numel() > CHUNK:
            yield [one], where
        else:
            lists.setdefault(one.mean.numel(), []).append(one)
    yield from ((members, None) for members in lists.values())


def _side_by_side(rows: list[list[Tensor]]) -> Tensor:
    """[parameters, rows, numbers], in the dtype of the last row."""
    dtype = rows[0][-1].dtype
    return torch.stack([row.to(dtype) for one in rows for row in one]).unflatten(0, (len(rows), -1))


def _products(members: list[Flat], where: Tensor | None) -> tuple[Tensor, list[Tensor]]:
    """(g_n − ḡ)·(g_m − ḡ), and in a last row d·(g_m − ḡ): [L, N + 1, N], over these places; and each ḡ there."""
    there = [[*rows, d, mean] for d, mean, rows in members]
    if where is not None:
        there = [[one.index_select(0, where) for one in tensors] for tensors in there]
    stack = _side_by_side(there)
    stack[:, :-2].sub_(stack[:, -1:])
    means = [one[-1] for one in there]
    # In chunks: one product of a few rows of millions would keep few of a GPU's cores busy.
    count, rest = divmod(stack.shape[2], CHUNK)
    if stack.shape[2] <= CHUNK:
        return torch.bmm(stack[:, :-1], stack[:, :-2].mT), means
    flat = stack[0, :-1]
    chunks = flat[:, : count * CHUNK].unflatten(1, (count, CHUNK)).transpose(0, 1)
    products = torch.bmm(chunks, chunks[:, :-1].mT).sum(0)
    return (products.addmm_(flat[:, -rest:], flat[:-1, -rest:].T) if rest else products)[None], means


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
