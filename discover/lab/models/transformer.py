"""A small transformer that reads text byte by byte: the next byte at every place, or the class of the whole."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from discover.lab.models.layers import check_sizes, drop, fold

BYTES = 256


class Block(nnx.Module):
    """Attention, then two affine layers, each on the normalized sum so far."""

    def __init__(self, width: int, heads: int, *, dtype: DTypeLike, rngs: nnx.Rngs):
        self.heads = heads
        self.norms = nnx.List([nnx.LayerNorm(width, dtype=dtype, rngs=rngs) for _ in range(2)])
        self.query, self.key, self.value, self.mix = (
            nnx.Linear(width, width, use_bias=False, dtype=dtype, rngs=rngs) for _ in range(4)
        )
        self.up, self.down = (
            nnx.Linear(width, 4 * width, dtype=dtype, rngs=rngs),
            nnx.Linear(4 * width, width, dtype=dtype, rngs=rngs),
        )

    def __call__(self, x: jax.Array, seen: jax.Array, rate: float, key: jax.Array | None) -> jax.Array:
        """``seen`` [b or 1, 1, L, L] says which places each place looks at."""
        y = self.norms[0](x)
        query, keys, values = (
            layer(y).reshape(*y.shape[:2], self.heads, -1) for layer in (self.query, self.key, self.value)
        )
        found = jax.nn.dot_product_attention(query, keys, values, mask=seen)
        x = x + drop(self.mix(found.reshape(x.shape)), rate, fold(key, 0))
        return x + drop(self.down(jax.nn.gelu(self.up(self.norms[1](x)))), rate, fold(key, 1))


class Transformer(nnx.Module):
    """``depth`` blocks of ``width`` features on the bytes of a text, [b, L], which may end in zeros.

    With ``next_byte`` it gives logits [b, L, 256]: for every byte, from those before it. Else logits [b, num_classes],
    from the mean over the text.
    """

    def __init__(
        self,
        input_shape: tuple[int, ...],
        num_classes: int,
        *,
        next_byte: bool = False,
        depth: int = 2,
        width: int = 64,
        heads: int = 4,
        dropout: float = 0.0,
        dtype: DTypeLike = jnp.float32,
        rngs: nnx.Rngs,
    ):
        check_sizes(depth, width, dropout)
        if heads < 1 or width % heads:
            raise ValueError(f"model.width must be a multiple of model.heads, got {width} and {heads}")
        if len(input_shape) != 1:
            raise ValueError(f"the transformer reads text, examples of shape (bytes,), got shape {input_shape}")
        self.next_byte, self.dropout_rate = next_byte, dropout
        small = nnx.initializers.normal(0.02)
        self.bytes = nnx.Embed(BYTES, width, dtype=dtype, embedding_init=small, rngs=rngs)
        self.places = nnx.Embed(input_shape[0], width, dtype=dtype, embedding_init=small, rngs=rngs)
        self.blocks = nnx.List([Block(width, heads, dtype=dtype, rngs=rngs) for _ in range(depth)])
        self.norm = nnx.LayerNorm(width, dtype=dtype, rngs=rngs)
        self.head = nnx.Linear(width, BYTES if next_byte else num_classes, dtype=dtype, rngs=rngs)

    def __call__(self, x: jax.Array, key: jax.Array | None = None) -> jax.Array:
        """Returns logits in float32; dropout only with a key."""
        text = x.astype(jnp.int32)
        length = text.shape[1]
        if self.next_byte:
            text = jnp.pad(text[:, :-1], ((0, 0), (1, 0)))  # a byte is guessed before it is seen
            seen = jnp.tril(jnp.ones((length, length), bool))[None, None]
        else:
            seen = (text > 0)[:, None, None, :] | jnp.eye(length, dtype=bool)
        y = self._read(text) + self.places(jnp.arange(length))
        for number, block in enumerate(self.blocks):
            y = block(y, seen, self.dropout_rate, fold(key, number))
        y = self.norm(y)
        if not self.next_byte:
            written = (text > 0)[..., None]
            y = jnp.sum(y * written, axis=1) / jnp.maximum(jnp.sum(written, axis=1), 1)
        return self.head(y).astype(jnp.float32)

    def _read(self, text: jax.Array) -> jax.Array:
        """Each byte's row of the table, as a product: exactly a lookup.

        A lookup's gradient adds up thousands of rows of the same few bytes, which GPUs do one after the other
        (https://github.com/jax-ml/jax/issues/38806).
        """
        table = jnp.asarray(self.bytes.embedding[...], self.bytes.dtype)
        return jnp.dot(jax.nn.one_hot(text, BYTES, dtype=table.dtype), table, precision="highest")
