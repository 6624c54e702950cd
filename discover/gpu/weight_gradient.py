"""One weight gradient per group of a convolution, as one GPU kernel instead of one library call per group.

For x [G, b, H, W, C], dy [G, b, H', W', O] and a window of h × w taps with strides s and padding p,

    dW[g, i, j, c, o] = Σ_{n, u, v} x[g, n, u·s + i − p, v·s + j − p, c] · dy[g, n, u, v, o]

is for each group a matrix product over its b·H'·W' positions, in which pixels outside the image are zero. With channels
last, the w taps of one row lie next to each other in memory (w·C numbers from the window's first pixel on), so they
form one side of the product without being gathered first. Where there are few channels, as in an image, one row would
leave most of a tile empty; then all rows of the window form that side together. One library call per group would leave
the GPU partly idle at the end of each and need the results stacked; here all groups share one launch and one output.
"""

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

# Of the GPU that the tiles were chosen on, an H200; on another one they may only cost some speed.
MULTIPROCESSORS = 132
TENSOR_RATE = 5e14  # operations a second that the kernel reaches when the GPU is full
MEMORY_RATE = 4.3e12  # bytes a second
MOST_PARTS = 64  # of a group
MOST_TAPS = 30  # along an axis: the kernel has a bit for each


class Window(NamedTuple):
    """A two-dimensional convolution's window."""

    taps: tuple[int, int]
    strides: tuple[int, int]
    padding: tuple[tuple[int, int], tuple[int, int]]


class Tiles(NamedTuple):
    """How the product is cut up."""

    rows: int  # of taps × channels
    columns: int  # of outputs
    positions: int  # summed at a time
    warps: int
    stages: int
    at_once: int  # how many fit on a multiprocessor


def choose_tiles(window: Window, channels: int, outputs: int, positions: int) -> Tiles | None:
    """The tiles measured fastest on an H200 (docs/notes/kernels.md), or None where the kernel does not fit."""
    if max(window.taps) > MOST_TAPS or (channels % 16 and channels > 16) or outputs % 16 or positions % 64:
        return None
    channels = _padded(channels)
    side = _tap_rows_together(window, channels) * window.taps[1] * channels
    if channels < 16 and side > 128:
        return Tiles(256, 64, 32, 4, 4, 2)
    if side <= 64 or (side % 128 and outputs == 64):
        return Tiles(64, 64 if outputs >= 64 else 32, 64, 4, 4, 3)
    if side >= 256 and outputs % 256 == 0:
        return Tiles(128, 256, 64, 8, 3, 1)
    if outputs % 128 == 0:
        return Tiles(128, 128, 64, 4, 3, 2) if window.taps[1] > 1 else Tiles(64, 128, 64, 4, 4, 2)
    if 128 < outputs < 256:
        return Tiles(128, 256, 64, 8, 3, 1)
    return Tiles(128, 64, 64, 4, 4, 2)


def choose_parts(window: Window, tiles: Tiles, x_shape: tuple[int, ...], outputs: int, positions: int) -> int:
    """Into how many parts to cut each group, so that the last wave of tiles does not leave the GPU half empty.

    Parts are summed afterwards, so they cost a pass over their sums: the estimate weighs one against the other.
    """
    num_groups, *_, channels = x_shape
    weights = _weights(window, channels, outputs)
    one_part = num_groups * math.prod(_blocks(window, tiles, channels, outputs))
    at_once = MULTIPROCESSORS * tiles.at_once

    def seconds(parts):
        busy = one_part * parts / at_once / -(-one_part * parts // at_once)
        sums = 2 * 4 * num_groups * parts * weights if parts > 1 else 0
        return 2 * num_groups * positions * weights / (TENSOR_RATE * busy) + sums / MEMORY_RATE

    allowed = [n for n in range(1, MOST_PARTS + 1) if positions % (n * tiles.positions) == 0]
    return min(allowed, key=seconds)


def grouped_weight_gradient(
    x: jax.Array, dy: jax.Array, window: Window, tiles: Tiles, *, parts: int | None = None, interpret: bool = False
) -> jax.Array:
    """dW [G, h, w, C, O] from x [G, b, H, W, C] and dy [G, b, H', W', O]; summed in float32, in x's dtype."""
    num_groups, images, *_, channels = x.shape
    positions, outputs = images * dy.shape[2] * dy.shape[3], dy.shape[-1]
    if parts is None:
        parts = choose_parts(window, tiles, x.shape, outputs, positions)
    if positions % (parts * tiles.positions):
        raise ValueError(f"{positions} positions do not divide into {parts} parts of tiles of {tiles.positions}")
    wide = _padded(channels)
    x = jnp.pad(x, ((0, 0),) * 4 + ((0, wide - channels),))
    row_blocks, column_blocks, window_blocks = _blocks(window, tiles, channels, outputs)
    kernel = functools.partial(
        _kernel,
        window=window,
        together=_tap_rows_together(window, wide),
        tiles=tiles,
        image=x.shape[2:],
        result=dy.shape[2:],
        positions=positions // parts,
    )
    call = pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct(
            (num_groups * parts * _weights(window, channels, outputs),), x.dtype if parts == 1 else jnp.float32
        ),
        grid=(row_blocks, column_blocks, num_groups * parts * window_blocks),
        compiler_params=plgpu.CompilerParams(num_warps=tiles.warps, num_stages=tiles.stages),
        interpret=interpret,
        name="grouped_weight_gradient",
    )
    grads = call(x.reshape(-1), dy.reshape(-1)).reshape(num_groups, parts, *window.taps, wide, outputs)
    grads = grads[..., :channels, :]
    return grads[:, 0] if parts == 1 else jnp.sum(grads, axis=1).astype(x.dtype)


def fits_in_int32(x: jax.Array, dy: jax.Array, window: Window, tiles: Tiles) -> bool:
    """Whether the kernel, which counts in int32, can count the numbers of its operands and of its result."""
    *_, channels = x.shape
    outputs, positions = dy.shape[-1], math.prod(dy.shape[1:-1])
    parts = choose_parts(window, tiles, x.shape, outputs, positions)
    result = x.shape[0] * parts * _weights(window, channels, outputs)
    return max(x.size // channels * _padded(channels), dy.size, result) < 2**31


def _weights(window: Window, channels: int, outputs: int) -> int:
    """How many numbers one part of a group's gradient has, those of added channels among them."""
    return math.prod(window.taps) * _padded(channels) * outputs


def _blocks(window: Window, tiles: Tiles, channels: int, outputs: int) -> tuple[int, int, int]:
    """How many tiles one part of a group needs: along the taps and channels, along the outputs, for rows of taps."""
    together = _tap_rows_together(window, _padded(channels))
    side = together * window.taps[1] * _padded(channels)
    return pl.cdiv(side, tiles.rows), pl.cdiv(outputs, tiles.columns), window.taps[0] // together


def _padded(channels: int) -> int:
    """The channels with zeros added, so that those of a pixel can be loaded at once: 8 bytes or more."""
    return channels if channels > 16 else max(4, 1 << (channels - 1).bit_length())


def _tap_rows_together(window: Window, channels: int) -> int:
    """How many rows of the window are one side of the product: one, or all of them where the channels are few."""
    return window.taps[0] if channels < 16 else 1


def _kernel(x_ref, dy_ref, out_ref, *, window, together, tiles, image, result, positions):
    (tap_rows, tap_columns), (stride_y, stride_x), ((top, _), (left, _)) = window
    height, width, channels = image
    out_height, out_width, outputs = result
    one_row = tap_columns * channels  # of the window, next to each other in memory
    blocks = tap_rows // together  # of the window's rows
    part, first_tap_row = pl.program_id(2) // blocks, pl.program_id(2) % blocks
    rows = pl.program_id(0) * tiles.rows + jnp.arange(tiles.rows)  # (tap row, tap in the row, channel)
    columns = pl.program_id(1) * tiles.columns + jnp.arange(tiles.columns)
    row_inside, column_inside = rows < together * one_row, columns < outputs
    # Which taps of the row are inside the image, a bit for each: one mask for all the channels of a tap, so that the
    # compiler can still load 16 bytes at a time. `lax.div` because `//` would also see to negative numbers.
    tap_row = lax.div(rows, one_row) if together > 1 else 0
    tap = jnp.where(row_inside, jnp.left_shift(1, lax.div(rows, channels) - tap_row * tap_columns), 0)
    offset = tap_row * (width * channels - one_row) + rows

    def add_positions(step, total):
        position = part * positions + step * tiles.positions + jnp.arange(tiles.positions)
        number, place = lax.div(position, out_height * out_width), lax.rem(position, out_height * out_width)
        y = lax.div(place, out_width) * stride_y + first_tap_row - top
        x = lax.rem(place, out_width) * stride_x - left
        first = ((number * height + y) * width + x) * channels
        inside = _taps_inside(x, tap_columns, width)
        if together == 1:
            inside = jnp.where((y >= 0) & (y < height), inside, 0)
        mask = (inside[:, None] & tap[None, :]) != 0
        if together > 1:
            mask &= (_taps_inside(y, together, height)[:, None] & jnp.left_shift(1, tap_row)[None, :]) != 0
        pixels = plgpu.load(x_ref.at[first[:, None] + offset[None, :]], mask=mask, other=0)
        cotangents = plgpu.load(
            dy_ref.at[(position * outputs)[:, None] + columns[None, :]], mask=column_inside[None, :], other=0
        )
        return total + jnp.dot(pixels.T, cotangents, preferred_element_type=jnp.float32)

    nothing = jnp.zeros((tiles.rows, tiles.columns), jnp.float32)
    total = lax.fori_loop(0, positions // tiles.positions, add_positions, nothing)
    place = (part * tap_rows + first_tap_row) * one_row + rows
    plgpu.store(
        out_ref.at[(place * outputs)[:, None] + columns[None, :]],
        total.astype(out_ref.dtype),
        mask=row_inside[:, None] & column_inside[None, :],
    )


def _taps_inside(first, taps, size):
    """Bit t: whether first + t is in [0, size); of the bits below `taps`."""
    from_bit, to_bit = jnp.clip(-first, 0, taps), jnp.clip(size - first, 0, taps)
    return jnp.left_shift(1, to_bit) - jnp.left_shift(1, from_bit)
