"""Rows of the buffers inside a kernel, which has one stretch of a parameter in hand: numbers, or codes with scales."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.pallas import triton as plgpu

from discover import quantized

# A kernel does not read again what it writes, so it need not stay in the cache.
EVICT = "evict_first"


class Plain:
    """A row is numbers of a dtype; `parts` is one array, [N, size].

    Args:
      index: counts the stretches.
      length: of a stretch.
      dtype: of the buffers.
    """

    def __init__(self, index: Any, length: int, dtype: Any):
        self.at, self.dtype = index * length + jnp.arange(length), dtype

    def load(self, parts: Sequence[Any], row: Any) -> list[jax.Array]:
        """A row as it is stored; of several, [R], all at once, in front of the other axes."""
        row, at = _each_at(row, self.at)
        return [plgpu.load(parts[0].at[row, at], mask=at < parts[0].shape[1], other=0.0)]

    def read(self, held: Sequence[jax.Array]) -> jax.Array:
        """The numbers that it stands for."""
        return held[0].astype(jnp.float32)

    def hold(self, value: jax.Array, step: Any, row: Any, start: Any) -> tuple[Sequence[jax.Array], jax.Array]:
        """What is stored of a value, and the value that this stands for."""
        del step, row, start
        held = [value.astype(self.dtype)]
        return held, self.read(held)

    def store(self, parts: Sequence[Any], row: Any, held: Sequence[jax.Array], writes: Any) -> None:
        mask = (self.at < parts[0].shape[1]) & writes
        plgpu.store(parts[0].at[row, self.at], held[0], mask=mask, eviction_policy=EVICT)


class InBlocks:
    """A row is codes and scales; `parts` are those of a `Quantized`. A stretch is whole blocks, `at` is [b, 32, 4]."""

    def __init__(self, index: Any, length: int):
        count = length // quantized.BLOCK
        self.blocks = index * count + _along(0, (count, 1, 1))
        self.words = self.blocks * quantized.BLOCK_WORDS + _along(1, (1, quantized.BLOCK_WORDS, 1))
        self.at = self.words * quantized.WORD + _along(2, (1, 1, quantized.WORD))

    def load(self, parts: Sequence[Any], row: Any) -> list[jax.Array]:
        held = []
        for ref, places, nothing in zip(parts, (self.words, self.blocks), (0, 0.0), strict=True):
            rows, at = _each_at(row, places)
            held.append(plgpu.load(ref.at[rows, at], mask=at < ref.shape[1], other=nothing))
        return held

    def read(self, held: Sequence[jax.Array]) -> jax.Array:
        return quantized.decoded(*held)

    def hold(self, value: jax.Array, step: Any, row: Any, start: Any) -> tuple[Sequence[jax.Array], jax.Array]:
        codes, scales = quantized.encoded(value, quantized.uniform(step, row, start + self.at, value.dtype))
        return [quantized.joined(codes), scales], quantized.meant(codes, scales)

    def store(self, parts: Sequence[Any], row: Any, held: Sequence[jax.Array], writes: Any) -> None:
        for ref, places, values in zip(parts, (self.words, self.blocks), held, strict=True):
            mask = (places < ref.shape[1]) & writes
            plgpu.store(ref.at[row, places], values, mask=mask, eviction_policy=EVICT)


def _each_at(row: Any, places: jax.Array) -> tuple[Any, jax.Array]:
    """One row at these places; several, [R], each at all of them."""
    if jnp.ndim(row) == 0:
        return row, places
    shape = (row.shape[0], *places.shape)
    rows = jnp.broadcast_to(row.reshape(-1, *(1,) * places.ndim), shape)
    return rows, jnp.broadcast_to(places[None], shape)


def _along(axis: int, shape: tuple[int, ...]) -> jax.Array:
    return lax.broadcasted_iota(jnp.int32, shape, axis)


def rows_of(index: Any, length: int, dtype: Any) -> Plain | InBlocks:
    """Rows of buffers in this dtype, int8 for `Quantized`."""
    return InBlocks(index, length) if dtype == jnp.int8 else Plain(index, length, dtype)


def stretch(length: int, dtype: Any) -> int:
    """The length, or what it takes to hold whole blocks."""
    return -(-length // quantized.BLOCK) * quantized.BLOCK if dtype == jnp.int8 else length


def parts_of(buffers: Any, size: int) -> list[jax.Array]:
    """The arrays that a kernel gets of the buffers of a parameter."""
    return list(buffers) if quantized.is_quantized(buffers) else [buffers.reshape(-1, size)]


def buffers_from(parts: Sequence[jax.Array], like: Any) -> Any:
    """The buffers again."""
    return quantized.Quantized(*parts) if quantized.is_quantized(like) else parts[0].reshape(like.shape)
