"""The GPU kernels equal the plain versions to rounding (here in Pallas's interpreter), and lower for CUDA."""

import functools
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

from discover.optim import discover, family, leaves, split_kernel, update_kernel
from discover.optim.weight_gradient import Tiles, Window, choose_tiles, grouped_weight_gradient

pytestmark = pytest.mark.float32


def batch(num_groups, num_clusters, shape, buffer_dtype, estimate=False):
    rng = np.random.default_rng(num_groups)
    ids = jnp.asarray(rng.integers(-1, num_clusters, num_groups), jnp.int32)
    sizes = jnp.asarray(rng.integers(0, 4, num_groups))
    seen = jnp.asarray(rng.integers(1, 50, num_clusters), jnp.float32) if estimate else None
    weights, _ = family.batch_weights(
        ids, sizes, jnp.full(num_clusters, 1 / num_clusters), seen, correction=0.2, rate=family.proportional_rate(0.9)
    )
    grads = rng.normal(size=(num_groups, *shape))
    grads[~np.asarray(weights.valid)] = np.nan
    mean, buffers = rng.normal(size=shape), rng.normal(size=(num_clusters, *shape))
    return weights, jnp.asarray(grads, jnp.float32), jnp.asarray(mean, jnp.float32), jnp.asarray(buffers, buffer_dtype)


@pytest.mark.parametrize(
    ("num_groups", "num_clusters", "shape", "dtype", "estimate"),
    [
        (1, 3, (3, 3, 2, 5), jnp.float32, False),
        (4, 5, (37, 11), jnp.float32, True),
        (8, 3, (600,), jnp.bfloat16, False),
        (5, 100, (), jnp.float32, False),
    ],
)
@pytest.mark.parametrize("affine", [False, True])
def test_the_update_kernel_equals_the_rule(num_groups, num_clusters, shape, dtype, estimate, affine):
    case = batch(num_groups, num_clusters, shape, dtype, estimate)
    if affine:
        case = (*case, family.Affine(0.3, jnp.linspace(-1, 1, case[2].size).reshape(shape).astype(jnp.float32)))
    plain = family.apply_rule(*case)
    kernel = update_kernel.apply_rule(update_kernel.pack(case[0]), *case[1:], interpret=True)
    for name, expected, actual in zip(("direction", "mean", "buffers"), plain, kernel):
        assert actual.shape == expected.shape
        assert actual.dtype == expected.dtype
        wide = [np.asarray(a, np.float32) for a in (actual, expected)]
        tolerance = 1e-2 if name == "buffers" and dtype == jnp.bfloat16 else 2e-6
        np.testing.assert_allclose(*wide, atol=tolerance, err_msg=name)


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
    ("image", "window"),
    [
        ((8, 8), Window((3, 3), (1, 1), ((1, 1), (1, 1)))),
        ((8, 8), Window((3, 3), (2, 2), ((0, 1), (0, 1)))),
        ((9, 8), Window((5, 3), (2, 2), ((2, 2), (1, 1)))),
        ((6, 10), Window((1, 3), (1, 1), ((0, 0), (2, 0)))),
        ((9, 5), Window((3, 1), (2, 1), ((0, 0), (0, 0)))),
    ],
)
def test_the_weight_gradient_kernel_equals_the_convolutions(image, window):
    rng = np.random.default_rng(0)
    sizes = [(n + sum(p) - t) // s + 1 for n, t, s, p in zip(image, *window)]
    x = jnp.asarray(rng.normal(size=(2, 2, *image, 16)), jnp.float32)
    dy = jnp.asarray(rng.normal(size=(2, 2, *sizes, 24)), jnp.float32)
    positions = 2 * sizes[0] * sizes[1]
    for parts in (n for n in (1, 2, 5, 8) if positions % n == 0):  # also such that a part begins within an image
        tiles = Tiles(32, 16, positions // parts, 4, 2, 1)
        kernel = grouped_weight_gradient(x, dy, window, tiles, parts=parts, interpret=True)
        np.testing.assert_allclose(kernel, reference(x, dy, window), atol=1e-4)


def test_the_kernels_lower_for_cuda_at_the_papers_shapes():
    def shaped(*shape, dtype=jnp.bfloat16):
        return jax.ShapeDtypeStruct(shape, dtype)

    window = Window((3, 3), (1, 1), ((1, 1), (1, 1)))
    for size, channels in ((32, 160), (16, 320), (8, 640)):
        tiles = choose_tiles(window, channels, channels, 32 * size * size)
        x = shaped(8, 32, size, size, channels)
        traced = jax.jit(lambda x, dy, t=tiles: grouped_weight_gradient(x, dy, window, t)).trace(x, x)
        assert "grouped_weight_gradient" in traced.lower(lowering_platforms=("cuda",)).as_text()
    weights, *_ = batch(8, 10, (5,), jnp.float32)
    case = (
        update_kernel.pack(weights),
        shaped(8, 1000),
        shaped(1000, dtype=jnp.float32),
        shaped(10, 1000, dtype=jnp.float32),
    )
    assert (
        "discover_update"
        in jax.jit(update_kernel.apply_rule).trace(*case).lower(lowering_platforms=("cuda",)).as_text()
    )
    joined = (shaped(100 * 640, dtype=jnp.float32), shaped(10, 100 * 640, dtype=jnp.float32))
    cut = jax.jit(lambda mean, buffers: split_kernel.split(mean, buffers, 100 * [640])).trace(*joined)
    assert cut.lower(lowering_platforms=("cuda",)).as_text().count("discover_split") >= 1


def test_shapes_that_the_kernel_cannot_cut_up_are_left_to_the_library():
    window = Window((3, 3), (1, 1), ((1, 1), (1, 1)))
    assert choose_tiles(window, 3, 16, 1024) is None
    assert choose_tiles(window, 16, 10, 1024) is None
    assert choose_tiles(window, 16, 16, 100) is None


@pytest.mark.parametrize(("small", "expected"), [(0, [(), (3, 5), (7,)]), (3 * 7, [(3, 5), (8,)]), (2**18, [(23,)])])
@pytest.mark.parametrize("l2", [0.0, 0.1])
def test_on_a_gpu_small_parameters_take_the_kernel_together_and_the_same_step(monkeypatch, small, expected, l2):
    rng = np.random.default_rng(0)
    params = {"scale": jnp.ones(7), "kernel": jnp.ones((3, 5)), "shift": jnp.ones(())}
    grads = jax.tree.map(lambda p: jnp.asarray(rng.normal(size=(4, *p.shape)), jnp.float32), params)
    grads["kernel"] = grads["kernel"].astype(jnp.bfloat16)  # as matrices of a network in bfloat16
    ids, sizes = jnp.array([2, 0, 2, 1]), jnp.array([3, 2, 1, 0])
    tx = discover(0.1, family.Clusters.uniform(3), beta=0.9, nu=0.7, l2=l2)

    def two_steps():
        _, state = tx.update(grads, tx.init(params), params, cluster_ids=ids, group_sizes=sizes)
        return tx.update(grads, state, params, cluster_ids=ids, group_sizes=sizes)

    plain = two_steps()
    shapes, kernel = [], update_kernel.apply_rule

    def counted(scalars, grads, mean, *rest):
        shapes.append(mean.shape)
        return kernel(scalars, grads, mean, *rest, block=8, interpret=True)

    monkeypatch.setattr(leaves, "SMALL", small)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(update_kernel, "apply_rule", counted)
    monkeypatch.setattr(split_kernel, "split", functools.partial(split_kernel.split, block=8, interpret=True))
    fast = two_steps()
    assert sorted(shapes) == sorted(2 * expected)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), fast, plain)


@settings(deadline=None, max_examples=15)
@given(
    sizes=st.lists(st.sampled_from([1, 3, 8, 21]), min_size=1, max_size=7),
    num_clusters=st.integers(1, 3),
    most_parts=st.integers(1, 8),
)
def test_the_split_kernel_cuts_a_joined_parameter_into_its_parts(sizes, num_clusters, most_parts):
    total = sum(sizes)
    mean = jnp.arange(total, dtype=jnp.float32)
    buffers = jnp.arange(num_clusters * total, dtype=jnp.bfloat16).reshape(num_clusters, total)
    with mock.patch.object(split_kernel, "MOST_PARTS", most_parts):
        means, parts = split_kernel.split(mean, buffers, sizes, block=8, interpret=True)
    ends = np.cumsum(sizes)[:-1]
    for expected, actual in zip((*np.split(mean, ends), *np.split(buffers, ends, axis=1)), (*means, *parts)):
        np.testing.assert_array_equal(expected, actual)
