"""Damping of large parameters: what its products are taken from, and that all ways take the same."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import discover
from discover import sample
from discover.damping import damp
from discover.gpu import damping_kernel
from discover.quantized import Draw, quantize, values_of
from tests.library.gpu import on_gpu

SHAPE, SIZE = (50, 96), 4800
PROBS = np.array([0.4, 0.3, 0.2, 0.1])


@pytest.fixture
def few_are_enough(monkeypatch):
    """A parameter of 4,800 numbers is a large one: of 37 blocks and a half every fourth is taken."""
    monkeypatch.setattr(sample, "LEAST", 1200)


def buffers_and_direction(dtype):
    """Four buffers that share a part, and a direction with a part along their differences."""
    rng = np.random.default_rng(0)
    buffers = rng.normal(size=(4, *SHAPE)) + 3 * rng.normal(size=SHAPE)
    direction = rng.normal(size=SHAPE) + np.tensordot([2.0, -1.0, 1.0, -1.0], buffers, 1)
    return jnp.asarray(buffers, dtype), jnp.asarray(direction, dtype)


def mean_of(buffers):
    return jnp.tensordot(jnp.asarray(PROBS, buffers.dtype), buffers, 1)


def test_the_products_of_a_large_parameter_against_plain_numpy(few_are_enough):
    """(D1) with UUᵀ and Ud over the numbers that are taken, and Uᵀ over all."""
    buffers, direction = buffers_and_direction(jnp.float64)
    found = jax.jit(lambda *each: damp(*each))(direction, mean_of(buffers), buffers, jnp.asarray(PROBS), 0.1)

    taken = [4 * j + j * 7919 % 65521 % 4 for j in range(37 // 4)]
    numbers = np.concatenate([np.arange(128 * block, 128 * block + 128) for block in taken])
    rows = (np.sqrt(PROBS)[:, None] * (np.asarray(buffers) - mean_of(buffers)[None]).reshape(4, -1)).astype(float)
    d, part = np.asarray(direction).ravel(), rows[:, numbers]
    gram = part @ part.T
    weights = np.linalg.solve(0.1 * np.trace(gram) / 4 * np.eye(4) + gram, part @ d[numbers])
    np.testing.assert_allclose(found.ravel(), d - rows.T @ weights, rtol=0, atol=1e-10)


def test_a_sample_says_what_all_numbers_say(monkeypatch):
    """Three unknowns from 1,200 equations in place of 4,800: some percent of what damping takes away."""
    buffers, direction = buffers_and_direction(jnp.float64)
    arguments = direction, mean_of(buffers), buffers, jnp.asarray(PROBS), 0.1
    whole = np.asarray(jax.jit(lambda *each: damp(*each))(*arguments))
    monkeypatch.setattr(sample, "LEAST", 1200)
    part = np.asarray(jax.jit(lambda *each: damp(*each))(*arguments))
    removed = np.linalg.norm(whole - direction)
    assert 0 < np.linalg.norm(part - whole) < 0.1 * removed


@given(size=st.integers(1, 3 * 10**9))
def test_enough_numbers_are_taken_and_all_where_there_are_not_many_more(size):
    found = sample.sample_of(size)
    assert (found.stride == 1) == (size < 2 * sample.LEAST)
    assert found.numbers == size if found.stride == 1 else sample.LEAST * 0.99 < found.numbers <= 2 * sample.LEAST
    last = int(found.block(max(found.blocks - 1, 0)))
    assert last * sample.BLOCK + sample.BLOCK <= max(size, sample.BLOCK)


@given(size=st.integers(1, 3 * 10**6), least=st.integers(128, 5000))
def test_a_block_is_taken_by_both_ways_of_asking(size, least):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sample, "LEAST", least)
        found = sample.sample_of(size)
    blocks = found.block(np.arange(found.blocks))
    assert np.all(np.diff(blocks) > 0)
    firsts = np.arange(0, size, sample.BLOCK)
    if found.stride > 1:
        assert np.array_equal(np.flatnonzero(found.takes(firsts)), blocks)


@pytest.mark.parametrize("columns", [128, 160, 256, 320, 512, 640, 1024, 4096])
def test_no_column_of_a_large_matrix_is_left_out(columns):
    """A fixed step from block to block would read the same columns of every row."""
    for rows in (5760, 4096, 2880, 1440):
        found = sample.sample_of(rows * columns)
        places = found.block(np.arange(found.blocks))[:, None] * sample.BLOCK + np.arange(sample.BLOCK)
        often = np.bincount(places.ravel() % columns, minlength=columns)
        assert often.min() > 0.4 * often.mean()


def test_on_several_devices_the_same_numbers_are_taken(few_are_enough):
    buffers, direction = buffers_and_direction(jnp.float64)
    arguments = direction, mean_of(buffers), buffers, jnp.asarray(PROBS), 0.1
    alone = jax.jit(lambda *each: damp(*each))(*arguments)
    mesh = jax.make_mesh((4,), ("device",), axis_types=(jax.sharding.AxisType.Auto,))
    cut = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(None, "device"))
    cut_rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(None, None, "device"))
    placed = jax.device_put(arguments[0], cut), jax.device_put(arguments[1], cut), jax.device_put(buffers, cut_rows)
    together = jax.jit(lambda d, m, g: damp(d, m, g, jnp.asarray(PROBS), 0.1, in_slices=True))(*placed)
    np.testing.assert_allclose(together, alone, rtol=0, atol=1e-10)


def test_every_optimizer_trains_with_it(few_are_enough):
    """One step of each, in a program of its own: shapes fit, and the step is another than the undamped one."""
    params, ids = {"w": jnp.zeros(SHAPE)}, jnp.arange(4)
    grads = {"w": buffers_and_direction(jnp.float32)[0]}
    for factory in (discover.discover, discover.discover_adam, discover.discover_muon):
        steps = [
            jax.jit(lambda g, tx=tx: tx.update(g, tx.init(params), params, cluster_ids=ids)[0])(grads)
            for tx in (factory(0.1, discover.Clusters.uniform(4), damping=damping) for damping in (None, 0.1))
        ]
        assert np.all(np.isfinite(steps[1]["w"]))
        assert np.linalg.norm(steps[0]["w"] - steps[1]["w"]) > 0.01 * np.linalg.norm(steps[0]["w"])


@pytest.mark.float32
@pytest.mark.parametrize(
    ("taking_part", "buffer_dtype"),
    [(None, "float32"), (3, "bfloat16"), pytest.param(3, "int8", marks=pytest.mark.slow)],
)
def test_the_kernels_take_the_same_numbers(gpu, monkeypatch, few_are_enough, taking_part, buffer_dtype):
    monkeypatch.setattr(damping_kernel, "SHARE", 512)
    values, direction = buffers_and_direction(jnp.float32)
    buffers = quantize(values, Draw(0, jnp.arange(4))) if buffer_dtype == "int8" else values.astype(buffer_dtype)
    probs, mean = jnp.asarray(PROBS, jnp.float32), mean_of(values_of(buffers, direction))
    rows = None if taking_part is None else (3 + jnp.arange(taking_part)) % 4

    def step(direction, mean, buffers):
        return damp(direction, mean, buffers, probs if rows is None else probs[rows], 0.1, rows)

    plain = on_gpu.compiled(step, direction, mean, buffers)
    gpu()
    np.testing.assert_allclose(on_gpu.compiled(step, direction, mean, buffers), plain, atol=2e-5)


@pytest.mark.float32
def test_the_kernel_for_a_large_parameter_lowers_for_cuda():
    size = 3 * sample.LEAST
    flat = damping_kernel.Flat(jnp.ones(size), jnp.ones(size), [jnp.ones((4, size))])
    text = on_gpu.lowered_for_cuda(
        jax.jit(lambda one: damping_kernel.products(jnp.arange(4), jnp.full(4, 0.25), [one])), flat
    )
    assert "discover_damping_products" in text
