"""A mixed batch becomes padded groups of one cluster each."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given
from hypothesis import strategies as st

import discover
from discover.lab.data import DataError, group_by_cluster


@given(
    ids=st.lists(st.integers(0, 6), min_size=1, max_size=80),
    extra=st.integers(0, 3),
    group_size=st.one_of(st.none(), st.integers(1, 20)),
)
def test_groups_are_pure_and_hold_every_example_once(ids, extra, group_size):
    ids = np.array(ids)
    num_clusters = 7 + extra
    groups = group_by_cluster(ids, num_clusters, group_size=group_size)
    real = groups.mask.astype(bool)
    assert sorted(groups.indices[real].tolist()) == list(range(len(ids)))
    assert np.array_equal(groups.mask.sum(1), groups.group_sizes)
    owners = np.broadcast_to(groups.cluster_ids[:, None], groups.indices.shape)
    assert np.array_equal(ids[groups.indices[real]], owners[real])
    # Padding stays inside its cluster, where the group has one at all.
    padded = ~real & (groups.group_sizes > 0)[:, None]
    assert np.array_equal(ids[groups.indices[padded]], owners[padded])
    assert groups.indices.min() >= 0
    assert groups.indices.max() < len(ids)


@given(
    n=st.integers(1, 60), num_clusters=st.integers(1, 9), size=st.one_of(st.none(), st.integers(1, 20)), data=st.data()
)
def test_the_shape_does_not_depend_on_the_ids(n, num_clusters, size, data):
    batches = [data.draw(st.lists(st.integers(0, num_clusters - 1), min_size=n, max_size=n)) for _ in range(2)]
    worst = [k % num_clusters for k in range(n)]
    shapes = {group_by_cluster(ids, num_clusters, group_size=size).indices.shape for ids in (*batches, worst)}
    assert len(shapes) == 1


def example_losses(params, inputs, targets):
    return jnp.square(jnp.tanh(inputs @ params["w"]) + params["b"] - targets)


def masked_loss(params, group):
    inputs, targets, mask = group
    return jnp.sum(mask * example_losses(params, inputs, targets)) / jnp.maximum(jnp.sum(mask), 1)


def test_padded_groups_train_as_whole_clusters_without_padding_do():
    rng = np.random.default_rng(0)
    batch_size, num_clusters, steps = 13, 4, 6
    tx = discover.discover(0.1, discover.Clusters((0.4, 0.3, 0.2, 0.1)), beta=0.8, nu=0.5)
    with jax.enable_x64(True):
        start = {"w": jnp.asarray(rng.normal(size=3)), "b": jnp.asarray(rng.normal(size=()))}
        padded, whole = (start, tx.init(start)), (start, tx.init(start))
        value_and_grad = discover.group_value_and_grad(masked_loss)

        def update(params, state, grads, ids, sizes):
            updates, state = tx.update(grads, state, params, cluster_ids=ids, group_sizes=sizes)
            return optax.apply_updates(params, updates), state

        @jax.jit
        def padded_step(params, state, group, ids, sizes):
            return update(params, state, value_and_grad(params, group)[1], ids, sizes)

        whole_step = jax.jit(update)
        example_grads = jax.jit(jax.vmap(jax.grad(example_losses), in_axes=(None, 0, 0)))

        seen = set()
        for _ in range(steps):
            ids = rng.choice(num_clusters, batch_size, p=(0.7, 0.15, 0.1, 0.05))
            inputs, targets = rng.normal(size=(batch_size, 3)), rng.normal(size=batch_size)
            groups = group_by_cluster(ids, num_clusters, group_size=3)
            seen |= {int(size) for size in groups.group_sizes}
            group = (inputs[groups.indices], targets[groups.indices], groups.mask)
            padded = padded_step(*padded, group, groups.cluster_ids, groups.group_sizes)

            # The same without groups: one gradient for each cluster that is there, the mean over just its examples.
            present, counts = np.unique(ids, return_counts=True)
            average = (ids == present[:, None]) / counts[:, None]  # [clusters that are there, examples]
            each = example_grads(whole[0], inputs, targets)
            grads = jax.tree.map(lambda leaf, average=average: np.tensordot(average, leaf, 1), each)
            whole = whole_step(*whole, grads, present, counts)
            for got, want in zip(jax.tree.leaves(padded), jax.tree.leaves(whole), strict=True):
                np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-14)
        assert padded_step._cache_size() == 1
        assert seen == {0, 1, 2, 3}  # full, partly padded and empty groups all occurred
        assert not np.allclose(padded[0]["w"], start["w"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"cluster_ids": [0, 3]}, "must lie in 0…2, got 0…3"),
        ({"cluster_ids": [0, -1]}, "must lie in 0…2, got -1…0"),
        ({"cluster_ids": [0.5]}, "one integer for each example"),
        ({"cluster_ids": []}, "one integer for each example"),
        ({"cluster_ids": [0], "group_size": 0}, "group_size must be an integer of at least 1"),
        ({"cluster_ids": [0, 1, 2], "groups": 2}, "needs 3 groups of 1, got groups=2"),
        ({"cluster_ids": [0], "num_clusters": 0}, "num_clusters must be an integer of at least 1"),
    ],
)
def test_bad_values_are_named(arguments, message):
    with pytest.raises(DataError, match=message):
        group_by_cluster(**({"num_clusters": 3} | arguments))
