"""Groups on devices in any mixture: several of one cluster, several clusters, fewer groups than devices."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import discover
from benchmarks.traffic import collectives, count_kinds
from discover.sharding import (
    pad_groups,
    shard_by_parameter,
    sharded_group_value_and_grad,
)
from tests.library.sharding.sharded import (
    assert_close,
    loss,
    make_batches,
    make_mesh,
    make_optimizer,
    make_params,
    quick_jit,
    random_grads,
)

MIXTURES = {
    "one cluster a device": [0, 1, 2, 3, 0, 1, 2, 3],
    "one cluster on all devices": [1] * 8,
    "two of one cluster a device": [0, 0, 1, 1, 2, 2, 3, 3],
    "two clusters on every device": [0, 1] * 4,
}


@functools.cache
def _updates(devices, clusters_per_device, exchange="groups", name="discover"):
    """Compiled single updates from random state: (whole optimizer, sharded optimizer)."""
    mesh, params = make_mesh(devices), make_params()
    whole = make_optimizer(name)
    tx = shard_by_parameter(whole, mesh, exchange=exchange, clusters_per_device=clusters_per_device)

    def two_steps(tx):
        @quick_jit
        def run(grads, ids, sizes):
            state = tx.init(params)
            first, state = tx.update(grads, state, params, cluster_ids=ids, group_sizes=sizes)
            moved = optax.apply_updates(params, first)
            second, state = tx.update(grads, state, moved, cluster_ids=ids[::-1], group_sizes=sizes)
            return optax.apply_updates(moved, second)

        return run

    return two_steps(whole), two_steps(tx)


@pytest.mark.parametrize("mixture", MIXTURES)
def test_clusters_may_lie_on_devices_in_any_mixture(mixture):
    whole, sharded = _updates(4, None)
    ids, sizes = jnp.array(MIXTURES[mixture]), jnp.full(8, 3)
    assert_close(sharded(random_grads(8), ids, sizes), whole(random_grads(8), ids, sizes))


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
def test_groups_that_lie_on_devices_are_updated_without_moving_whole_gradients(kind):
    """Also without `shard_by_parameter`: what is summed over the groups is summed on each device first."""
    mesh = jax.make_mesh((8,), ("data",), axis_types=(kind,), devices=jax.devices()[:8])
    whole, _ = _updates(8, None)
    grads, ids, sizes = random_grads(8), jnp.arange(8) % 3, jnp.full(8, 3)
    spread = jax.tree.map(lambda g: jax.device_put(g, NamedSharding(mesh, P("data"))), grads)
    with jax.set_mesh(mesh):
        update = whole.lower(spread, ids, sizes).compile()
    assert "collective-permute" not in count_kinds(collectives(update), at_least=64)  # ids may move
    assert_close(update(spread, ids, sizes), whole(grads, ids, sizes))


@settings(max_examples=10)
@given(data=st.data())
def test_any_ids_and_sizes_give_the_update_of_one_device(data):
    ids = jnp.array(data.draw(st.lists(st.integers(-1, 4), min_size=8, max_size=8)))
    sizes = jnp.array(data.draw(st.lists(st.integers(0, 5), min_size=8, max_size=8)))
    merging = data.draw(st.sampled_from([None, 1, 2]))
    if merging == 1:  # four groups a device: all of one cluster
        ids = jnp.repeat(ids[::4], 4)
    elif merging == 2:
        ids = jnp.tile(ids.reshape(2, 4)[:, :2], (1, 2)).reshape(-1)
    whole, _ = _updates(2, None)
    _, sharded = _updates(2, merging)
    grads = jax.tree.map(
        # Padding may hold anything.
        lambda g: jnp.where((sizes > 0).reshape(-1, *(1,) * (g.ndim - 1)), g, jnp.nan),
        random_grads(8),
    )
    # ids of one order, so that the second step of `two_steps` keeps the promise too
    assert_close(sharded(grads, ids, sizes), whole(grads, ids, sizes))


@pytest.mark.parametrize("name", ["discover_qhm", "discover_igt"])
def test_every_optimizer_may_have_its_groups_averaged_by_cluster_before_they_are_sent(name):
    whole, sharded = _updates(2, 2, name=name)
    ids, sizes = jnp.array([0, 1, 1, 0, 3, 2, 3, 3]), jnp.array([1, 2, 3, 4, 0, 2, 2, 1])
    assert_close(sharded(random_grads(8), ids, sizes), whole(random_grads(8), ids, sizes))


def test_a_broken_promise_about_clusters_per_device_cannot_pass_unnoticed():
    _, sharded = _updates(2, 2)
    kept, broken = jnp.array([0, 1, 0, 1, 2, 3, 2, 3]), jnp.array([0, 1, 2, 1, 2, 3, 2, 3])
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(sharded(random_grads(8), kept, jnp.full(8, 3))))
    assert all(np.isnan(leaf).all() for leaf in jax.tree.leaves(sharded(random_grads(8), broken, jnp.full(8, 3))))


def test_more_devices_than_groups_are_padded_with_groups_that_do_not_count():
    mesh = make_mesh(8)
    data, ids, sizes = jax.tree.map(lambda a: a[0, :3], make_batches())
    sizes = jnp.maximum(sizes, 1)
    padded = pad_groups(data, ids, sizes, 8)
    assert [leaf.shape[0] for leaf in jax.tree.leaves(padded)] == [8] * 4
    params, whole = make_params(), make_optimizer("discover")
    tx = shard_by_parameter(whole, mesh)

    def one(tx, gradients, batch):
        _, grads = gradients(params, batch[0])
        return tx.update(grads, tx.init(params), params, cluster_ids=batch[1], group_sizes=batch[2])[0]

    got = quick_jit(lambda batch: one(tx, sharded_group_value_and_grad(loss, mesh), batch))(padded)
    want = quick_jit(lambda batch: one(whole, discover.group_value_and_grad(loss), batch))((data, ids, sizes))
    assert_close(got, want)


def test_pad_groups_counts_examples_where_no_sizes_are_given():
    _, ids, sizes = pad_groups(jnp.ones((2, 7)), jnp.array([1, 0]), None, 2)
    assert (ids.tolist(), sizes.tolist()) == ([1, 0], [7, 7])
