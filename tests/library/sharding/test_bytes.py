"""What a step sends and a device holds, read from the compiled program and compared with momentum's."""

import functools
import itertools

import jax
import jax.numpy as jnp
import optax
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import discover
from benchmarks.traffic import bytes_sent, collectives, count_kinds
from discover.sharding import (
    shard_by_parameter,
    sharded_group_value_and_grad,
    state_shardings,
)
from tests.library.sharding.sharded import (
    CLUSTERS,
    MODEL_SPECS,
    SIZE,
    loss,
    make_mesh,
    make_optimizer,
    make_params,
    make_step,
    quick_jit,
)

pytestmark = pytest.mark.float32


def compiled_step(tx, gradients, mesh, params, groups, *, param_specs=None):
    """One compiled training step with the batch spread over the devices."""
    everywhere = NamedSharding(mesh, P())
    by_group = NamedSharding(mesh, P("data"))
    specs = param_specs or jax.tree.map(lambda _: P(), params)
    params = jax.tree.map(lambda p, s: jax.device_put(p, NamedSharding(mesh, s)), params, specs)
    state = tx.init(params)
    data = jax.device_put((jnp.ones((groups, SIZE, 5)), jnp.ones((groups, SIZE, 2))), by_group)
    ids, sizes = jax.device_put((jnp.arange(groups) % 4, jnp.full(groups, SIZE)), everywhere)
    key = jax.device_put(jax.random.key(0), everywhere)
    return quick_jit(make_step(tx, gradients)).lower((params, state), (data, ids, sizes, key)).compile()


@functools.cache
def momentum_step(devices, rows, columns, param_dtype="float32"):
    """Ordinary data parallelism: the gradient of the mean loss, momentum, everything replicated."""
    mesh = make_mesh(devices)
    tx = optax.sgd(0.1, momentum=0.9)
    params = jax.tree.map(lambda p: p.astype(param_dtype), make_params(rows, columns))

    def step(params, state, x, y):
        grads = jax.grad(lambda p: loss(p, (x.reshape(-1, rows), y.reshape(-1, 2))))(params)
        updates, state = tx.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    everywhere, by_group = NamedSharding(mesh, P()), NamedSharding(mesh, P("data"))
    arguments = (
        *jax.device_put((params, tx.init(params)), everywhere),
        *jax.device_put((jnp.ones((8, SIZE, rows)), jnp.ones((8, SIZE, 2))), by_group),
    )
    return quick_jit(step, out_shardings=everywhere).lower(*arguments).compile()


def wide_step(devices, clusters, groups, **options):
    """A compiled Discover step on a layer of 5 x 4000 values, large enough for padding not to count."""
    mesh = make_mesh(devices)
    tx = shard_by_parameter(discover.discover(0.1, discover.Clusters.uniform(clusters)), mesh, **options)
    return compiled_step(tx, sharded_group_value_and_grad(loss, mesh), mesh, make_params(5, 4000), groups)


@pytest.mark.parametrize(("devices", "clusters"), [(2, 4), (8, 100)])
def test_a_step_is_one_all_to_all_and_one_all_gather_and_sends_no_more_than_momentum(devices, clusters):
    operations = collectives(wide_step(devices, clusters, groups=devices))
    assert count_kinds(operations) == {"all-to-all": 1, "all-gather": 1}
    momentum = collectives(momentum_step(devices, 5, 4000))
    assert set(count_kinds(momentum)) == {"all-reduce"}
    sent, allowed = sum(o.sent for o in operations), sum(o.sent for o in momentum)
    assert 0.95 * allowed < sent <= 1.05 * allowed


@pytest.mark.parametrize(
    ("options", "times"),
    [
        ({}, 1.5),  # two clusters' gradients a device, and the parameters
        ({"exchange_dtype": jnp.bfloat16}, 1.0),  # the gradients at half the bytes
        ({"clusters_per_device": 1}, 1.0),
    ],
)
def test_several_groups_on_a_device_cost_what_the_documentation_says(options, times):
    sent = bytes_sent(wide_step(4, 4, groups=8, **options))
    assert sent == pytest.approx(times * bytes_sent(momentum_step(4, 5, 4000)), rel=0.02)


def test_gradients_and_parameters_of_half_precision_travel_as_such():
    mesh = make_mesh(4)
    params = jax.tree.map(lambda p: p.astype(jnp.bfloat16), make_params(5, 400))
    tx = shard_by_parameter(discover.discover(0.1, CLUSTERS), mesh)
    lowered = quick_jit(tx.update).lower(
        jax.tree.map(lambda p: jnp.ones((4, *p.shape), p.dtype), params),
        tx.init(params),
        params,
        cluster_ids=jnp.arange(4),
    )
    # The CPU's compiler would send 16-bit floats as 32 bits, so they travel as whole numbers.
    assert "xbf16" in lowered.as_text()
    values = sum(p.size for p in jax.tree.leaves(params))
    operations = collectives(lowered.compile())
    assert [o.kind for o in operations] == ["all-to-all", "all-gather"]
    assert all(2 * values <= o.payload <= 2 * values + 2 * 4 * len(jax.tree.leaves(params)) for o in operations)


def test_with_a_model_axis_a_step_sends_along_the_data_axis_what_momentum_sends():
    mesh = make_mesh(8, ("data", "model"), (2, 4))
    params, specs = make_params(5, 4000), MODEL_SPECS
    gradients = sharded_group_value_and_grad(loss, mesh)
    tx = shard_by_parameter(discover.discover(0.1, CLUSTERS), mesh, param_specs=specs)
    step = collectives(compiled_step(tx, gradients, mesh, params, 2, param_specs=specs))
    forward = quick_jit(gradients).lower(
        jax.tree.map(lambda p, s: jax.device_put(p, NamedSharding(mesh, s)), params, specs),
        jax.device_put((jnp.ones((2, SIZE, 5)), jnp.ones((2, SIZE, 2))), NamedSharding(mesh, P("data"))),
        key=jax.random.key(0),
    )
    in_the_network = collectives(forward.compile())  # tensor parallelism's own, along the model axis
    assert {o.devices for o in in_the_network} == {4}
    in_the_update = [o for o in step if o.devices == 2]
    assert count_kinds(in_the_update) == {"all-to-all": 1, "all-gather": 1}
    assert len(step) - len(in_the_update) == len(in_the_network)
    per_device = sum(p.nbytes for p in jax.tree.leaves(params)) / 4  # a quarter of the parameters
    momentum = 2 * per_device * (2 - 1) / 2
    assert sum(o.sent for o in in_the_update) <= 1.05 * momentum


def test_each_device_holds_its_share_of_all_buffers():
    mesh, params = make_mesh(8), make_params(5, 4000)
    tx = shard_by_parameter(discover.discover(0.1, discover.Clusters.uniform(10)), mesh)
    state = tx.init(params)
    values = sum(p.size for p in jax.tree.leaves(params))
    held = sum(leaf.addressable_shards[0].data.size for leaf in jax.tree.leaves(state))
    assert 11 * values / 8 <= held <= 11 * values / 8 + 11 * 8 * len(jax.tree.leaves(params))


def test_the_state_s_shapes_and_places_are_known_without_computing_it():
    mesh, params = make_mesh(4), make_params()
    inner = make_optimizer("discover_igt")
    abstract = state_shardings(inner, jax.eval_shape(lambda: params), mesh)
    state = shard_by_parameter(inner, mesh).init(params)
    for want, got in itertools.zip_longest(jax.tree.leaves(abstract), jax.tree.leaves(state)):
        assert (want.shape, want.dtype) == (got.shape, got.dtype)
        assert want.sharding.is_equivalent_to(got.sharding, got.ndim)
