"""What must stay true whatever the batches: ḡ = Σ p_n g_n, and symmetries of groups and clusters."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import discover
from discover.quantized import all_values
from discover.registry import OPTIMIZERS
from tests.library import problem, table

SHAPE = (6,)
few = settings(max_examples=15)


UNEQUAL = discover.Clusters((0.001, 0.4, 0.299, 0.05, 0.25))
PERMUTATION = np.array([3, 0, 4, 1, 2])
RELABELLED = discover.Clusters(np.array(UNEQUAL.probs)[np.argsort(PERMUTATION)])


@st.composite
def steps(draw, num_groups=4, num_steps=4):
    """Random clusters, group sizes (0 included), gradients and settings, from one drawn seed."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    ids = rng.integers(UNEQUAL.num_clusters, size=(num_steps, num_groups))
    sizes = rng.integers(0, 6, size=(num_steps, num_groups))
    sizes[:, 0] += 1
    grads = rng.normal(size=(num_steps, num_groups, *SHAPE)) * draw(st.sampled_from([1e-3, 1.0, 1e3]))
    beta = draw(st.sampled_from([0.0, 0.5, 0.9, 0.99, 1.0]))
    nu = draw(st.sampled_from([0.0, 0.3, 0.95, 1.0]))
    rate = draw(st.sampled_from(["proportional", "per_visit"]))
    return ids, sizes, grads, (beta, nu, rate, draw(st.booleans()))


@functools.cache
def compiled(clusters, rate, estimate_probs):
    """β and ν are arguments, so that one program serves all examples of a shape."""

    def run(batches, beta, nu):
        rule = discover.scale_by_discover(clusters, beta, nu, rate=rate, estimate_probs=estimate_probs)

        def step(state, batch):
            grads, ids, sizes = batch
            direction, state = rule.update(grads, state, cluster_ids=ids, group_sizes=sizes)
            return state, direction

        return jax.lax.scan(step, rule.init(jnp.zeros(SHAPE)), batches)

    return jax.jit(run)


def run(ids, sizes, grads, options, clusters=UNEQUAL):
    """Directions of all steps, and the last state."""
    beta, nu, *static = options
    batches = (jnp.asarray(grads), jnp.asarray(ids, jnp.int32), jnp.asarray(sizes, jnp.int32))
    state, directions = compiled(clusters, *static)(batches, beta, nu)
    return np.asarray(directions), state


def close(actual, expected, grads):
    np.testing.assert_allclose(actual, expected, rtol=1e-9, atol=1e-12 * np.abs(grads).max())


@few
@given(steps())
def test_relabelling_the_clusters_changes_nothing_but_the_labels(case):
    ids, sizes, grads, options = case
    directions, state = run(*case)
    renamed, renamed_state = run(PERMUTATION[ids], sizes, grads, options, RELABELLED)
    close(renamed, directions, grads)
    close(renamed_state.buffers[PERMUTATION], state.buffers, grads)


@few
@given(steps())
def test_the_order_of_the_groups_does_not_matter(case):
    ids, sizes, grads, options = case
    order = np.random.default_rng(0).permutation(ids.shape[1])
    directions, state = run(*case)
    shuffled, shuffled_state = run(ids[:, order], sizes[:, order], grads[:, order], options)
    close(shuffled, directions, grads)
    close(shuffled_state.buffers, state.buffers, grads)


@few
@given(steps())
def test_a_group_split_in_two_equals_the_whole(case):
    ids, sizes, grads, options = case
    directions, state = run(ids, 2 * sizes, grads, options)
    # The first half deviates from the mean gradient by +d, the second by −d.
    half = np.random.default_rng(0).normal(size=grads.shape) * np.abs(grads).max()
    halves = np.concatenate([grads + half, grads - half], axis=1)
    split, split_state = run(np.tile(ids, 2), np.tile(sizes, 2), halves, options)
    close(split, directions, grads)
    close(split_state.buffers, state.buffers, grads)


@few
@given(steps())
def test_groups_of_one_cluster_equal_their_merged_group(case):
    ids, sizes, grads, options = case
    merged_grads, merged_sizes = np.zeros_like(grads), np.zeros_like(sizes)
    for t, k in np.ndindex(ids.shape):
        first = int(np.flatnonzero(ids[t] == ids[t, k])[0])
        merged_grads[t, first] += sizes[t, k] * grads[t, k]
        merged_sizes[t, first] += sizes[t, k]
    merged_grads /= np.maximum(merged_sizes, 1)[..., None]
    directions, state = run(*case)
    merged, merged_state = run(ids, merged_sizes, merged_grads, options)
    close(merged, directions, grads)
    close(merged_state.buffers, state.buffers, grads)


@few
@given(steps(), st.sampled_from([-1, -7, 5, 6, 2**31 - 1]))
def test_a_group_with_an_id_out_of_range_or_no_examples_does_nothing_even_if_it_holds_nan(case, bad_id):
    ids, sizes, grads, options = case
    nan = np.full((len(grads), 1, *SHAPE), np.nan)
    wrong_id = (np.full((len(ids), 1), bad_id), np.ones((len(ids), 1), int), nan)
    empty = (np.zeros((len(ids), 1), int), np.zeros((len(ids), 1), int), nan)
    directions, state = run(*case)
    joined = [np.concatenate(parts, axis=1) for parts in zip(wrong_id, (ids, sizes, grads), empty)]
    with_bad, bad_state = run(*joined, options)
    close(with_bad, directions, grads)
    close(bad_state.buffers, state.buffers, grads)
    close(bad_state.mean, state.mean, grads)


@few
@given(steps())
def test_the_mean_is_the_weighted_mean_of_the_buffers(case):
    ids, sizes, grads, options = case
    _, state = run(*case)
    probs = np.array(UNEQUAL.probs)
    if options[-1]:
        counts = np.zeros(len(probs))
        np.add.at(counts, ids.ravel(), sizes.ravel())
        probs = counts / counts.sum()
    close(state.mean, np.tensordot(probs, state.buffers, 1), grads)


PARAMS = {"w": np.arange(6.0).reshape(2, 3), "b": np.ones(2)}


def start(name):
    tx = table.make(name, optax.cosine_decay_schedule(0.1, 10), weight_decay=0.1, l2=0.1)
    params = jax.tree.map(jnp.asarray, PARAMS)
    return tx, params, tx.init(params)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_batch_of_no_groups_leaves_parameters_and_state_unchanged(name):
    tx, params, state = start(name)
    grads = jax.tree.map(lambda p: jnp.zeros((0, *p.shape)), params)
    updates, after = tx.update(grads, state, params, cluster_ids=jnp.zeros(0, int))
    jax.tree.map(np.testing.assert_array_equal, (optax.apply_updates(params, updates), after), (params, state))


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("skip", [False, True])
def test_an_optimizer_that_no_parameter_has_does_nothing(name, skip):
    """Under a label of `optax.partition` that no parameter has, the optimizer gets a tree of masks."""
    if skip and "skip_nonfinite" not in OPTIMIZERS[name].parameters:
        return
    nobodys = table.make(name, weight_decay=0.1, l2=0.1, **({"skip_nonfinite": True} if skip else {}))
    tx, params = optax.partition({"none": nobodys, "all": discover.sgd(0.1)}, "all"), {"w": jnp.ones((3, 2))}
    grads, ids = {"w": jnp.ones((2, 3, 2))}, jnp.array([0, 1])
    after, _ = discover.take_step(tx, grads, tx.init(params), params, cluster_ids=ids)
    np.testing.assert_allclose(after["w"], 0.9)


def test_the_mean_over_no_groups_is_zero():
    tx = discover.mean_over_groups()
    np.testing.assert_array_equal(tx.update(jnp.ones((0, 3)), tx.init(jnp.ones(3)))[0], 0)


def test_an_empty_batch_is_nobodys_turn_in_damping():
    tx = discover.scale_by_discover(discover.Clusters.uniform(4), damping=0.1, damping_clusters=2)
    update = jax.jit(lambda ids: tx.update(jnp.ones((2, 3)), tx.init(jnp.ones(3)), cluster_ids=ids)[1].next)
    assert [int(update(np.array(ids))) for ids in ([-1, 9], [0, 9])] == [0, 2]


@pytest.mark.parametrize("name", [name for name, entry in OPTIMIZERS.items() if entry.clustered])
def test_a_group_of_an_unknown_cluster_does_nothing_in_any_clustered_optimizer(name):
    def run(bad):
        tx, params, state = start(name)

        @jax.jit
        def step(params, state, t, id_of_bad):
            grads = jax.tree.map(lambda p: jnp.stack([p + t, 2 * p]), params)
            ids = jnp.array([0, 3])
            if bad:
                grads = jax.tree.map(lambda g: jnp.concatenate([g, jnp.full_like(g[:1], jnp.nan)]), grads)
                ids = jnp.append(ids, id_of_bad)
            updates, state = tx.update(grads, state, params, cluster_ids=ids)
            return optax.apply_updates(params, updates), state

        for t in range(4):
            params, state = step(params, state, t, [-1, 5, 7, 2**32][t])
        return params, state

    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12), run(True), run(False))


def test_a_batch_of_unknown_clusters_only_does_not_even_decay():
    tx = discover.discover(0.1, discover.Clusters.uniform(5), weight_decay=0.5)
    params = jnp.ones(3)
    updates, _ = tx.update(jnp.ones((2, 3)), tx.init(params), params, cluster_ids=jnp.array([-1, 9]))
    np.testing.assert_array_equal(updates, 0)


def random_walk(dtype, estimate_probs, num_steps=4000):
    """‖ḡ − Σ p_n g_n‖ / max‖g_n‖ after thousands of random steps in float32 arithmetic."""
    num_groups, num_clusters, shape = 6, 7, (50,)
    probs = np.random.default_rng(0).dirichlet(np.ones(num_clusters))
    rule = discover.scale_by_discover(
        discover.Clusters.from_counts(probs), beta=0.95, nu=0.9, buffer_dtype=dtype, estimate_probs=estimate_probs
    )

    def step(state, key):
        id_key, size_key, grad_key = jax.random.split(key, 3)
        ids = jax.random.randint(id_key, (num_groups,), 0, num_clusters)
        sizes = jax.random.randint(size_key, (num_groups,), 0, 9)
        grads = 1 + jax.random.normal(grad_key, (num_groups, *shape))
        return rule.update(grads, state, cluster_ids=ids, group_sizes=sizes)[1], None

    state, _ = jax.jit(lambda s: jax.lax.scan(step, s, jax.random.split(jax.random.key(0), num_steps)))(
        rule.init(jnp.zeros(shape))
    )
    buffers = np.asarray(all_values(state.buffers, state.mean), np.float64)
    if estimate_probs:
        probs = np.sum(np.asarray(state.examples_seen, np.float64), axis=0) / np.sum(state.examples_seen)
    drift = np.linalg.norm(np.asarray(state.mean, np.float64) - np.tensordot(np.asarray(probs), buffers, 1))
    return drift / np.linalg.norm(buffers, axis=1).max()


@pytest.mark.float32
@pytest.mark.parametrize(("dtype", "estimate_probs"), [(jnp.float32, False), (jnp.bfloat16, True), ("int8", True)])
def test_the_mean_does_not_drift_in_low_precision(dtype, estimate_probs):
    """The bound of docs/family.md: rounding of ḡ adds up like a random walk, ε·sqrt(steps), in either dtype."""
    assert random_walk(dtype, estimate_probs) < 4 * np.finfo(np.float32).eps * np.sqrt(4000)


@pytest.mark.float32
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
@pytest.mark.parametrize("shape", [(4000,), (50, 80)])
def test_the_mean_is_that_of_the_buffers_as_stored_in_a_compiled_update_too(dtype, shape):
    """A compiler may leave out a cast to half precision and back, and with it the rounding that ḡ has to follow."""
    tx = discover.scale_by_discover(discover.Clusters.uniform(3), buffer_dtype=dtype)
    grads, ids = jax.random.normal(jax.random.key(0), (4, *shape)), jnp.array([2, 0, 0, 2])
    _, state = jax.jit(lambda g, s, i: tx.update(g, s, cluster_ids=i))(grads, tx.init(jnp.zeros(shape)), ids)
    stored = np.mean(np.asarray(state.buffers, np.float32), axis=0)
    np.testing.assert_allclose(state.mean, stored, atol=1e-7)


def test_estimated_probabilities_converge_to_the_frequencies_seen():
    probs = (0.6, 0.3, 0.1)
    batches = problem.draw_batches(400, 4, probs)
    tx = discover.discover(0.1, discover.Clusters.uniform(3), estimate_probs=True)
    _, state = problem.train(tx, problem.start(), batches)
    seen = np.sum(state.direction.examples_seen, axis=0)
    np.testing.assert_allclose(seen / seen.sum(), probs, atol=0.04)
    known, _ = problem.train(discover.discover(0.1, discover.Clusters(probs)), problem.start(), batches)
    learned, _ = problem.train(tx, problem.start(), batches)
    wrong, _ = problem.train(discover.discover(0.1, discover.Clusters.uniform(3)), problem.start(), batches)
    assert np.linalg.norm(learned[-1] - known[-1]) < 0.3 * np.linalg.norm(wrong[-1] - known[-1])
