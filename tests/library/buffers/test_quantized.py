"""Buffers in 8 bits: what is stored, that rounding has no bias, and that ḡ is the mean of what is stored."""

import functools

import hypothesis.extra.numpy as hnp
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import discover
from discover import quantized
from discover.quantized import BLOCK, Draw, all_values, quantize, values_of
from discover.registry import OPTIMIZERS
from tests.library import problem, table

pytestmark = pytest.mark.float32

CLUSTERED = [name for name, entry in OPTIMIZERS.items() if "buffer_dtype" in entry.arguments]


@functools.partial(jax.jit, static_argnames="step")
def there_and_back(values, step=0):
    stored = quantize(values, Draw(step, jnp.arange(len(values))))
    return stored, values_of(stored, values[0])


def quanta(stored, values):
    """How far the two codes around each number are apart."""
    scales = np.repeat(np.asarray(stored.scales), BLOCK, axis=1)[:, : values.shape[1]]
    sizes = np.abs(values) / np.where(scales > 0, scales, 1)
    return scales * (2 * np.floor(np.sqrt(sizes)) + 1)


FINITE = st.floats(-(2.0**100), 2.0**100, width=32)


@settings(max_examples=25)
@given(hnp.arrays(np.float32, st.tuples(st.integers(1, 3), st.sampled_from([1, 5, BLOCK, 300])), elements=FINITE))
def test_a_number_comes_back_within_a_quantum_and_the_largest_of_a_block_exactly(values):
    stored, back = there_and_back(values)
    assert np.all(np.abs(back - values) <= quanta(stored, values) * (1 + 1e-4) + quantized.LEAST * 127**2)
    for first in range(0, values.shape[1], BLOCK):
        block, same = values[:, first : first + BLOCK], np.asarray(back)[:, first : first + BLOCK]
        place = (np.arange(len(block)), np.argmax(np.abs(block), axis=1))
        np.testing.assert_allclose(same[place], block[place], rtol=1e-5, atol=127**2 * quantized.LEAST)


def one_by_one(values, weights):
    """(Q2) as the plain version does it: what each group's row stands for, [G, size]."""

    def hold(group, value):
        row = quantize(value[None], Draw(7, jnp.array([group])))
        return row, values_of(row, value)[0]

    _, read = quantized.held_in_turn(list(jnp.asarray(values)), list(jnp.asarray(weights)), hold)
    return np.stack(read)


@settings(max_examples=25)
@given(st.integers(1, 6), st.integers(1, 300), st.data())
def test_clusters_of_a_batch_are_rounded_with_what_those_before_lack(num_groups, size, data):
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    values = rng.normal(size=(num_groups, size)).astype(np.float32)
    weights = rng.choice([0.0, 0.1, 0.5], size=num_groups).astype(np.float32)
    read = one_by_one(values, weights)
    for k in range(num_groups):
        lacking = (weights[:k] / max(weights.max(), 1e-9)) @ (values[:k] - read[:k])
        wanted = quantize(jnp.asarray(values[k] + lacking)[None], Draw(7, jnp.array([k])))
        atol = 1e-6 + 1.01 * quanta(wanted, (values[k] + lacking)[None])[0]  # another last digit, another code
        assert np.all(np.abs(read[k] - values[k] - lacking) <= atol)


def test_of_a_batch_the_mean_lacks_one_rounding_and_not_the_sum_of_all():
    values = np.random.default_rng(0).normal(size=(16, 4096)).astype(np.float32)
    _, alone = there_and_back(values, step=7)
    together = one_by_one(values, np.full(16, 0.1, np.float32))
    one, of_all, in_turn = (
        np.std(np.sum(rows - np.asarray(read), axis=0))
        for rows, read in ((values[:1], alone[:1]), (values, alone), (values, together))
    )
    assert of_all > 3 * one
    assert in_turn < 1.2 * one


@pytest.mark.parametrize("value", [0.0, 1e-3, -7.0, 3e38, -1e-38])
def test_zeros_stay_zeros_and_equal_numbers_stay_equal(value):
    _, back = there_and_back(jnp.full((2, 200), value, jnp.float32))
    expected = 0.0 if abs(value) < 1e-33 else value
    np.testing.assert_allclose(back, np.full((2, 200), expected, np.float32), rtol=1e-6)


@pytest.mark.parametrize("shape", [(), (1,), (3, 5), (0, 4), (2, 3, 43)])
def test_any_shape_is_stored_in_a_byte_a_number_and_a_scale_for_each_block(shape):
    values = jnp.asarray(np.random.default_rng(0).normal(size=(2, *shape)), jnp.float32)
    stored, back = there_and_back(values)
    size = int(np.prod(shape))
    assert back.shape == values.shape
    assert stored.codes.shape == (2, -(-size // 4))
    assert stored.scales.shape == (2, -(-size // BLOCK))
    for fresh, used in zip(quantized.zeros(2, size), stored):
        assert (fresh.shape, fresh.dtype) == (used.shape, used.dtype)


def test_rounding_has_no_bias_at_any_place_in_any_cluster():
    """Over 4,000 steps the mean is the number itself, within four standard deviations of a uniform rounding."""
    values = jnp.asarray(np.random.default_rng(0).normal(size=(3, 150)), jnp.float32)
    steps = 4000

    def add(step, total):
        return total + there_and_back.__wrapped__(values, step)[1] - values

    error = jax.jit(lambda: jax.lax.fori_loop(0, steps, add, jnp.zeros_like(values)))() / steps
    quantum = quanta(there_and_back(values)[0], np.asarray(values))
    assert np.max(np.abs(error) / quantum) < 4.5 * 0.5 / np.sqrt(steps)


def test_what_is_drawn_is_even_and_differs_by_step_cluster_and_place():
    def draw(step, rows):
        place = jnp.arange(2**14, dtype=jnp.int32)[None]
        return np.asarray(quantized.uniform(step, jnp.asarray(rows)[:, None], place, jnp.dtype("float32")))

    drawn = np.concatenate([draw(step, [0, 1, 999]) for step in (0, 1, 2**29)])
    assert drawn.min() >= 0
    assert drawn.max() < 1
    counts = np.stack([np.histogram(row, 16, (0, 1))[0] for row in drawn])
    assert np.all(np.abs(counts - 1024) < 5 * np.sqrt(1024))
    alike = np.corrcoef(np.concatenate([drawn, np.roll(drawn, 1, axis=1), np.roll(drawn, 128, axis=1)]))
    assert np.max(np.abs(alike - np.eye(len(alike)))) < 5 / np.sqrt(2**14)


def walk(options, num_steps=1200, shape=(70,), num_clusters=4, **start):
    """Random steps with 8-bit buffers: the last state."""
    rule = discover.scale_by_discover(discover.Clusters.uniform(num_clusters), buffer_dtype="int8", **options)

    def step(state, key):
        id_key, grad_key = jax.random.split(key)
        ids = jax.random.randint(id_key, (3,), 0, num_clusters)
        grads = 1 + jax.random.normal(grad_key, (3, *shape))
        return rule.update(grads, state, cluster_ids=ids)[1], None

    keys = jax.random.split(jax.random.key(0), num_steps)
    state = start.get("state", rule.init(jnp.zeros(shape)))
    part = keys[start.get("first", 0) : start.get("last", num_steps)]
    return jax.jit(lambda s: jax.lax.scan(step, s, part)[0])(state)


@pytest.mark.parametrize("estimate_probs", [False, True])
def test_the_mean_is_that_of_the_buffers_as_stored_after_many_steps(estimate_probs):
    state = walk({"estimate_probs": estimate_probs})
    probs = np.full(4, 0.25)
    if estimate_probs:
        probs = np.sum(state.examples_seen, axis=0) / np.sum(state.examples_seen)
    exact = np.tensordot(probs, np.asarray(all_values(state.buffers, state.mean), np.float64), 1)
    assert np.linalg.norm(state.mean - exact) < 1e-6 * np.linalg.norm(exact)


def test_a_run_that_goes_on_from_its_state_is_the_same_to_the_bit():
    whole = walk({}, 40)
    halfway = walk({}, 40, last=17)
    jax.tree.map(np.testing.assert_array_equal, walk({}, 40, state=halfway, first=17), whole)


def test_one_cluster_is_momentum_with_rounding():
    exact = discover.scale_by_discover(discover.Clusters.uniform(1), nu=1.0)
    rough = discover.scale_by_discover(discover.Clusters.uniform(1), nu=1.0, buffer_dtype="int8")

    def follow(tx):
        def step(state, grads):
            direction, state = tx.update(grads, state, cluster_ids=jnp.array([0]))
            return state, direction

        grads = jax.random.normal(jax.random.key(0), (60, 1, 200))
        return jax.jit(lambda: jax.lax.scan(step, tx.init(jnp.zeros(200)), grads)[1])()

    one, other = follow(exact), follow(rough)
    assert np.linalg.norm(one - other) < 0.1 * np.linalg.norm(one)
    assert not np.array_equal(one, other)


def test_a_gradient_that_is_not_finite_reaches_no_buffer():
    """The number where it is stays as it was, but for the rounding that its block goes through anyway."""
    state = walk({}, 20)
    rule = discover.scale_by_discover(discover.Clusters.uniform(4), buffer_dtype="int8")
    bad = jnp.ones((2, 70)).at[0, 3].set(jnp.nan).at[1, 9].set(jnp.inf)
    _, after = jax.jit(rule.update)(bad, state, cluster_ids=jnp.array([1, 2]))
    before, now = (np.asarray(all_values(s.buffers, s.mean)) for s in (state, after))
    assert np.all(np.isfinite(now))
    quantum = np.maximum(quanta(state.buffers, before), quanta(after.buffers, before))
    assert np.all(np.abs(now - before)[:, [3, 9]] <= quantum[:, [3, 9]] * (1 + 1e-4))
    np.testing.assert_array_equal(now[[0, 3]], before[[0, 3]])


@pytest.mark.parametrize(
    "name", [CLUSTERED[0], *(pytest.param(name, marks=pytest.mark.slow) for name in CLUSTERED[1:])]
)
def test_every_optimizer_takes_them_with_everything_else_and_an_empty_batch_changes_nothing(name):
    options = {"damping": 0.1, "estimate_probs": True, "skip_nonfinite": True, "buffered": {"w": True, "b": False}}
    params, grads = problem.start(dtype=jnp.float32), {"w": jnp.ones((2, 5, 3)), "b": jnp.ones((2, 3))}

    def step(rate, params, state, ids, sizes):
        tx = table.make(name, rate, buffer_dtype="int8", **options)
        return discover.take_step(tx, grads, state, params, cluster_ids=ids, group_sizes=sizes)

    one = (params, table.make(name, buffer_dtype="int8", **options).init(params))
    found = [x for x in jax.tree.leaves(one[1], is_leaf=quantized.is_quantized) if quantized.is_quantized(x)]
    assert [x.codes.shape for x in found] == [(4, 4)]  # of w, four codes a word
    both = jax.tree.map(lambda x: jnp.stack([x, x]), one)
    together = jax.jit(jax.vmap(step, (0, 0, 0, None, None)))
    rates, sizes = jnp.array([0.3, 0.3]), jnp.array([3, 2])
    for ids in ([0, 2], [1, 2]):
        both = together(rates, *both, jnp.array(ids), sizes)
    for leaf in jax.tree.leaves(both):
        assert np.all(np.isfinite(leaf))
        np.testing.assert_array_equal(leaf[0], leaf[1])
    after = together(rates, *both, jnp.array([0, 2]), 0 * sizes)
    jax.tree.map(np.testing.assert_array_equal, after, both)


def test_the_buffers_of_a_network_take_less_than_1_1_bytes_a_number_and_cluster():
    shapes = {f"conv{n}": (3, 3, width, width) for n, width in enumerate((16, 16, 32, 64))} | {"scale": (64,), "s": ()}
    params = {name: jnp.zeros(shape) for name, shape in shapes.items()}
    state = jax.eval_shape(discover.discover(0.1, discover.Clusters.uniform(100), buffer_dtype="int8").init, params)
    held = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(state.direction.buffers))
    assert held < 1.1 * 100 * sum(p.size for p in jax.tree.leaves(params))


@pytest.mark.parametrize("dtype", ["float17", "int16", jnp.int32, 8])
def test_another_dtype_is_refused_with_the_choices(dtype):
    with pytest.raises(ValueError, match=r"^buffer_dtype must be float32, bfloat16, .* int8 or None, got .*\w"):
        discover.discover(0.1, table.CLUSTERS, buffer_dtype=dtype)


def test_complex_parameters_are_refused():
    tx = discover.discover(0.1, table.CLUSTERS, buffer_dtype="int8")
    with pytest.raises(TypeError, match="int8 is for real parameters, got dtype complex64"):
        tx.init(jnp.zeros(3, jnp.complex64))


def test_training_with_them_goes_where_float32_goes():
    batches = problem.draw_batches(200, 4, table.CLUSTERS.probs)
    paths = [
        problem.train(
            discover.discover(0.1, table.CLUSTERS, buffer_dtype=dtype), problem.start(dtype=jnp.float32), batches
        )[0]
        for dtype in (None, "int8")
    ]
    moved = np.linalg.norm(paths[0][-1] - paths[0][0])
    assert 0 < np.linalg.norm(paths[1][-1] - paths[0][-1]) < 0.02 * moved
