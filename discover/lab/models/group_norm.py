"""Group norm whose gradient needs one look at the activations for all of its sums.

For an image, a group of channels with M numbers, its mean m and r = (variance + ε)^(−1/2):

    x̂ = r·(x − m)                 y = γ x̂ + β
    s = Σ ∂y,  t = Σ ∂y·x̂         over the places of an image, for each channel
    ∂β = Σ s,  ∂γ = Σ t           over the images
    ∂x = r·(γ ∂y − a − x̂ b)       a = Σ γ s / M,  b = Σ γ t / M  over the channels of the group

Autodiff sums for ∂γ and ∂β over all images at once, which reads the activations again, and where every group of a batch
has a gradient of its own, in many short sums that a GPU is slow at. Sums by image are the same for any groups.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax
from jax.typing import DTypeLike

from discover.lab.models.gpu_barrier import gpu_barrier


class GroupNorm(nnx.GroupNorm):
    """`flax.nnx.GroupNorm` for images [b, ..., C], with float32 arithmetic and the gradient above.

    Differentiable in reverse mode (what training needs), and that gradient again, but not in forward mode.
    """

    def __call__(self, x: jax.Array, *, mask: jax.Array | None = None) -> jax.Array:
        if mask is not None:
            raise ValueError("this group norm takes no mask; flax.nnx.GroupNorm does")
        assert self.scale is not None
        assert self.bias is not None
        return normalize(x, self.scale[...], self.bias[...], self.num_groups, self.epsilon, dtype=self.dtype)


def normalize(
    x: jax.Array, scale: jax.Array, bias: jax.Array, num_groups: int, epsilon: float, *, dtype: DTypeLike | None = None
) -> jax.Array:
    """y for x [b, ..., C] and parameters [C], in `dtype` or that of x."""
    places = math.prod(x.shape[1:-1])
    flat = x.reshape(len(x), places, x.shape[-1])
    y: Any = _normalize(flat, scale, bias, num_groups, epsilon, jnp.dtype(dtype or x.dtype))
    return y.reshape(x.shape)


@partial(jax.custom_vjp, nondiff_argnums=(3, 4, 5))
def _normalize(
    x: jax.Array, scale: jax.Array, bias: jax.Array, num_groups: int, epsilon: float, dtype: DTypeLike
) -> jax.Array:
    return _forward(x, scale, bias, num_groups, epsilon, dtype)[0]


def _forward(
    x: jax.Array, scale: jax.Array, bias: jax.Array, num_groups: int, epsilon: float, dtype: DTypeLike
) -> tuple[jax.Array, Any]:
    wide = _wide(x)
    sums = jnp.sum(wide, axis=1), jnp.sum(jnp.square(wide), axis=1)
    mean, square = (_over_groups(s, num_groups) / x.shape[1] for s in sums)
    inverse = lax.rsqrt(jnp.maximum(square - jnp.square(mean), 0) + epsilon)
    y = (wide - mean[:, None]) * (inverse * scale)[:, None] + bias
    return y.astype(dtype), (x, mean, inverse, scale)


def _backward(
    num_groups: int, epsilon: float, dtype: DTypeLike, kept: Any, dy: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    del epsilon, dtype
    x, mean, inverse, scale = kept
    places = x.shape[1]
    normal, wide = (_wide(x) - mean[:, None]) * inverse[:, None], _wide(dy)
    s, t = jnp.sum(wide, axis=1), jnp.sum(wide * normal, axis=1)
    s, t = gpu_barrier((s, t))  # or XLA sums for ∂β and ∂γ over places and images at once, from the activations
    a, b = (_over_groups(scale * each, num_groups) / places for each in (s, t))
    dx = inverse[:, None] * (scale * wide - a[:, None] - normal * b[:, None])
    return dx.astype(x.dtype), jnp.sum(t, axis=0).astype(scale.dtype), jnp.sum(s, axis=0).astype(scale.dtype)


_normalize.defvjp(_forward, _backward)


def _over_groups(values: jax.Array, num_groups: int) -> jax.Array:
    """[b, C]: for each channel the mean over the channels of its group."""
    size = values.shape[-1] // num_groups
    return jnp.repeat(jnp.mean(values.reshape(len(values), num_groups, size), axis=-1), size, axis=-1)


def _wide(array: jax.Array) -> jax.Array:
    return array.astype(jnp.promote_types(array.dtype, jnp.float32))


def group_norm(
    features: int, groups: int, *, zero_scale: bool = False, dtype: DTypeLike = jnp.float32, rngs: nnx.Rngs
) -> GroupNorm:
    """Group norm with ``groups`` groups, or the largest number below that divides both it and ``features``."""
    scale = nnx.initializers.zeros if zero_scale else nnx.initializers.ones
    return GroupNorm(
        features, num_groups=math.gcd(groups, features), epsilon=1e-5, dtype=dtype, scale_init=scale, rngs=rngs
    )
