"""Mixup and CutMix on the device, with one mixing ratio per group.

A group's images are mixed with the same images in another order (each with the next one: groups are shuffled already),
and so are its labels, in the same proportion. The ratio λ is a multiple of 2⁻¹⁶ and pixels are whole numbers, so that
λ·x + (1−λ)·x′ is *exact* in float32: the same on CPU and GPU, fused or not.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from discover.lab.data.errors import DataError
from discover.lab.data.images.crops import random_below

RATIO_BITS = 16
_ONE = 1 << RATIO_BITS
_QUANTILES = 4096


@functools.lru_cache(maxsize=64)
def ratio_table(alpha: float) -> NDArray[np.int32]:
    """4,096 equally likely values of λ ~ Beta(α, α), as multiples of 2⁻¹⁶: the midpoints of its quantiles, int32.

    Drawing from a table keeps the draw exact on every backend; sampling a Beta on the device would not be.
    """
    if not 0 < alpha < np.inf:
        raise DataError(f"alpha must be positive and finite, got {alpha!r}")
    from scipy.special import betaincinv

    quantiles = betaincinv(alpha, alpha, (np.arange(_QUANTILES) + 0.5) / _QUANTILES)
    return np.rint(quantiles * _ONE).astype(np.int32)


def mixing_ratio(key: jax.Array, alpha: float = 1.0) -> jax.Array:
    """λ ~ Beta(α, α) as an integer 0…65536, to be divided by 2¹⁶."""
    return jnp.asarray(ratio_table(float(alpha)))[random_below(key, _QUANTILES)]


def mixup(key: jax.Array, images: jax.Array, labels: jax.Array, alpha: float = 1.0) -> tuple[jax.Array, jax.Array]:
    """Mixup (Zhang et al. 2017): x ← λx + (1−λ)x′, y ← λy + (1−λ)y′, one λ ~ Beta(α, α) for the group.

    Args:
        key: a `jax.random` key.
        images: uint8 [b, H, W, C]; or floats [b, …], without the promise of equality between backends.
        labels: class probabilities, float [b, C] (one-hot labels).
        alpha: α.

    Returns:
        Images, float32, in the unit of the given ones (0…255 for uint8), and labels, float32 [b, C].
    """
    _check_labels(images, labels)
    ratio = mixing_ratio(key, alpha)
    if images.dtype == jnp.uint8:
        whole = images.astype(jnp.int32)
        mixed = ratio * whole + (_ONE - ratio) * jnp.roll(whole, -1, axis=0)
        mixed = mixed.astype(jnp.float32) * (1.0 / _ONE)
    else:
        share = ratio.astype(jnp.float32) * (1.0 / _ONE)
        mixed = share * images + (1.0 - share) * jnp.roll(images, -1, axis=0)
    return mixed, _mix_labels(labels, ratio, RATIO_BITS)


def cutmix(key: jax.Array, images: jax.Array, labels: jax.Array, alpha: float = 1.0) -> tuple[jax.Array, jax.Array]:
    """CutMix (Yun et al. 2019): a box of each image is replaced by that box of the next, labels mixed by area.

    The box has sides √(1−λ)·H and √(1−λ)·W with λ ~ Beta(α, α), and a uniform center, cut off at the border; one box
    for the group. Labels are mixed with the share of the image that the box, as cut off, leaves.

    Args:
        key: a `jax.random` key.
        images: [b, H, W, C], any type.
        labels: class probabilities, float [b, C] (one-hot labels).
        alpha: α.

    Returns:
        Images of the same shape and type, and labels, float32 [b, C].
    """
    _check_labels(images, labels)
    if images.ndim != 4:
        raise DataError(f"CutMix needs images [b, H, W, C], got an array of shape {images.shape}")
    _, height, width, _ = images.shape
    pick, row_key, col_key = jax.random.split(key, 3)
    sides = jnp.asarray(_box_sides(height, width, float(alpha)))[random_below(pick, _QUANTILES)]
    centers = random_below(row_key, height), random_below(col_key, width)
    inside, lengths = [], []
    for center, side, length in zip(centers, sides, (height, width)):
        first = jnp.clip(center - side // 2, 0, length)
        last = jnp.clip(center - side // 2 + side, 0, length)
        place = jnp.arange(length)
        inside.append((place >= first) & (place < last))
        lengths.append(last - first)
    box = inside[0][None, :, None, None] & inside[1][None, None, :, None]
    mixed = jnp.where(box, jnp.roll(images, -1, axis=0), images)
    # The share that stays, in as many bits as 32-bit arithmetic leaves for images of this size.
    area = height * width
    bits = min(RATIO_BITS, 31 - area.bit_length())
    if bits < 8:
        raise DataError(f"CutMix takes images of at most {2**23 - 1} pixels, got {height}×{width}")
    kept = (area - lengths[0] * lengths[1]).astype(jnp.uint32)
    ratio = ((kept << bits) + area // 2) // area
    return mixed, _mix_labels(labels, ratio.astype(jnp.int32), bits)


@functools.lru_cache(maxsize=64)
def _box_sides(height: int, width: int, alpha: float) -> NDArray[np.int32]:
    """The box's height and width for each of the equally likely ratios, int32 [4096, 2]."""
    root = np.sqrt(1.0 - ratio_table(alpha) / _ONE)
    return np.stack([np.floor(height * root), np.floor(width * root)], axis=1).astype(np.int32)


def _mix_labels(labels: jax.Array, ratio: jax.Array, bits: int) -> jax.Array:
    """ratio/2^bits of the labels and the rest of the next ones'; exact where labels are one-hot."""
    scale = 1.0 / (1 << bits)
    labels = labels.astype(jnp.float32)
    share = ratio.astype(jnp.float32) * scale
    rest = ((1 << bits) - ratio).astype(jnp.float32) * scale
    return share * labels + rest * jnp.roll(labels, -1, axis=0)


def _check_labels(images: jax.Array, labels: jax.Array) -> None:
    if labels.ndim != 2 or labels.shape[0] != images.shape[0]:
        raise DataError(f"mixing needs labels [b, C] with b = {images.shape[0]}, got shape {labels.shape}")
