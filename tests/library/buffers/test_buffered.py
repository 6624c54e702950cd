"""`buffered`: one buffer per cluster for some parameters, one shared momentum for the others."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import discover
from discover.registry import OPTIMIZERS
from discover.sharding import shard_by_parameter
from tests.library import problem, table

NAMES = [name for name, one in OPTIMIZERS.items() if "buffered" in one.parameters]
MASK = {"w": True, "b": False}
BATCHES = problem.draw_batches(12, 3, table.CLUSTERS.probs, sizes=[0, 2, 3])


def train(name, **options):
    return problem.train(table.make(name, 0.05, l2=0.01, weight_decay=0.1, **options), problem.start(), BATCHES)


@pytest.mark.parametrize("name", NAMES)
def test_all_buffered_is_the_optimizer_and_none_is_its_baseline_with_one_cluster(name):
    every, none = (train(name, buffered=dict.fromkeys(MASK, on))[0][-1] for on in (True, False))
    np.testing.assert_allclose(every, train(name)[0][-1], rtol=0, atol=1e-12)
    tx = table.make(name, 0.05, clusters=discover.Clusters.uniform(1), l2=0.01, weight_decay=0.1)
    together = [[(0, size, group) for _, size, group in batch] for batch in BATCHES]
    np.testing.assert_allclose(none, problem.train(tx, problem.start(), together)[0][-1], rtol=0, atol=1e-12)


def test_a_plain_step_is_discovers_for_some_parameters_and_momentums_for_the_others():
    tx = discover.discover(0.1, table.CLUSTERS, beta=0.9, nu=0.7, buffered=MASK)
    apart = {"own": discover.discover(0.1, table.CLUSTERS, beta=0.9, nu=0.7), "shared": discover.qhm(0.1, 0.9, 0.7)}
    parts = optax.partition(apart, {"w": "own", "b": "shared"})
    found, expected = (problem.train(one, problem.start(), BATCHES)[0][-1] for one in (tx, parts))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


def test_the_others_have_no_buffers():
    params = {"w": jnp.zeros((5, 4)), "b": jnp.zeros(4)}
    tx = discover.discover_muon(0.1, table.CLUSTERS, damping=0.1, buffered=lambda p: {"w": False, "b": True})
    state = jax.eval_shape(tx.init, params)
    assert {leaf.shape for leaf in jax.tree.leaves(state) if leaf.ndim} == {(5, 4), (4,), (4, 4)}


@pytest.mark.parametrize("options", [{"buffered": MASK}, {"skip_nonfinite": True}])
def test_on_several_devices_the_step_is_the_same(options):
    params = {"w": jnp.ones((8, 4)), "b": jnp.ones(4)}
    grads = jax.tree.map(lambda p: jax.random.normal(jax.random.key(p.ndim), (4, *p.shape)), params)
    inner = discover.discover_muon(0.1, table.CLUSTERS, damping=0.1, l2=0.01, **options)
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:4]), ("data",))

    def two_steps(tx):
        state, after = tx.init(params), params
        for _ in range(2):
            updates, state = jax.jit(tx.update)(grads, state, after, cluster_ids=jnp.array([0, 1, 2, 1]))
            after = optax.apply_updates(after, updates)
        return after

    several = two_steps(shard_by_parameter(inner, mesh))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-12), several, two_steps(inner))


def test_a_batch_without_examples_changes_nothing():
    tx = discover.discover(0.1, table.CLUSTERS, buffered=MASK)
    params = problem.start()
    grads = jax.tree.map(lambda p: jnp.stack([p, p]), params)
    state = tx.update(grads, tx.init(params), params, cluster_ids=jnp.array([0, 1]))[1]
    updates, after = tx.update(grads, state, params, cluster_ids=jnp.array([0, 9]), group_sizes=jnp.array([0, 3]))
    jax.tree.map(np.testing.assert_array_equal, after, state)
    assert all((np.asarray(u) == 0).all() for u in jax.tree.leaves(updates))
