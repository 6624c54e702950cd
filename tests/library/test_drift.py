"""ḡ = Σ p_n g_n for as long as a run lasts, after any gradient; and gradients that are not finite."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import discover
from discover import quantized, rule
from discover.gpu import mean_kernel, update_kernel
from discover.gpu.parameters import Parameter
from discover.registry import OPTIMIZERS
from tests.library import table
from tests.library.gpu.on_gpu import compiled

NUM_CLUSTERS, SIZE = 10, 40
CLUSTERS = discover.Clusters.uniform(NUM_CLUSTERS)
MEANS = jax.random.normal(jax.random.key(1), (NUM_CLUSTERS, SIZE))


def distances(scales, num_groups=1, **options):
    """‖ḡ − Σ p g‖/‖Σ p g‖ after each step, each group's gradient multiplied by its step's scale."""
    tx = discover.scale_by_discover(CLUSTERS, **options)

    def step(state, given):
        key, scale = given
        id_key, grad_key = jax.random.split(key)
        ids = jax.random.randint(id_key, (num_groups,), 0, NUM_CLUSTERS)
        grads = scale * (MEANS[ids] + 0.3 * jax.random.normal(grad_key, (num_groups, SIZE)))
        state = tx.update(grads, state, cluster_ids=ids)[1]
        exact = jnp.mean(state.buffers, axis=0)
        return state, jnp.linalg.norm(state.mean - exact) / jnp.linalg.norm(exact)

    keys = jax.random.split(jax.random.key(0), len(scales))
    return np.asarray(jax.jit(lambda s: jax.lax.scan(step, tx.init(jnp.zeros(SIZE)), s))((keys, scales))[1])


@pytest.mark.float32
@pytest.mark.parametrize("num_groups", [1, 8])
@pytest.mark.parametrize("spike", [1e8, 1e10])
def test_one_gradient_that_is_far_too_large_is_forgotten_within_a_thousand_steps(spike, num_groups):
    scales = jnp.ones(1200).at[100].set(spike)
    found = distances(scales, num_groups)
    assert found[101] < 1e-5  # of what the spike has made of ḡ
    assert found[150:600].max() > 1e-5  # (F3) alone would keep what it lost
    assert found[1100:].max() < 1e-5


@pytest.mark.float32
def test_the_mean_follows_gradients_that_shrink_to_nothing():
    assert distances(0.999 ** jnp.arange(15_000.0)).max() < 1e-5


def test_the_same_for_runs_side_by_side():
    """The sum is taken where it is due in any of the runs, and changes only those in which it is."""
    tx = discover.scale_by_discover(discover.Clusters.uniform(3))
    state = jax.tree.map(lambda s: jnp.stack([s + 1, s + 1]), tx.init(jnp.zeros(2)))
    state = state._replace(steps=jnp.array([rule.AFRESH - 1, 3]), mean=jnp.full((2, 2), 5.0))
    grads, ids = jnp.ones((2, 1, 2)), jnp.array([[0], [1]])
    _, after = jax.jit(jax.vmap(lambda g, s, i: tx.update(g, s, cluster_ids=i)))(grads, state, ids)
    np.testing.assert_allclose(after.mean, [[1, 1], [5, 5]])
    np.testing.assert_array_equal(after.steps, [rule.AFRESH, 4])


@pytest.mark.float32
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("num_clusters", [1, 3, 40])
def test_the_kernel_sums_a_part_of_the_mean_afresh_at_each_step(num_clusters, dtype):
    rng, length = np.random.default_rng(0), quantized.BLOCK
    sizes, turn = (length * rule.AFRESH + 2 * length + 5, 3 * length, length + 1), 2
    means = [jnp.asarray(rng.normal(size=size), jnp.float32) for size in sizes]
    rows = [jnp.asarray(rng.normal(size=(num_clusters, size)), jnp.float32) for size in sizes]
    draw = quantized.Draw(0, jnp.arange(num_clusters))
    buffers = [quantized.quantize(one, draw) if dtype == "int8" else one.astype(dtype) for one in rows]
    probs = jnp.asarray(rng.dirichlet(np.ones(num_clusters)), jnp.float32)

    def at_turn(turn):
        given = [(None, mean, held) for mean, held in zip(means, buffers)]
        return [
            mean
            for _, mean, _ in compiled(
                lambda: mean_kernel.with_part_afresh(jnp.array([9, turn], jnp.int32), probs, given, interpret=True)
            )
        ]

    for mean, held, new, kept in zip(means, buffers, at_turn(turn), at_turn(-1)):
        piece = np.arange(mean.size) // length
        due = piece % rule.AFRESH == turn
        np.testing.assert_allclose(new[due], (probs @ quantized.values_of(held, mean))[due], atol=1e-5)
        np.testing.assert_array_equal(new[~due], mean[~due])
        np.testing.assert_array_equal(kept, mean)
    assert [int((np.arange(size) // length % rule.AFRESH == turn).sum()) for size in sizes] == [length + 5, length, 0]


@pytest.mark.float32
def test_the_update_in_kernels_leaves_a_part_of_the_mean_summed_afresh():
    rng, size = np.random.default_rng(0), 300
    buffers, mean = (jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in ((3, size), (size,)))
    probs, ids = jnp.array([0.5, 0.3, 0.2]), jnp.array([2, 0], jnp.int32)
    weights, _ = rule.batch_weights(
        ids, None, probs, None, jnp.int32(1), correction=0.2, rate=rule.proportional_rate(0.9)
    )
    one = Parameter(None, jnp.ones((2, size)), mean, buffers, None, None)
    _, new, stored = compiled(
        lambda: update_kernel.update_in_kernels(update_kernel.pack(weights), [one], interpret=True)
    )[0]
    due = np.arange(size) // quantized.BLOCK == 1
    np.testing.assert_allclose(new[due], (probs @ stored)[due], atol=1e-6)
    assert np.abs(new - probs @ stored)[~due].min() > 1e-3  # the mean was none of these buffers'


@pytest.mark.float32
def test_examples_are_counted_far_beyond_what_a_float_can():
    tx = discover.scale_by_discover(discover.Clusters.uniform(2), estimate_probs=True)
    state = tx.init(jnp.zeros(1))
    state = state._replace(examples_seen=jnp.array([[1e9, 1e9], [0.0, 0.0]]))
    update = jax.jit(
        lambda s: tx.update(jnp.ones((1, 1)), s, cluster_ids=jnp.array([1]), group_sizes=jnp.array([3]))[1]
    )
    for _ in range(100):
        state = update(state)
    assert np.sum(np.asarray(state.examples_seen, np.float64), axis=0).tolist() == [1e9, 1e9 + 300]


def spoilt(bad, **options):
    """One step with three groups, of which group 1, of cluster 2, is `bad` in one number."""
    tx = discover.scale_by_discover(discover.Clusters.uniform(4), **options)
    state = tx.init({"w": jnp.zeros((2, 3)), "b": jnp.zeros(3)})
    grads = {"w": jnp.ones((3, 2, 3)).at[1, 0, 1].set(bad), "b": jnp.ones((3, 3)).at[1, 2].set(bad)}
    return jax.jit(lambda g, s: tx.update(g, s, cluster_ids=jnp.array([0, 2, 3])))(grads, state)


@pytest.mark.parametrize("on_gpu", [False, True])
@pytest.mark.parametrize("bad", [jnp.nan, jnp.inf])
def test_what_is_not_finite_reaches_the_step_but_no_buffer(bad, on_gpu, gpu):
    if on_gpu:
        gpu()
    with jax.enable_x64(not on_gpu):
        direction, state = spoilt(bad)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state))
    for buffers, d in zip(jax.tree.leaves(state.buffers), jax.tree.leaves(direction)):
        assert np.sum(~np.isfinite(d)) == 1
        assert (np.asarray(buffers)[:, ~np.isfinite(d)] == 0).all()  # where no buffer moved
        assert (np.asarray(buffers)[np.array([0, 2, 3])][:, np.isfinite(d)] > 0).all()


def test_a_step_that_is_not_finite_can_be_dropped_behind_the_rule():
    rule = discover.scale_by_discover(discover.Clusters.uniform(2))
    tx = optax.chain(rule, optax.apply_if_finite(optax.sgd(0.1), max_consecutive_errors=3))
    params = jnp.ones(3)
    state = tx.init(params)
    for number in range(3):
        grads = jnp.ones((2, 3)).at[0, 1].set(jnp.nan if number == 1 else 1.0)
        updates, state = tx.update(grads, state, params, cluster_ids=jnp.array([0, 1]))
        assert (np.asarray(updates) == 0).all() == (number == 1)
        params = optax.apply_updates(params, updates)
    assert np.isfinite(params).all()


@pytest.mark.parametrize("bad", [jnp.nan, -jnp.inf])
def test_a_group_that_is_not_finite_can_be_left_out(bad):
    direction, state = spoilt(bad, skip_nonfinite=True)
    assert int(state.skipped) == 1
    tx = discover.scale_by_discover(discover.Clusters.uniform(4))
    grads = {"w": jnp.ones((2, 2, 3)), "b": jnp.ones((2, 3))}
    without = tx.update(grads, tx.init({"w": jnp.zeros((2, 3)), "b": jnp.zeros(3)}), cluster_ids=jnp.array([0, 3]))
    jax.tree.map(np.testing.assert_array_equal, (direction, state.optimizer), without)


@pytest.mark.parametrize("name", [name for name, one in OPTIMIZERS.items() if "skip_nonfinite" in one.arguments])
def test_an_optimizer_goes_on_after_a_gradient_that_is_not_finite(name):
    tx = table.make(name, clusters=discover.Clusters.uniform(3), skip_nonfinite=True)
    params = {"w": jnp.ones((2, 3))}
    state = tx.init(params)
    step = jax.jit(lambda p, s, g, i: discover.take_step(tx, g, s, p, cluster_ids=i))
    for number in range(4):
        grads = {"w": jnp.ones((1, 2, 3)) * (jnp.nan if number == 2 else 1.0)}
        before = params
        params, state = step(params, state, grads, jnp.array([number % 3]))
        if number == 2:
            jax.tree.map(np.testing.assert_array_equal, params, before)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((params, state)))
    assert int(state.skipped) == 1
