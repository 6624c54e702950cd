"""Weight standardization, with a gradient in one look at what comes in and one at what goes out.

For an output channel's weights w, F of them, with their mean m, and q = (Σ (w − m)² + ε)^(−1/2):

    ŵ = q·(w − m)
    ∂w = q·(∂ŵ − S/F − ŵ T)      S = Σ ∂ŵ,  T = Σ ∂ŵ·ŵ

Autodiff does this in five passes, which matters where every group of a batch has its own ∂ŵ.

Qiao et al., "Micro-Batch Training with Batch-Channel Normalization and Weight Standardization", scaled by F^(−1/2) so
that the variance of the activations is kept.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import DTypeLike

from discover.gpu import device
from discover.lab.models.gpu_barrier import gpu_barrier

ROWS = 64  # summed at a time


def standardize(
    kernel: jax.Array, epsilon: float = 1e-10, *, dtype: DTypeLike | None = None, by_group: bool = False
) -> jax.Array:
    """Each output channel's weights get mean 0 and variance 1/F.

    Differentiable in reverse mode (what training needs), and that gradient again, but not in forward mode. ``by_group``
    says that the groups of a batch may have a gradient each: off the CPU its sums are then made such that they fill it
    where output channels are next to each other in memory; they are the same to rounding.
    """
    result: Any = _standardize(kernel, jnp.dtype(dtype or kernel.dtype), epsilon, by_group)
    return result


@partial(jax.custom_vjp, nondiff_argnums=(1, 2, 3))
def _standardize(kernel: jax.Array, dtype: DTypeLike, epsilon: float, by_group: bool) -> jax.Array:
    return _forward(kernel, dtype, epsilon, by_group)[0]


def _forward(kernel: jax.Array, dtype: DTypeLike, epsilon: float, by_group: bool) -> tuple[jax.Array, Any]:
    del by_group
    centred = kernel - jnp.mean(kernel, _inputs(kernel), keepdims=True)
    scale = lax.rsqrt(jnp.sum(jnp.square(centred), _inputs(kernel), keepdims=True) + epsilon)
    return (scale * centred).astype(dtype), (kernel, scale)


def _backward(dtype: DTypeLike, epsilon: float, by_group: bool, kept: Any, gradient: jax.Array) -> tuple[jax.Array]:
    del dtype, epsilon
    kernel, scale = kept
    if by_group:
        # Where the gradient is itself a sum, XLA would make it anew from its parts for each of the uses below.
        gradient = gpu_barrier(gradient)
    fan_in = math.prod(kernel.shape[:-1])
    gradient = gradient.astype(kernel.dtype)
    standard = scale * (kernel - jnp.mean(kernel, _inputs(kernel), keepdims=True))
    parts = [each.reshape(fan_in, -1) for each in (gradient, gradient * standard)]
    if by_group:
        two_stages = partial(_sums_in_two_stages, parts)
        sums = device.by_device(cpu=partial(_sums, parts), gpu=two_stages, other=two_stages)
    else:
        sums = _sums(parts)
    one_each = (*(1 for _ in _inputs(kernel)), -1)
    total, along = (each.reshape(one_each) for each in sums)
    return (scale * (gradient - total / fan_in - standard * along),)


_standardize.defvjp(_forward, _backward)


def _sums(parts: list[jax.Array]) -> list[jax.Array]:
    return [jnp.sum(each, axis=0) for each in parts]


def _sums_in_two_stages(parts: list[jax.Array]) -> list[jax.Array]:
    """Output channels are next to each other in memory: few threads would each go through all the F rows."""
    fan_in = len(parts[0])
    rows = max(n for n in range(1, ROWS + 1) if fan_in % n == 0)
    if rows > 1:
        parts = [jnp.sum(each.reshape(fan_in // rows, rows, -1), axis=1) for each in parts]
        parts = lax.optimization_barrier(parts)  # a sum of sums would be made one again
    return _sums(parts)


def _inputs(kernel: jax.Array) -> tuple[int, ...]:
    """All axes but that of the output channels."""
    return tuple(range(kernel.ndim - 1))
