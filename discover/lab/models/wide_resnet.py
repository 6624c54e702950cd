"""WideResNet-d-k (Zagoruyko and Komodakis) with group norm, as in the paper's CIFAR-10 experiments."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from discover.lab.models.group_norm import group_norm
from discover.lab.models.layers import Conv, ConvFn, channels_of, check_sizes, drop, fold

FIRST_GROUPS = 16  # in the first norm of each block
OTHER_GROUPS = 32


class WideBlock(nnx.Module):
    """Norm, relu, conv, norm, relu, dropout, conv, and a shortcut (1x1 where the shape changes)."""

    def __init__(self, in_features: int, features: int, *, stride: int, dropout: float, conv: dict[str, Any]):
        dtype, rngs = conv["dtype"], conv["rngs"]
        self.norm1 = group_norm(in_features, FIRST_GROUPS, dtype=dtype, rngs=rngs)
        self.conv1 = Conv(in_features, features, 3, stride=stride, **conv)
        self.norm2 = group_norm(features, OTHER_GROUPS, dtype=dtype, rngs=rngs)
        self.conv2 = Conv(features, features, 3, **conv)
        changes = stride != 1 or in_features != features
        self.shortcut = Conv(in_features, features, 1, stride=stride, **conv) if changes else None
        self.dropout_rate = dropout

    def __call__(self, x: jax.Array, key: jax.Array | None) -> jax.Array:
        y = jax.nn.relu(self.norm1(x))
        residual = x if self.shortcut is None else self.shortcut(y)
        y = jax.nn.relu(self.norm2(self.conv1(y)))
        return residual + self.conv2(drop(y, self.dropout_rate, key))


class WideResNet(nnx.Module):
    """WideResNet-``depth``-``width`` for images [b, H, W, C].

    ``depth`` is 6n+2, or 6n+4 for those who also count the shortcuts, with n blocks in each of the three
    stages: 26 (the paper's name) and 28 are the same network, of 36.5M parameters at width 10.

    Args as of :func:`build_network`: ``width`` is the factor on the channels 16, 32, 64, ``dropout`` comes between the
    convolutions of each block.
    """

    def __init__(
        self,
        input_shape: tuple[int, ...],
        num_classes: int,
        *,
        depth: int = 26,
        width: int = 10,
        dropout: float = 0.3,
        dtype: DTypeLike = jnp.float32,
        conv_general_dilated: ConvFn | None = None,
        rngs: nnx.Rngs,
    ):
        check_sizes(depth, width, dropout)
        blocks, left = divmod(depth - 2, 6)
        if blocks < 1 or left not in (0, 2):
            raise ValueError(f"depth of a WideResNet must be 6n+2 or 6n+4 (16, 22, 26, 28, ...), got {depth}")
        conv: dict[str, Any] = {"dtype": dtype, "conv_general_dilated": conv_general_dilated, "rngs": rngs}
        self.stem = Conv(channels_of(input_shape), 16, 3, **conv)
        features, stages = 16, []
        for stage in range(3):
            for block in range(blocks):
                stride = 2 if stage > 0 and block == 0 else 1
                wide = 16 * 2**stage * width
                stages.append(WideBlock(features, wide, stride=stride, dropout=dropout, conv=conv))
                features = wide
        self.blocks = nnx.List(stages)
        self.norm = group_norm(features, OTHER_GROUPS, dtype=dtype, rngs=rngs)
        self.head = nnx.Linear(features, num_classes, dtype=dtype, rngs=rngs)

    def __call__(self, x: jax.Array, key: jax.Array | None = None) -> jax.Array:
        """Returns logits [b, num_classes] in float32; dropout only with a key."""
        y = self.stem(x)
        for number, block in enumerate(self.blocks):
            y = block(y, fold(key, number))
        y = jnp.mean(jax.nn.relu(self.norm(y)), axis=(1, 2))
        return self.head(y).astype(jnp.float32)
