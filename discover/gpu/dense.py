"""A matrix product whose weight gradient splits by group well on a CPU.

Under `group_value_and_grad` the weight gradient of a dense layer becomes one product for each group, and XLA for CPUs
turns the products as JAX writes them over to a library that is called group by group, and often after a copy of the
activations. The same products in another order of their axes run in one call. On other devices nothing is changed.
"""

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_batching import custom_vmap

from discover.gpu import device


def grouped_dot_general(lhs: jax.Array, rhs: jax.Array, dimension_numbers: Any, **options: Any) -> jax.Array:
    """`jax.lax.dot_general` of activations [..., I] and weights [I, O]; for the `dot_general` of flax's layers.

    The values and the gradients are the same. It supports reverse-mode differentiation once, not forward mode.
    """
    if rhs.ndim != 2 or dimension_numbers != (((lhs.ndim - 1,), (0,)), ((), ())):
        return lax.dot_general(lhs, rhs, dimension_numbers, **options)
    return _dot(tuple(sorted(options.items())), lhs, rhs)


def _product(options, lhs, rhs):
    return lax.dot_general(lhs, rhs, (((lhs.ndim - 1,), (0,)), ((), ())), **dict(options))


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _dot(options, lhs, rhs):
    return _product(options, lhs, rhs)


def _forward(options, lhs, rhs):
    return _dot(options, lhs, rhs), (lhs, rhs)


def _backward(options, saved, cotangent):
    lhs, rhs = saved
    (lhs_grad,) = jax.linear_transpose(lambda x: _product(options, x, rhs), lhs)(cotangent)
    return lhs_grad, _weight_gradient(options, rhs, lhs, cotangent)


_dot.defvjp(_forward, _backward)


def _weight_gradient(options, rhs, lhs, cotangent):
    def plain(lhs, cotangent):
        return jax.linear_transpose(lambda w: _product(options, lhs, w), shape)(cotangent)[0]

    shape = jax.ShapeDtypeStruct(rhs.shape, rhs.dtype)
    by_group = custom_vmap(plain)

    @by_group.def_vmap
    def _(axis_size, in_batched, lhs, cotangent):
        as_written = jax.vmap(plain, tuple(0 if batched else None for batched in in_batched))
        if not all(in_batched):
            return as_written(lhs, cotangent), True
        ways = {"gpu": lambda: as_written(lhs, cotangent), "other": lambda: as_written(lhs, cotangent)}
        return device.by_device(cpu=lambda: _in_one_call(lhs, cotangent).astype(rhs.dtype), **ways), True

    return by_group(lhs, cotangent)


def _in_one_call(lhs: jax.Array, cotangent: jax.Array) -> jax.Array:
    """[G, I, O] from activations [G, ..., I] and cotangents [G, ..., O]."""
    x, dy = (a.reshape(a.shape[0], math.prod(a.shape[1:-1]), a.shape[-1]) for a in (lhs, cotangent))
    (_, examples, inputs), outputs = x.shape, dy.shape[-1]
    # The narrower is turned over, behind a barrier: XLA would move the turn into the product.
    if inputs > outputs:
        turned = lax.optimization_barrier(jnp.swapaxes(dy, 1, 2))
        return jnp.swapaxes(lax.optimization_barrier(jnp.einsum("gob,gbi->goi", turned, x)), 1, 2)
    if examples <= outputs:
        return jnp.einsum("gib,gbo->gio", lax.optimization_barrier(jnp.swapaxes(x, 1, 2)), dy)
    return jnp.einsum("gbi,gbo->gio", x, dy)
