"""ResNet-v1 with bottlenecks, group norm and weight standardization: the paper's ImageNet model."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from discover.lab.models.group_norm import group_norm
from discover.lab.models.layers import Conv, ConvFn, channels_of, check_sizes, drop

BLOCKS = {14: (1, 1, 1, 1), 26: (2, 2, 2, 2), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}
GROUPS = 32


class Bottleneck(nnx.Module):
    """1x1, 3x3 (with the stride), 1x1 to four times the width; the last norm starts at 0."""

    def __init__(self, in_features: int, features: int, *, stride: int, conv: dict[str, Any]):
        dtype, rngs = conv["dtype"], conv["rngs"]
        self.conv1 = Conv(in_features, features, 1, **conv)
        self.norm1 = group_norm(features, GROUPS, dtype=dtype, rngs=rngs)
        self.conv2 = Conv(features, features, 3, stride=stride, **conv)
        self.norm2 = group_norm(features, GROUPS, dtype=dtype, rngs=rngs)
        self.conv3 = Conv(features, 4 * features, 1, **conv)
        self.norm3 = group_norm(4 * features, GROUPS, zero_scale=True, dtype=dtype, rngs=rngs)
        changes = stride != 1 or in_features != 4 * features
        self.shortcut = Conv(in_features, 4 * features, 1, stride=stride, **conv) if changes else None
        self.shortcut_norm = group_norm(4 * features, GROUPS, dtype=dtype, rngs=rngs) if changes else None

    def __call__(self, x: jax.Array) -> jax.Array:
        residual = x
        if self.shortcut is not None and self.shortcut_norm is not None:
            residual = self.shortcut_norm(self.shortcut(x))
        y = jax.nn.relu(self.norm1(self.conv1(x)))
        y = jax.nn.relu(self.norm2(self.conv2(y)))
        return jax.nn.relu(residual + self.norm3(self.conv3(y)))


class ResNet(nnx.Module):
    """ResNet-v1-``depth`` for images [b, H, W, C]: 25.6M parameters at depth 50 and 1,000 classes.

    Args as of :func:`build_network`: ``depth`` is 14, 26, 50, 101 or 152, ``width`` the channels of the first stage (64
    in the paper), ``dropout`` comes before the last layer (the paper has none).
    """

    def __init__(
        self,
        input_shape: tuple[int, ...],
        num_classes: int,
        *,
        depth: int = 50,
        width: int = 64,
        dropout: float = 0.0,
        dtype: DTypeLike = jnp.float32,
        conv_general_dilated: ConvFn | None = None,
        rngs: nnx.Rngs,
    ):
        check_sizes(depth, width, dropout)
        if depth not in BLOCKS:
            raise ValueError(f"depth of a ResNet must be one of {', '.join(map(str, BLOCKS))}, got {depth}")
        conv: dict[str, Any] = {
            "weight_standardization": True,
            "dtype": dtype,
            "conv_general_dilated": conv_general_dilated,
            "rngs": rngs,
        }
        self.stem = Conv(channels_of(input_shape), width, 7, stride=2, **conv)
        self.stem_norm = group_norm(width, GROUPS, dtype=dtype, rngs=rngs)
        features, blocks = width, []
        for stage, count in enumerate(BLOCKS[depth]):
            for block in range(count):
                stride = 2 if stage > 0 and block == 0 else 1
                blocks.append(Bottleneck(features, width * 2**stage, stride=stride, conv=conv))
                features = 4 * width * 2**stage
        self.blocks = nnx.List(blocks)
        self.head = nnx.Linear(features, num_classes, dtype=dtype, rngs=rngs)
        self.dropout_rate = dropout

    def __call__(self, x: jax.Array, key: jax.Array | None = None) -> jax.Array:
        """Returns logits [b, num_classes] in float32; dropout only with a key."""
        y = jax.nn.relu(self.stem_norm(self.stem(x)))
        y = nnx.max_pool(y, (3, 3), strides=(2, 2), padding="SAME")
        for block in self.blocks:
            y = block(y)
        y = drop(jnp.mean(y, axis=(1, 2)), self.dropout_rate, key)
        return self.head(y).astype(jnp.float32)
