"""The GPU kernels in Pallas's interpreter, against the plain versions, and lowered for CUDA."""

import functools
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from discover import Clusters, discover, discover_igt, rule, scale_by_discover
from discover.context import Move, Offset
from discover.gpu import parameters, split_kernel, update_kernel
from discover.gpu.parameters import Parameter
from discover.gpu.stacked import update_stacked
from discover.gpu.weight_gradient import Window, choose_tiles, grouped_weight_gradient
from discover.quantized import Draw, quantize
from tests.library.gpu.on_gpu import assert_same, compiled, lowered_for_cuda, random_tree

pytestmark = pytest.mark.float32


def batch(num_groups, num_clusters, shape, buffer_dtype, estimate=False):
    rng = np.random.default_rng(num_groups)
    ids = jnp.asarray(rng.integers(-1, num_clusters, num_groups), jnp.int32)
    sizes = jnp.asarray(rng.integers(0, 4, num_groups))
    seen = jnp.asarray(rng.integers(1, 50, (2, num_clusters)), jnp.float32) if estimate else None
    probs, step = jnp.full(num_clusters, 1 / num_clusters), jnp.int32(7)
    weights, _ = rule.batch_weights(ids, sizes, probs, seen, step, correction=0.2, rate=rule.proportional_rate(0.9))
    grads = rng.normal(size=(num_groups, *shape))
    grads[~np.asarray(weights.valid)] = np.nan
    mean, buffers = rng.normal(size=shape), rng.normal(size=(num_clusters, *shape))
    if buffer_dtype == jnp.int8:
        stored = quantize(jnp.asarray(buffers, jnp.float32), Draw(3, jnp.arange(num_clusters)))
    else:
        stored = jnp.asarray(buffers, buffer_dtype)
    return weights, jnp.asarray(grads, jnp.float32), jnp.asarray(mean, jnp.float32), stored


@pytest.mark.parametrize(
    ("num_groups", "num_clusters", "shape", "dtype", "estimate", "asked"),
    [
        (1, 3, (3, 3, 2, 5), jnp.float32, False, "direction"),
        (4, 5, (37, 11), jnp.float32, True, "offset"),
        (8, 3, (600,), jnp.bfloat16, False, "penalty and move"),
        (5, 100, (), jnp.float32, False, "move"),
        (4, 5, (37, 11), jnp.int8, True, "penalty and move"),
        (2, 3, (), jnp.int8, False, "direction"),
    ],
)
def test_the_update_kernel_equals_the_plain_rule(num_groups, num_clusters, shape, dtype, estimate, asked):
    weights, *arrays = batch(num_groups, num_clusters, shape, dtype, estimate)
    param = jnp.linspace(-1, 1, arrays[1].size).reshape(shape).astype(jnp.float32)
    offset = Offset(0.3, 0.5, param) if asked in ("offset", "penalty and move") else None
    move = Move(param, 0.1, 0.2) if asked.endswith("move") else None
    one = Parameter(None, *arrays, offset, move)
    plain = compiled(lambda: update_stacked(weights, one, on_cpu=False))
    kernel = compiled(lambda: update_kernel.update_in_kernels(update_kernel.pack(weights), [one], interpret=True)[0])
    names = ("result", "mean", *(("codes", "scales") if dtype == jnp.int8 else ("buffers",)))
    for name, expected, actual in zip(names, *map(jax.tree.leaves, (plain, kernel)), strict=True):
        assert actual.shape == expected.shape
        assert actual.dtype == expected.dtype
        wide = [np.asarray(a, np.float32) for a in (actual, expected)]
        tolerance = 1e-2 if name == "buffers" and dtype == jnp.bfloat16 else 2e-6
        np.testing.assert_allclose(*wide, atol=tolerance, err_msg=name)


@pytest.mark.parametrize("estimate", [False, True])
@pytest.mark.parametrize(("num_groups", "shape"), [(1, (6, 5)), (1, (7,)), (1, ()), (8, (6, 5)), (8, ())])
def test_what_is_added_to_the_buffers_on_cpus_makes_them_what_is_written_elsewhere(num_groups, shape, estimate):
    weights, *arrays = batch(num_groups, 3, shape, jnp.float32, estimate)
    one = Parameter(None, *arrays, None, None)
    cpu = compiled(lambda: parameters.as_vector(lambda row: update_stacked(weights, row, on_cpu=True), one))
    for actual, expected in zip(cpu, compiled(lambda: update_stacked(weights, one, on_cpu=False)), strict=True):
        np.testing.assert_allclose(actual, expected, atol=2e-6)


def weight_gradients_lower():
    same = Window((3, 3), (1, 1), ((1, 1), (1, 1)))
    for images, size, channels, outputs, window in (
        (32, 32, 160, 160, same),
        (32, 16, 320, 320, same),
        (32, 8, 640, 640, same),
        (32, 32, 3, 16, same),
        (64, 112, 3, 64, Window((7, 7), (2, 2), ((2, 3), (2, 3)))),
    ):
        tiles = choose_tiles(window, channels, outputs, images * size * size)
        stride = window.strides[0]
        x = jax.ShapeDtypeStruct((8, images, stride * size, stride * size, channels), jnp.bfloat16)
        dy = jax.ShapeDtypeStruct((8, images, size, size, outputs), jnp.bfloat16)
        gradient = jax.jit(lambda x, dy, w=window, t=tiles: grouped_weight_gradient(x, dy, w, t))
        assert "grouped_weight_gradient" in lowered_for_cuda(gradient, x, dy)


def test_the_weight_gradient_lowers_for_cuda_where_64_bits_are_enabled():
    with jax.enable_x64(True):
        weight_gradients_lower()


def test_the_kernels_lower_for_cuda_at_the_papers_shapes():
    def shaped(*shape, dtype=jnp.bfloat16):
        return jax.ShapeDtypeStruct(shape, dtype)

    weight_gradients_lower()
    weights, *_ = batch(8, 10, (5,), jnp.float32)
    case = (shaped(8, 1000), shaped(1000, dtype=jnp.float32), shaped(10, 1000, dtype=jnp.float32))
    scalars = update_kernel.pack(weights)

    def update(*case, move):
        asked = (Offset(1.0, 0.1, case[1]), Move(case[1], 0.1, 0.1)) if move else (None, None)
        one = Parameter(None, *case, *asked)
        return update_kernel.update_in_kernels(scalars, [one, one])

    for move in (False, True):
        assert "discover_update" in lowered_for_cuda(jax.jit(functools.partial(update, move=move)), *case)
    joined = (shaped(1, 100 * 640, dtype=jnp.float32), shaped(10, 100 * 640, dtype=jnp.float32))
    cut = jax.jit(lambda *arrays: split_kernel.split(arrays, 100 * [640]))
    kernels = sum(e.primitive.name == "pallas_call" for e in cut.trace(*joined).jaxpr.eqns)
    assert kernels == -(-2 * 100 // split_kernel.MOST_PARTS) == 2
    assert "discover_split" in lowered_for_cuda(cut, *joined)


def one_step(tx, params, grads):
    """One step from a state that is not zero."""
    ids, sizes = jnp.array([2, 0, 2, 1]), jnp.array([3, 2, 1, 0])
    state = jax.tree.map(lambda s: s + jnp.ones_like(s), tx.init(params))
    return tx.update(grads, state, params, cluster_ids=ids, group_sizes=sizes)


@pytest.mark.parametrize(("small", "expected"), [(0, [(), (3, 5), (7,)]), (2**18, [(23,)])])
def test_on_a_gpu_small_parameters_take_the_kernel_together_and_the_same_step(monkeypatch, gpu, small, expected):
    rng = np.random.default_rng(0)
    params, grads = random_tree(rng), random_tree(rng, 4)
    grads["kernel"] = grads["kernel"].astype(jnp.bfloat16)  # as matrices of a network in bfloat16
    tx = discover(0.1, Clusters.uniform(3), beta=0.9, nu=0.7, l2=0.1)
    step = functools.partial(one_step, tx)
    plain = compiled(step, params, grads)
    monkeypatch.setattr(parameters, "SMALL", small)
    shapes = gpu()
    assert_same(compiled(step, params, grads), plain)
    assert sorted(shapes) == expected


@pytest.mark.slow
def test_joined_parameters_of_several_networks_are_updated_side_by_side(gpu):
    rng = np.random.default_rng(0)
    params, grads = random_tree(rng, 2), random_tree(rng, 2, 4)
    tx = discover_igt(0.1, Clusters.uniform(3), l2=0.1)
    step = jax.vmap(functools.partial(one_step, tx))
    plain = compiled(step, params, grads)
    shapes = gpu()
    assert_same(compiled(step, params, grads), plain)
    assert set(shapes) == {(23,)}


def test_parameters_that_the_kernel_cannot_take_are_not_joined(gpu):
    params = {"a": jnp.ones(3, jnp.complex64), "b": jnp.ones((2, 2), jnp.complex64), "c": jnp.ones(4), "d": jnp.ones(5)}
    grads = jax.tree.map(lambda p: jnp.stack([p, 2 * p, 3 * p, 4 * p]), params)
    tx = scale_by_discover(Clusters.uniform(3))
    step = functools.partial(one_step, tx)
    plain = compiled(step, params, grads)
    shapes = gpu()
    assert_same(compiled(step, params, grads), plain)
    assert set(shapes) == {(9,)}


@pytest.mark.parametrize(
    ("sizes", "num_rows", "most_parts"),
    [([21], [1], 9), ([3, 8, 8, 1, 21, 5, 2], [2, 1, 3], 7)],
)
def test_the_split_kernel_cuts_joined_arrays_into_their_parts(sizes, num_rows, most_parts):
    dtypes = (jnp.float32, jnp.bfloat16, jnp.float16)
    numbers = [jnp.arange(n * sum(sizes)).reshape(n, -1) % 251 for n in num_rows]  # whole numbers that bfloat16 has
    arrays = [each.astype(dtype) for each, dtype in zip(numbers, dtypes)]
    with mock.patch.object(split_kernel, "MOST_PARTS", most_parts):
        found = compiled(lambda *arrays: split_kernel.split(arrays, sizes, block=8, interpret=True), *arrays)
    assert len(found) == len(arrays)
    for array, parts in zip(arrays, found):
        for expected, actual in zip(np.split(array, np.cumsum(sizes)[:-1], axis=1), parts, strict=True):
            np.testing.assert_array_equal(expected, actual)


def test_parameters_of_a_kind_that_are_not_large_share_kernels(monkeypatch):
    weights, *_ = batch(4, 3, (1,), jnp.float32)
    everyone = []
    for shape in [(20,), (3, 5), (2, 2), (4, 2), (1,), (3, 4)]:  # of odd sizes two, and one that decays
        _, grads, mean, buffers = batch(4, 3, shape, jnp.bfloat16)
        param = mean + 1
        move = Move(param, 0.3, 0.2 if shape == (2, 2) else None)
        everyone.append(Parameter(None, grads, mean, buffers, Offset(1.0, 0.1, param), move))

    def update(some):
        return update_kernel.update_in_kernels(update_kernel.pack(weights), some, block=8, interpret=True)

    apart = compiled(lambda: [update([one])[0] for one in everyone])
    for large, most, kernels in ((2**20, 8, 3), (15, 8, 4), (0, 8, 6), (2**20, 2, 4)):
        monkeypatch.setattr(update_kernel, "LARGE", large)
        monkeypatch.setattr(update_kernel, "MOST_TOGETHER", most)
        program = jax.make_jaxpr(lambda: update(everyone))()
        launches = [str(e.params["name"]) for e in program.jaxpr.eqns if e.primitive.name == "pallas_call"]
        assert (launches.count("discover_update"), launches.count("discover_mean")) == (kernels, 1)
    assert_same(compiled(lambda: update(everyone)), apart)
