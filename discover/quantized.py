r"""Buffers in 8 bits: blocks of 128 numbers that share a scale, 1.03 bytes a number.

In a block with s = max|x|/127² a code c of −127 … 127 stands for s·c|c|: small numbers are near to each other, as they
are in gradients. Of the two codes around x, with k = ⌊√(|x|/s)⌋,

    |c| = k + 1  if  u < (|x|/s − k²)/(2k + 1),  else  k,        u uniform in [0, 1)        (Q1)

In the mean over u that is x: rounding adds noise to a buffer, and no drift. u is a function of the step, the cluster
and the place in the parameter, in whole numbers of 32 bits: every run, every device and a kernel draw the same.

The clusters of a batch are rounded one after the other, each with what those before it lack of ḡ, so that ḡ lacks one
rounding and not the sum of all. With p the largest of their probabilities, cluster k of the batch holds

    x_k = g_k + Σ_{j<k} (p_j/p)·(g_j − what is held of g_j)                                 (Q2)

Four codes make a word of 32 bits, as a GPU loads them; Pallas cannot reach beyond 2³¹ numbers of 8 bits.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

LARGEST = 127  # code
WORD = 4  # codes
BLOCK_WORDS = 32
BLOCK = WORD * BLOCK_WORDS
"""Numbers that share a scale."""
LEAST = 1e-36  # scale: below it 1/s is not a float32, and a block is zero


class Quantized(NamedTuple):
    """Numbers of some rows, usually the buffers of a parameter: a row for each cluster."""

    codes: Any  # int32 [N, words], four codes each; the parameter flattened, zeros at the end
    scales: Any  # float32 [N, blocks]

    @property
    def num_rows(self) -> int:
        return self.codes.shape[0]


class Draw(NamedTuple):
    """What u of (Q1) is a function of, besides the place."""

    step: Any  # int [], counts the steps
    rows: Any  # int [G], the clusters


def is_quantized(node: Any) -> bool:
    """For `jax.tree` functions, where a parameter's buffers are to be one thing."""
    return isinstance(node, Quantized)


def zeros(num_rows: int, size: int) -> Quantized:
    """Rows of zeros, of `size` numbers each."""
    return Quantized(
        jnp.zeros((num_rows, -(-size // WORD)), jnp.int32), jnp.zeros((num_rows, -(-size // BLOCK)), jnp.float32)
    )


def values_of(buffers: Any, like: Any) -> jax.Array:
    """The numbers that rows of buffers stand for, [N, ...], shaped and typed like a parameter's ḡ; plain ones too."""
    if not is_quantized(buffers):
        return buffers.astype(like.dtype)
    blocks = _in_blocks(buffers.codes, BLOCK_WORDS)
    values = decoded(blocks[..., None], buffers.scales.astype(like.dtype)[:, :, None, None])
    flat = values.reshape(buffers.num_rows, blocks.shape[1] * BLOCK)
    return flat[:, : like.size].reshape(buffers.num_rows, *like.shape)


def all_values(buffers: Any, mean: Any) -> Any:
    """`values_of` for trees: a state's buffers, and its ḡ."""
    return jax.tree.map(values_of, buffers, mean, is_leaf=is_quantized)


def quantize(values: jax.Array, draw: Draw) -> Quantized:
    """(Q1) for rows of numbers, [G, ...]."""
    num_rows, size = values.shape[0], math.prod(values.shape[1:])
    blocks = _in_blocks(values.reshape(num_rows, size), BLOCK)
    num_blocks = blocks.shape[1]
    place = jnp.arange(num_blocks * BLOCK, dtype=jnp.int32).reshape(1, num_blocks, BLOCK_WORDS, WORD)
    u = uniform(draw.step, draw.rows.reshape(num_rows, 1, 1, 1), place, values.dtype)
    codes, scales = encoded(blocks.reshape(num_rows, num_blocks, BLOCK_WORDS, WORD), u)
    words = joined(codes).reshape(num_rows, num_blocks * BLOCK_WORDS)
    return Quantized(words[:, : -(-size // WORD)], scales.reshape(num_rows, num_blocks).astype(jnp.float32))


def encoded(values: jax.Array, u: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(Q1) for blocks, [..., 32, 4]: the codes, still in the values' dtype, and the scales, [..., 1, 1]."""
    largest = jnp.max(jnp.max(jnp.abs(values), axis=-1, keepdims=True), axis=-2, keepdims=True)
    scale = jnp.minimum(largest, float(jnp.finfo(jnp.float32).max)) / LARGEST**2
    scale = jnp.where(scale < LEAST, 0, scale).astype(jnp.float32).astype(values.dtype)  # as it is stored
    size = jnp.abs(values) * jnp.where(scale > 0, 1 / jnp.where(scale > 0, scale, 1), 0)
    below = jnp.floor(jnp.sqrt(size))
    up = u * (2 * below + 1) < size - below * below
    return jnp.sign(values) * jnp.minimum(below + jnp.where(up, 1, 0), LARGEST), scale


def held_in_turn(
    values: Sequence[jax.Array], weights: Sequence[jax.Array], hold: Callable[[int, jax.Array], tuple[Any, jax.Array]]
) -> tuple[Sequence[Any], Sequence[jax.Array]]:
    """(Q2): what is stored for each group, and what it stands for.

    Args:
      values: g_k of each group.
      weights: p_k; 0 for a group that does not write.
      hold: (Q1) of a group's value: what is stored, and what it stands for.
    """
    largest = functools.reduce(jnp.maximum, weights)
    inverse = 1 / jnp.where(largest > 0, largest, 1)
    held, read, lacking = [], [], jnp.zeros_like(values[0])
    for k, (value, weight) in enumerate(zip(values, weights, strict=True)):
        stored, stands_for = hold(k, value + lacking)
        lacking += weight * inverse * (value - stands_for)
        held.append(stored)
        read.append(stands_for)
    return held, read


def meant(codes: jax.Array, scales: jax.Array) -> jax.Array:
    """What codes, in the dtype of the scales, stand for."""
    return scales * codes * jnp.abs(codes)


def joined(codes: jax.Array) -> jax.Array:
    """Words of codes, from [..., 4] to [..., 1]."""
    apart = (codes.astype(jnp.int32) & 255) << _shifts(codes.ndim)
    return jnp.sum(apart, axis=-1, keepdims=True, dtype=jnp.int32)


def decoded(words: jax.Array, scales: jax.Array) -> jax.Array:
    """What the codes of words [..., 1] stand for, [..., 4], in the dtype of the scales."""
    codes = (words << (24 - _shifts(words.ndim))) >> 24  # the sign is the highest bit
    return meant(codes.astype(scales.dtype), scales)


def _shifts(ndim: int) -> jax.Array:
    return 8 * jax.lax.broadcasted_iota(jnp.int32, (1,) * (ndim - 1) + (WORD,), ndim - 1)


def uniform(step: Any, row: Any, place: jax.Array, dtype: Any) -> jax.Array:
    """u of (Q1), a multiple of 2⁻²⁴ in [0, 1)."""
    here = _mixed(_bits(place) ^ _mixed(_bits(step)))
    bits = (here ^ _mixed(_bits(row) + jnp.uint32(0x9E3779B9))) * jnp.uint32(0x85EBCA6B)
    return (bits >> 8).astype(jnp.int32).astype(dtype) * dtype.type(2.0**-24)


def _bits(number: Any) -> jax.Array:
    return jnp.asarray(number).astype(jnp.int32).astype(jnp.uint32)


def _mixed(bits: jax.Array) -> jax.Array:
    """Every bit of the result depends on all bits (the constants are those of C. Wellons' "lowbias32")."""
    bits = (bits ^ (bits >> 16)) * jnp.uint32(0x7FEB352D)
    bits = (bits ^ (bits >> 15)) * jnp.uint32(0x846CA68B)
    return bits ^ (bits >> 16)


def _in_blocks(flat: jax.Array, length: int) -> jax.Array:
    """[N, size] as [N, blocks, length], zeros at the end."""
    num_rows, size = flat.shape
    return jnp.pad(flat, ((0, 0), (0, -size % length))).reshape(num_rows, -(-size // length), length)
