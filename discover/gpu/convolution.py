"""A convolution whose weight gradient splits by group at almost no cost.

`jax.vmap` of a gradient over groups turns each convolution's weight gradient into a convolution with feature
groups, which is slow on every backend. Everything else in a network batches well: with shared weights the forward
pass and the gradient of the input see one large batch. So only the weight gradient gets a batching rule of its
own: one ordinary convolution per group, and on a GPU one kernel for all groups (`weight_gradient.py`).
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_batching import custom_vmap

from discover.gpu import device, weight_gradient


def grouped_conv_general_dilated(
    lhs: jax.Array,
    rhs: jax.Array,
    window_strides: Sequence[int],
    padding: Any,
    lhs_dilation: Sequence[int] | None = None,
    rhs_dilation: Sequence[int] | None = None,
    dimension_numbers: Any = None,
    feature_group_count: int = 1,
    batch_group_count: int = 1,
    precision: Any = None,
    preferred_element_type: Any = None,
    out_sharding: Any = None,
) -> jax.Array:
    """`jax.lax.conv_general_dilated`, with a weight gradient that splits well under `group_value_and_grad`.

    The values and the gradients are the same. Use it wherever a convolution function can be handed in: flax
    nnx and linen take it as `Conv(..., conv_general_dilated=grouped_conv_general_dilated)`; in equinox or a model
    of your own call it in place of `lax.conv_general_dilated`.

    Call it on a whole group [b, ...]. Inside a map over single examples, as equinox models are often written, it is
    an ordinary convolution. It supports reverse-mode differentiation once (what training needs), not forward mode.

    Example:
      >>> from flax import nnx
      >>> layer = nnx.Conv(3, 8, (3, 3), conv_general_dilated=grouped_conv_general_dilated, rngs=nnx.Rngs(0))
    """
    if isinstance(padding, str):
        dims = lax.conv_dimension_numbers(lhs.shape, rhs.shape, dimension_numbers)
        kernel = [rhs.shape[i] for i in dims.rhs_spec[2:]]
        dilated = [(k - 1) * d + 1 for k, d in zip(kernel, rhs_dilation or (1,) * len(kernel))]
        padding = lax.padtype_to_pads([lhs.shape[i] for i in dims.lhs_spec[2:]], dilated, window_strides, padding)
    options = (
        tuple(window_strides),
        tuple((int(low), int(high)) for low, high in padding),
        None if lhs_dilation is None else tuple(lhs_dilation),
        None if rhs_dilation is None else tuple(rhs_dilation),
        lax.conv_dimension_numbers(lhs.shape, rhs.shape, dimension_numbers),
        feature_group_count,
        batch_group_count,
        precision,
        preferred_element_type,
        out_sharding,
    )
    return _conv(options, lhs, rhs)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _conv(options, lhs, rhs):
    return lax.conv_general_dilated(lhs, rhs, *options)


def _conv_forward(options, lhs, rhs):
    return _conv(options, lhs, rhs), (lhs, rhs)


def _conv_backward(options, saved, cotangent):
    lhs, rhs = saved
    (lhs_grad,) = jax.linear_transpose(lambda x: lax.conv_general_dilated(x, rhs, *options), lhs)(cotangent)
    return lhs_grad, _weight_gradient(options, rhs, lhs, cotangent)


_conv.defvjp(_conv_forward, _conv_backward)


def _weight_gradient(options, rhs, lhs, cotangent):
    def plain(lhs, cotangent):
        return jax.linear_transpose(lambda w: lax.conv_general_dilated(lhs, w, *options), rhs_shape)(cotangent)[0]

    def one_after_the_other(lhs, cotangent):
        return jnp.stack([plain(lhs[k], cotangent[k]) for k in range(lhs.shape[0])])

    rhs_shape = jax.ShapeDtypeStruct(rhs.shape, rhs.dtype)
    by_group = custom_vmap(plain)

    @by_group.def_vmap
    def _(axis_size, in_batched, lhs, cotangent):
        batch_axis = options[4].lhs_spec[0]
        if not all(in_batched) or lhs.shape[1 + batch_axis] == 1:  # the latter: a map over single examples, not groups
            axes = tuple(0 if batched else None for batched in in_batched)
            return jax.vmap(plain, axes)(lhs, cotangent), True
        kernel = None if axis_size == 1 else _kernel(options, rhs, lhs, cotangent)
        if kernel is None:
            return one_after_the_other(lhs, cotangent), True

        def by_library():
            return one_after_the_other(lhs, cotangent)

        return device.by_device(cpu=by_library, gpu=lambda: kernel(lhs, cotangent), other=by_library), True

    return by_group(lhs, cotangent)


def _kernel(options, rhs, lhs, cotangent):
    """The kernel for all groups at once, or None where it does not fit."""
    strides, padding, lhs_dilation, rhs_dilation, dims, feature_groups, batch_groups, *_ = options
    channels_last = lax.ConvDimensionNumbers((0, 3, 1, 2), (3, 2, 0, 1), (0, 3, 1, 2))
    undilated = all(d in (None, (1, 1)) for d in (lhs_dilation, rhs_dilation))
    if dims != channels_last or not undilated or feature_groups != 1 or batch_groups != 1:
        return None
    taps, channels, outputs = rhs.shape[:2], *rhs.shape[2:]
    positions = math.prod(cotangent.shape[1:-1])
    window = weight_gradient.Window(taps, strides, padding)
    tiles = weight_gradient.choose_tiles(window, channels, outputs, positions)
    half = {lhs.dtype, rhs.dtype, cotangent.dtype} in ({jnp.dtype(jnp.bfloat16)}, {jnp.dtype(jnp.float16)})
    if tiles is None or not half:
        return None
    if not weight_gradient.fits_in_int32(lhs, cotangent, window, tiles):
        return None
    return lambda lhs, cotangent: weight_gradient.grouped_weight_gradient(lhs, cotangent, window, tiles)
