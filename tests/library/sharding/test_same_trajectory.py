"""The same trajectory on any number of devices."""

import functools
import itertools

import jax
import jax.numpy as jnp
import optax
import pytest
from jax.sharding import NamedSharding

import discover
from discover.registry import OPTIMIZERS
from discover.sharding import (
    shard_by_parameter,
    sharded_eval_params,
    sharded_group_value_and_grad,
)
from tests.library.sharding.sharded import (
    CLUSTERS,
    MODEL_SPECS,
    assert_close,
    loss,
    make_batches,
    make_mesh,
    make_optimizer,
    make_params,
    quick_jit,
    random_grads,
    train,
)


@functools.cache
def reference(name):
    return train(make_optimizer(name), discover.group_value_and_grad(loss), make_params(), make_batches())


# One of each kind on 4 devices, and Discover on 1, are checked always; every optimizer on every number on demand.
ALWAYS = [(name, 4) for name in ("momentum", "discover", "discover_muon")] + [("discover", 1)]


ON_DEMAND = [pair for pair in itertools.product(OPTIMIZERS, (1, 2, 4, 8)) if pair not in ALWAYS]


@pytest.mark.parametrize(
    ("name", "devices"), ALWAYS + [pytest.param(*pair, marks=pytest.mark.slow) for pair in ON_DEMAND]
)
def test_every_optimizer_takes_the_same_trajectory_on_any_number_of_devices(name, devices):
    mesh = make_mesh(devices)
    exchange = "mean" if not OPTIMIZERS[name].clustered and devices == 4 else "groups"
    tx = shard_by_parameter(make_optimizer(name), mesh, exchange=exchange)
    (params, state), history = train(tx, sharded_group_value_and_grad(loss, mesh), make_params(), make_batches())
    (_, whole_state), expected = reference(name)
    assert_close(history, expected)
    assert_close(sharded_eval_params(state, params, mesh), discover.igt_eval_params(whole_state, params))


@pytest.mark.parametrize(
    ("name", "shape"), [("discover", (2, 4)), pytest.param("discover_igt", (4, 2), marks=pytest.mark.slow)]
)
def test_parameters_sharded_over_a_model_axis_take_the_same_trajectory(name, shape):
    mesh = make_mesh(8, ("data", "model"), shape)
    params = make_params(5, 12)
    tx = shard_by_parameter(make_optimizer(name), mesh, param_specs=MODEL_SPECS)
    placed = jax.tree.map(lambda p, s: jax.device_put(p, NamedSharding(mesh, s)), params, MODEL_SPECS)
    (_, state), history = train(tx, sharded_group_value_and_grad(loss, mesh), placed, make_batches())
    _, expected = train(make_optimizer(name), discover.group_value_and_grad(loss), params, make_batches())
    assert_close(history, expected)
    for leaf in jax.tree.leaves(state):
        assert leaf.ndim == 0 or leaf.addressable_shards[0].data.size <= leaf.size / shape[0]


def test_half_precision_parameters_take_the_steps_of_one_device():
    params = jax.tree.map(lambda p: p.astype(jnp.bfloat16), make_params())
    grads = jax.tree.map(lambda g: g.astype(jnp.bfloat16), random_grads(4))
    whole = discover.discover(0.1, CLUSTERS)
    sharded = shard_by_parameter(whole, make_mesh(2))

    def step(tx):
        @quick_jit
        def run(params):
            updates, _ = tx.update(grads, tx.init(params), params, cluster_ids=jnp.arange(4))
            return optax.apply_updates(params, updates)

        return run(params)

    assert_close(*(jax.tree.map(lambda x: x.astype(jnp.float32), step(tx)) for tx in (sharded, whole)), rtol=1e-2)


def test_gradients_may_be_sent_in_half_precision():
    params, grads = make_params(), random_grads(4)
    whole = discover.discover(0.1, CLUSTERS)
    tx = shard_by_parameter(whole, make_mesh(2), exchange_dtype=jnp.bfloat16)

    def first(tx):
        return quick_jit(lambda p: tx.update(grads, tx.init(p), p, cluster_ids=jnp.arange(4)))(params)

    (updates, state), (expected, whole_state) = first(tx), first(whole)
    assert_close(updates, expected, rtol=1e-2, atol=1e-3)
    assert [leaf.dtype for leaf in jax.tree.leaves(state)] == [leaf.dtype for leaf in jax.tree.leaves(whole_state)]


def test_members_may_train_side_by_side():
    mesh = make_mesh(2)
    params = jax.tree.map(lambda p: jnp.stack([p, 2 * p]), make_params())
    data, ids, sizes = jax.tree.map(lambda a: a[0], make_batches())

    def step(tx, gradients):
        def one(params):
            _, grads = gradients(params, data)
            return tx.update(grads, tx.init(params), params, cluster_ids=ids, group_sizes=sizes)[0]

        return quick_jit(jax.vmap(one))(params)

    whole = make_optimizer("discover")
    sharded = step(shard_by_parameter(whole, mesh), sharded_group_value_and_grad(loss, mesh))
    assert_close(sharded, step(whole, discover.group_value_and_grad(loss)))
