"""One weight gradient per group: the kernel equals the convolutions, and is cut up so that it fills the GPU."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from discover.gpu.weight_gradient import (
    MULTIPROCESSORS,
    Tiles,
    Window,
    choose_parts,
    choose_tiles,
    fits_in_int32,
    grouped_weight_gradient,
)

pytestmark = pytest.mark.float32


def reference(x, dy, window):
    shape = jax.ShapeDtypeStruct((*window.taps, x.shape[-1], dy.shape[-1]), x.dtype)

    def one(x, dy):
        def conv(w):
            return lax.conv_general_dilated(
                x, w, window.strides, window.padding, dimension_numbers=("NHWC", "HWIO", "NHWC")
            )

        return jax.linear_transpose(conv, shape)(dy)[0]

    return jax.vmap(one)(x, dy)


@pytest.mark.parametrize(
    ("image", "channels", "window"),
    [
        ((8, 8), 16, Window((3, 3), (1, 1), ((1, 1), (1, 1)))),
        pytest.param(*((8, 8), 16, Window((3, 3), (2, 2), ((0, 1), (0, 1)))), marks=pytest.mark.slow),
        ((9, 8), 16, Window((5, 3), (2, 2), ((2, 2), (1, 1)))),
        pytest.param(*((6, 10), 16, Window((1, 3), (1, 1), ((0, 0), (2, 0)))), marks=pytest.mark.slow),
        pytest.param(*((9, 5), 16, Window((3, 1), (2, 1), ((0, 0), (0, 0)))), marks=pytest.mark.slow),
        ((10, 8), 3, Window((7, 7), (2, 2), ((2, 3), (2, 3)))),
        pytest.param(*((4, 6), 5, Window((7, 5), (1, 1), ((3, 3), (2, 2)))), marks=pytest.mark.slow),
        pytest.param(*((6, 10), 1, Window((1, 3), (1, 1), ((0, 0), (2, 0)))), marks=pytest.mark.slow),
    ],
)
def test_the_weight_gradient_kernel_equals_the_convolutions(image, channels, window):
    rng = np.random.default_rng(0)
    sizes = [(n + sum(p) - t) // s + 1 for n, t, s, p in zip(image, *window)]
    x = jnp.asarray(rng.normal(size=(2, 2, *image, channels)), jnp.float32)
    dy = jnp.asarray(rng.normal(size=(2, 2, *sizes, 24)), jnp.float32)
    positions = 2 * sizes[0] * sizes[1]
    for parts in (n for n in (1, 2, 5, 8) if positions % n == 0):  # also such that a part begins within an image
        tiles = Tiles(32, 16, positions // parts // (2 if positions // parts % 2 == 0 else 1), 4, 2, 1)
        kernel = grouped_weight_gradient(x, dy, window, tiles, parts=parts, interpret=True)
        np.testing.assert_allclose(kernel, reference(x, dy, window), atol=1e-4)


def test_shapes_that_the_kernel_cannot_cut_up_are_left_to_the_library():
    window = Window((3, 3), (1, 1), ((1, 1), (1, 1)))
    assert choose_tiles(window, 3, 16, 1024) is not None
    assert choose_tiles(window, 24, 16, 1024) is None
    assert choose_tiles(Window((1, 40), (1, 4), ((0, 0), (0, 0))), 16, 16, 1024) is None
    assert choose_tiles(Window((40, 1), (4, 1), ((0, 0), (0, 0))), 1, 16, 1024) is None
    assert choose_tiles(window, 16, 10, 1024) is None
    assert choose_tiles(window, 16, 16, 100) is None


@pytest.mark.parametrize(
    ("num_groups", "images", "size", "channels"), [(4, 64, 28, 128), (4, 64, 14, 256), (8, 32, 16, 320)]
)
def test_the_parts_of_a_group_are_equal_and_leave_no_multiprocessor_idle_for_long(num_groups, images, size, channels):
    window = Window((3, 3), (1, 1), ((1, 1), (1, 1)))
    positions = images * size * size
    tiles = choose_tiles(window, channels, channels, positions)
    parts = choose_parts(window, tiles, (num_groups, images, size, size, channels), channels, positions)
    assert positions % (parts * tiles.positions) == 0
    blocks = num_groups * parts * 3 * -(-3 * channels // tiles.rows) * -(-channels // tiles.columns)
    waves = blocks / (MULTIPROCESSORS * tiles.at_once)
    assert waves / np.ceil(waves) > 0.9


def test_an_images_window_is_cut_into_parts_as_one_side_of_the_product():
    window, positions = Window((7, 7), (2, 2), ((2, 3), (2, 3))), 64 * 112 * 112
    tiles = choose_tiles(window, 3, 64, positions)
    parts = choose_parts(window, tiles, (4, 64, 224, 224, 3), 64, positions)
    assert positions % (parts * tiles.positions) == 0
    assert tiles.rows >= 7 * 7 * 4  # with a fourth channel
    waves = 4 * parts / (MULTIPROCESSORS * tiles.at_once)  # a block for each part of a group
    assert waves / np.ceil(waves) > 0.9


def test_positions_that_do_not_divide_are_refused():
    window = Window((1, 1), (1, 1), ((0, 0), (0, 0)))
    x = jnp.ones((2, 1, 6, 6, 16))
    for tiles, parts in ((Tiles(16, 16, 8, 4, 2, 1), 1), (Tiles(16, 16, 4, 4, 2, 1), 5)):
        with pytest.raises(ValueError, match="36 positions do not divide"):
            grouped_weight_gradient(x, x, window, tiles, parts=parts, interpret=True)


@pytest.mark.parametrize(("size", "fits"), [(1000, True), (1024, False)])
def test_what_the_kernel_counts_contains_the_channels_that_it_adds(size, fits):
    window = Window((3, 3), (4, 4), ((0, 1), (0, 1)))
    x = jax.ShapeDtypeStruct((8, 32, size, size, 5), jnp.bfloat16)  # 5 channels become 8
    dy = jax.ShapeDtypeStruct((8, 32, size // 4, size // 4, 16), jnp.bfloat16)
    tiles = choose_tiles(window, 5, 16, 32 * (size // 4) ** 2)
    assert x.size < 2**31
    assert fits_in_int32(x, dy, window, tiles) == fits
