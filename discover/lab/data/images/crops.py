"""Crops and flips on the device, in integers only: the same key gives the same image on every kind of hardware.

Every function takes one group, images [b, H, W, C], and works inside `jit` and under `vmap` over groups. Random choices
are made from random *bits* and table look-ups, never by comparing computed floats, and resizing is done in fixed point.
So nothing depends on how a backend rounds, fuses or approximates.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from discover.lab.data.errors import DataError

_AREAS, _RATIOS = 256, 64  # the grid of crop areas and aspect ratios
_FIXED = 8  # bits of the fixed-point positions: a 256th of a pixel


def random_below(key: jax.Array, bound: jax.Array | int, shape: tuple[int, ...] = ()) -> jax.Array:
    """Integers uniform on 0…bound−1 to within bound/2³²; `bound` may be an array of that shape, at most 2¹⁶."""
    bits = jax.random.bits(key, shape, jnp.uint32)
    bound = jnp.asarray(bound, dtype=jnp.uint32)
    # (bits · bound) >> 32 in 32-bit pieces: exact, and free of the slow division of a remainder.
    low = (bits & 0xFFFF) * bound
    high = (bits >> 16) * bound
    return ((high + (low >> 16)) >> 16).astype(jnp.int32)


def flip(key: jax.Array, images: jax.Array) -> jax.Array:
    """Mirror each image left to right with probability ½."""
    _check_images(images)
    mirrored = jax.random.bits(key, (images.shape[0],), jnp.uint32) & 1
    return jnp.where(mirrored[:, None, None, None] == 1, images[:, :, ::-1], images)


def pad_and_crop(key: jax.Array, images: jax.Array, padding: int = 4) -> jax.Array:
    """Pad with `padding` zeros on every side, and cut a random window of the old size out, one for each image."""
    _check_images(images)
    if padding < 0:
        raise DataError(f"padding must not be negative, got {padding}")
    if padding == 0:
        return images
    count, height, width, channels = images.shape
    padded = jnp.pad(images, ((0, 0), (padding, padding), (padding, padding), (0, 0)))
    corners = random_below(key, 2 * padding + 1, (count, 2))

    def cut(image, corner):
        return jax.lax.dynamic_slice(image, (corner[0], corner[1], 0), (height, width, channels))

    return jax.vmap(cut)(padded, corners)


@functools.lru_cache(maxsize=64)
def crop_sizes(height: int, width: int) -> NDArray[np.int32]:
    """The window sizes that an Inception-style crop chooses from, int32 [K, 2], each equally likely.

    The area is uniform on 8% to all of the image and the logarithm of the aspect ratio uniform on ¾ to 4⁄3; both on a
    fine grid, and windows that do not fit the image are left out, which is what drawing again until one fits amounts
    to. If none fits, the whole image is the only window.
    """
    areas = 0.08 + 0.92 * (np.arange(_AREAS) + 0.5) / _AREAS
    logs = np.log(3 / 4) + np.log((4 / 3) / (3 / 4)) * (np.arange(_RATIOS) + 0.5) / _RATIOS
    pixels, aspects = areas[:, None] * height * width, np.exp(logs)[None, :]
    heights, widths = np.rint(np.sqrt(pixels / aspects)), np.rint(np.sqrt(pixels * aspects))
    fits = (heights >= 1) & (widths >= 1) & (heights <= height) & (widths <= width)
    sizes = np.stack([heights[fits], widths[fits]], axis=1).astype(np.int32)
    return sizes if len(sizes) else np.array([[height, width]], dtype=np.int32)


def inception_crop(key: jax.Array, images: jax.Array, size: int) -> jax.Array:
    """Cut a window of random area and aspect ratio out of each uint8 image, and resize it (bilinear) to size×size."""
    _check_images(images)
    _check_pixels(images)
    count, height, width, _ = images.shape
    table = jnp.asarray(crop_sizes(height, width))
    pick, place = jax.random.split(key)
    windows = table[random_below(pick, len(table), (count,))]
    room = jnp.array([height, width]) - windows + 1
    corners = random_below(place, room, (count, 2))
    return jax.vmap(functools.partial(resize_window, size=(size, size)))(images, corners, windows)


def center_crop(images: jax.Array, size: int) -> jax.Array:
    """The central square of 0.875 (224 of 256) of the shorter side, resized (bilinear) to size×size; for evaluation."""
    _check_images(images)
    _check_pixels(images)
    _, height, width, _ = images.shape
    scale = 0.875 * min(height / size, width / size)
    window = np.maximum(1, np.rint([size * scale, size * scale])).astype(np.int32)
    corner = (np.array([height, width]) - window) // 2
    resize = functools.partial(resize_window, corner=jnp.asarray(corner), window=jnp.asarray(window), size=(size, size))
    return jax.vmap(resize)(images)


def resize_window(image: jax.Array, corner: jax.Array, window: jax.Array, size: tuple[int, int]) -> jax.Array:
    """Resize a window of one image by bilinear interpolation, in fixed point.

    Output pixel o of a side lies at ((2o + 1)·window − size)/(2·size) in the window, in pixels; positions are rounded
    down to a 256th of a pixel, and clamped to the window. There is no smoothing when shrinking.
    """
    _check_pixels(image)
    if max(image.shape[:2]) * max(size) > 1 << 22:
        raise DataError(f"resizing {image.shape[0]}×{image.shape[1]} images to {size} is beyond 32-bit fixed point")
    rows, row_next, row_weight = _positions(corner[0], window[0], size[0])
    cols, col_next, col_weight = _positions(corner[1], window[1], size[1])
    one = 1 << _FIXED
    row_weight, col_weight = row_weight[:, None, None], col_weight[None, :, None]

    def along(row):
        pixels = image[row]
        left, right = pixels[:, cols].astype(jnp.int32), pixels[:, col_next].astype(jnp.int32)
        return left * (one - col_weight) + right * col_weight

    total = along(rows) * (one - row_weight) + along(row_next) * row_weight
    return ((total + (1 << (2 * _FIXED - 1))) >> (2 * _FIXED)).astype(jnp.uint8)


def _positions(corner: jax.Array, window: jax.Array, size: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    """For each output pixel of a side: the pixel before it, the one after it, and the weight of the latter (of 256)."""
    out = jnp.arange(size, dtype=jnp.int32)
    fixed = ((2 * out + 1) * window * (1 << (_FIXED - 1))) // size - (1 << (_FIXED - 1))
    fixed = jnp.clip(fixed, 0, (window - 1) << _FIXED)
    before = fixed >> _FIXED
    after = jnp.minimum(before + 1, window - 1)
    return corner + before, corner + after, fixed & ((1 << _FIXED) - 1)


def _check_images(images: jax.Array) -> None:
    if images.ndim != 4:
        raise DataError(f"crops and flips need images [b, H, W, C], got an array of shape {images.shape}")


def _check_pixels(images: jax.Array) -> None:
    """Fixed point is for whole pixel values: floats in [0, 1] would all be rounded to 0."""
    if images.dtype != jnp.uint8:
        raise DataError(f"resizing needs uint8 images (0…255), got {images.dtype}: resize before scaling")
