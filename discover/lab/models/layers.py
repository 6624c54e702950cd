"""Layers that the models share: convolution (with weight standardization), dropout.

Parameters are float32; ``dtype`` is the type of the computation. Every convolution goes through one
replaceable function, so that an optimizer that needs one weight gradient per group can bring its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax
from jax.typing import DTypeLike

from discover import grouped_conv_general_dilated
from discover.gpu.dense import grouped_dot_general
from discover.lab.models.standardization import standardize

ConvFn = Callable[..., jax.Array]
"""A function with the signature of :func:`jax.lax.conv_general_dilated`."""

linear = partial(nnx.Linear, dot_general=grouped_dot_general)
"""An affine layer."""

he_normal = nnx.initializers.variance_scaling(2.0, "fan_out", "normal")


def conv_as_matmul(
    lhs: jax.Array,
    rhs: jax.Array,
    window_strides: Sequence[int],
    padding: str | Sequence[tuple[int, int]],
    *,
    dimension_numbers: tuple[str, str, str] | None = None,
) -> jax.Array:
    """A convolution (NHWC, HWIO) as one matrix product of shifted copies of the image.

    On a CPU, XLA runs convolutions inside loops with a plain nest of loops, about nine times slower than outside
    (measured with jax 0.10), and convolutions with a batch of kernels slower still. Matrix products do not suffer, and
    under ``vmap`` over groups their weight gradient is simply batched. The price is memory: the kernel's height x width
    times the image.
    """
    if dimension_numbers not in (None, ("NHWC", "HWIO", "NHWC")):
        raise ValueError(f"conv_as_matmul is for NHWC images and HWIO kernels, got {dimension_numbers}")
    height, width, _, outputs = rhs.shape
    if isinstance(padding, str):
        padding = lax.padtype_to_pads(lhs.shape[1:3], (height, width), window_strides, padding)
    padded = jnp.pad(lhs, ((0, 0), *padding, (0, 0)))
    down, across = window_strides
    rows = (padded.shape[1] - height) // down + 1
    columns = (padded.shape[2] - width) // across + 1
    shifted = [
        padded[:, i : i + down * (rows - 1) + 1 : down, j : j + across * (columns - 1) + 1 : across, :]
        for i in range(height)
        for j in range(width)
    ]
    patches = jnp.concatenate(shifted, axis=-1)
    return grouped_dot_general(patches, rhs.reshape(-1, outputs), (((3,), (0,)), ((), ())))


class Conv(nnx.Module):
    """A two-dimensional convolution without bias, NHWC, "SAME" padding."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        kernel_size: int,
        *,
        stride: int = 1,
        weight_standardization: bool = False,
        dtype: DTypeLike = jnp.float32,
        conv_general_dilated: ConvFn | None = None,
        rngs: nnx.Rngs,
    ):
        shape = (kernel_size, kernel_size, in_features, out_features)
        self.kernel = nnx.Param(he_normal(rngs.params(), shape, jnp.float32))
        self.stride = stride
        self.weight_standardization = weight_standardization
        self.dtype = dtype
        self.conv_general_dilated = conv_general_dilated or lax.conv_general_dilated

    def __call__(self, x: jax.Array) -> jax.Array:
        kernel = self.kernel[...]
        if self.weight_standardization:
            by_group = self.conv_general_dilated is grouped_conv_general_dilated
            kernel = standardize(kernel, dtype=self.dtype, by_group=by_group)
        return self.conv_general_dilated(
            x.astype(self.dtype),
            kernel.astype(self.dtype),
            (self.stride, self.stride),
            "SAME",
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        )


def drop(x: jax.Array, rate: float, key: jax.Array | None) -> jax.Array:
    """Zeroes entries with probability ``rate`` and rescales the others; without a key it changes nothing."""
    if key is None or rate == 0.0:
        return x
    keep = jax.random.bernoulli(key, 1.0 - rate, x.shape)
    return jnp.where(keep, x / (1.0 - rate), jnp.zeros_like(x))


def fold(key: jax.Array | None, number: int) -> jax.Array | None:
    """The key of the ``number``-th part of a model, or None where there is no key."""
    return None if key is None else jax.random.fold_in(key, number)


def channels_of(input_shape: tuple[int, ...]) -> int:
    """The channels of images (H, W, C); raises a ValueError for examples that are not images."""
    if len(input_shape) != 3:
        raise ValueError(f"convolutions need images of shape (H, W, C), got shape {input_shape}")
    return input_shape[-1]


def check_sizes(depth: int, width: int, dropout: float, *, least_depth: int = 1) -> None:
    """Raises a ValueError for a network of no width, of no depth, or that drops everything."""
    if depth < least_depth:
        raise ValueError(f"model.depth must be at least {least_depth}, got {depth}")
    if width < 1:
        raise ValueError(f"model.width must be at least 1, got {width}")
    if not 0 <= dropout < 1:
        raise ValueError(f"model.dropout must be in [0, 1), got {dropout}")
