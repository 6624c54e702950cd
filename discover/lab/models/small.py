"""Small models for small data: logistic regression, a multi-layer perceptron, a convolutional network."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from discover.lab.models.group_norm import group_norm
from discover.lab.models.layers import Conv, ConvFn, channels_of, check_sizes, drop, fold, linear


class Logistic(nnx.Module):
    """Multinomial logistic regression: one affine layer on the flattened input, started at zero."""

    def __init__(
        self, input_shape: tuple[int, ...], num_classes: int, *, dtype: DTypeLike = jnp.float32, rngs: nnx.Rngs
    ):
        self.head = linear(
            math.prod(input_shape), num_classes, dtype=dtype, kernel_init=nnx.initializers.zeros, rngs=rngs
        )

    def __call__(self, x: jax.Array, key: jax.Array | None = None) -> jax.Array:
        """Returns logits [b, num_classes] in float32."""
        del key
        return self.head(x.reshape(x.shape[0], -1)).astype(jnp.float32)


class MLP(nnx.Module):
    """``depth`` hidden layers of ``width`` units with relu, then one affine layer."""

    def __init__(
        self,
        input_shape: tuple[int, ...],
        num_classes: int,
        *,
        depth: int = 1,
        width: int = 128,
        dropout: float = 0.0,
        dtype: DTypeLike = jnp.float32,
        rngs: nnx.Rngs,
    ):
        check_sizes(depth, width, dropout, least_depth=0)
        sizes = [math.prod(input_shape), *([width] * depth)]
        self.layers = nnx.List([linear(a, b, dtype=dtype, rngs=rngs) for a, b in pairwise(sizes)])
        self.head = linear(sizes[-1], num_classes, dtype=dtype, rngs=rngs)
        self.dropout_rate = dropout

    def __call__(self, x: jax.Array, key: jax.Array | None = None) -> jax.Array:
        """Returns logits [b, num_classes] in float32; dropout only with a key."""
        y = x.reshape(x.shape[0], -1)
        for number, layer in enumerate(self.layers):
            y = drop(jax.nn.relu(layer(y)), self.dropout_rate, fold(key, number))
        return self.head(y).astype(jnp.float32)


class CNN(nnx.Module):
    """``depth`` 3x3 convolutions (from the second on, half the image, twice the channels), mean, affine layer.

    Each convolution is followed by group norm (8 groups) and relu.
    """

    def __init__(
        self,
        input_shape: tuple[int, ...],
        num_classes: int,
        *,
        depth: int = 3,
        width: int = 16,
        dropout: float = 0.0,
        dtype: DTypeLike = jnp.float32,
        conv_general_dilated: ConvFn | None = None,
        rngs: nnx.Rngs,
    ):
        check_sizes(depth, width, dropout)
        conv: dict[str, Any] = {"dtype": dtype, "conv_general_dilated": conv_general_dilated, "rngs": rngs}
        sizes = [channels_of(input_shape), *(width * 2**layer for layer in range(depth))]
        self.convs = nnx.List([Conv(a, b, 3, stride=2 if n else 1, **conv) for n, (a, b) in enumerate(pairwise(sizes))])
        self.norms = nnx.List([group_norm(size, 8, dtype=dtype, rngs=rngs) for size in sizes[1:]])
        self.head = linear(sizes[-1], num_classes, dtype=dtype, rngs=rngs)
        self.dropout_rate = dropout

    def __call__(self, x: jax.Array, key: jax.Array | None = None) -> jax.Array:
        """Returns logits [b, num_classes] in float32; dropout only with a key."""
        for conv, norm in zip(self.convs, self.norms):
            x = jax.nn.relu(norm(conv(x)))
        y = drop(jnp.mean(x, axis=(1, 2)), self.dropout_rate, key)
        return self.head(y).astype(jnp.float32)
