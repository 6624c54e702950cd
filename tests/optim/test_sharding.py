"""The same trajectory on any number of devices, and no more sent than momentum sends."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import discover
from discover.optim._context import in_slices
from discover.optim.communication import bytes_sent, collectives, count_kinds
from discover.optim.sharding import (
    pad_groups,
    shard_by_parameter,
    sharded_eval_params,
    sharded_group_value_and_grad,
    state_shardings,
)

CLUSTERS = discover.Clusters((0.4, 0.3, 0.2, 0.1))
MASK = functools.partial(jax.tree.map, lambda p: p.ndim > 1)
OPTIMIZERS = {
    "sgd": lambda: discover.sgd(0.1),
    "momentum": lambda: discover.momentum(0.1, weight_decay=0.01, mask=MASK),
    "qhm": lambda: discover.qhm(0.1, l2=0.01),
    "adam": lambda: discover.adam(0.01),
    "igt": lambda: discover.igt_momentum(0.1, tail_fraction=2.0),
    "discover": lambda: discover.discover(0.1, CLUSTERS, weight_decay=0.01, mask=MASK),
    "discover_qhm": lambda: discover.discover_qhm(0.1, CLUSTERS, nu=0.7, rate="per_visit", estimate_probs=True),
    "discover_igt": lambda: discover.discover_igt(0.1, CLUSTERS, tail_fraction=2.0, l2=0.01, mask=MASK),
    "paper_discover": lambda: discover.paper_discover(0.1, CLUSTERS, alpha=0.1, alpha_n=0.1),
    "paper_discover_qhm": lambda: discover.paper_discover_qhm(0.1, CLUSTERS, alpha=0.1, alpha_n=0.1, nu=0.5),
    "paper_discover_igt": lambda: discover.paper_discover_igt(0.1, CLUSTERS, alpha=0.1, alpha_n=0.1),
}
PLAIN = ("sgd", "momentum", "qhm", "adam", "igt")
STEPS, GROUPS, SIZE = 4, 8, 3
# Programs that run for a moment are compiled without LLVM's optimizations, which take longer than they save here.
quick_jit = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})


def make_mesh(count, names=("data",), shape=None):
    return Mesh(np.array(jax.devices()[:count]).reshape(shape or (count,)), names)


def loss(params, group, *, key=None):
    x, y = group
    noise = 0.0 if key is None else 0.1 * jax.random.normal(key, y.shape)
    hidden = jnp.tanh(x @ params["layer"]["kernel"] + params["layer"]["bias"][None])
    return jnp.mean((hidden @ params["out"] + params["shift"] - y + noise) ** 2)


@functools.cache
def make_params(rows=5, columns=7):
    """Shapes that 2, 4 and 8 do not divide, and a scalar."""
    keys = jax.random.split(jax.random.key(0), 2)
    return {
        "layer": {"kernel": 0.5 * jax.random.normal(keys[0], (rows, columns)), "bias": jnp.zeros(columns)},
        "out": 0.5 * jax.random.normal(keys[1], (columns, 2)),
        "shift": jnp.zeros(()),
    }


@functools.cache
def make_batches(steps=STEPS, groups=GROUPS, seed=1):
    keys = jax.random.split(jax.random.key(seed), 3)
    x = jax.random.normal(keys[0], (steps, groups, SIZE, 5))
    ids = jax.random.randint(keys[1], (steps, groups), 0, CLUSTERS.num_clusters)
    y = jnp.sin(x[..., :2]) + ids[..., None, None]
    sizes = jax.random.randint(keys[2], (steps, groups), 0, SIZE + 1)
    return (x, y), ids, sizes


def make_step(tx, gradients):
    def step(carry, batch):
        params, state = carry
        data, ids, sizes, key = batch
        losses, grads = gradients(params, data, key=key)
        updates, state = tx.update(grads, state, params, cluster_ids=ids, group_sizes=sizes)
        return (optax.apply_updates(params, updates), state), losses

    return step


def train(tx, gradients, params, batches):
    """Parameters after each batch, in one compiled loop."""
    keys = jax.random.split(jax.random.key(9), batches[1].shape[0])

    @quick_jit
    def run(params, batches):
        def body(carry, batch):
            carry, losses = make_step(tx, gradients)(carry, batch)
            return carry, (carry[0], losses)

        return jax.lax.scan(body, (params, tx.init(params)), (*batches, keys))

    return run(params, batches)


def assert_close(actual, expected, rtol=1e-10, atol=1e-12):
    jax.tree.map(lambda a, e: np.testing.assert_allclose(a, e, rtol=rtol, atol=atol), actual, expected)


@functools.cache
def reference(name):
    return train(OPTIMIZERS[name](), discover.group_value_and_grad(loss), make_params(), make_batches())


# All optimizers on 8 devices, and Discover on every number, are checked always; the rest on demand.
ALWAYS = [(name, 8) for name in OPTIMIZERS] + [("discover", devices) for devices in (1, 2, 4)]
ON_DEMAND = [pair for pair in itertools.product(OPTIMIZERS, (1, 2, 4)) if pair not in ALWAYS]


@pytest.mark.parametrize(
    ("name", "devices"), ALWAYS + [pytest.param(*pair, marks=pytest.mark.slow) for pair in ON_DEMAND]
)
def test_every_optimizer_takes_the_same_trajectory_on_any_number_of_devices(name, devices):
    mesh = make_mesh(devices)
    exchange = "mean" if name in PLAIN and devices == 4 else "groups"
    tx = shard_by_parameter(OPTIMIZERS[name](), mesh, exchange=exchange)
    (params, state), history = train(tx, sharded_group_value_and_grad(loss, mesh), make_params(), make_batches())
    (_, whole_state), expected = reference(name)
    assert_close(history, expected)
    assert_close(sharded_eval_params(state, params, mesh), discover.igt_eval_params(whole_state, params))


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
    whole = OPTIMIZERS[name]()
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


@functools.cache
def random_grads(groups, seed=0):
    params = make_params()
    keys = jax.random.split(jax.random.key(seed), len(jax.tree.leaves(params)))
    flat = [jax.random.normal(k, (groups, *p.shape)) for k, p in zip(keys, jax.tree.leaves(params))]
    return jax.tree.unflatten(jax.tree.structure(params), flat)


@pytest.mark.parametrize("mixture", MIXTURES)
def test_clusters_may_lie_on_devices_in_any_mixture(mixture):
    whole, sharded = _updates(4, None)
    ids, sizes = jnp.array(MIXTURES[mixture]), jnp.full(8, 3)
    assert_close(sharded(random_grads(8), ids, sizes), whole(random_grads(8), ids, sizes))


@settings(max_examples=25, deadline=None)
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


def test_a_broken_promise_about_clusters_per_device_cannot_pass_unnoticed():
    _, sharded = _updates(2, 2)
    kept, broken = jnp.array([0, 1, 0, 1, 2, 3, 2, 3]), jnp.array([0, 1, 2, 1, 2, 3, 2, 3])
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(sharded(random_grads(8), kept, jnp.full(8, 3))))
    assert all(np.isnan(leaf).all() for leaf in jax.tree.leaves(sharded(random_grads(8), broken, jnp.full(8, 3))))


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


@pytest.mark.parametrize(("devices", "clusters"), [(2, 4), (8, 4), (8, 100)])
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
        ({"clusters_per_device": 1}, 1.0),
        ({"exchange": "mean"}, 1.0),
    ],
)
def test_several_groups_on_a_device_cost_what_the_documentation_says(options, times):
    sent = bytes_sent(wide_step(4, 4, groups=8, **options))
    assert sent == pytest.approx(times * bytes_sent(momentum_step(4, 5, 4000)), rel=0.02)


def test_gradients_and_parameters_of_half_precision_travel_as_such():
    mesh = make_mesh(4)
    params = jax.tree.map(lambda p: p.astype(jnp.bfloat16), make_params(5, 400))
    tx = shard_by_parameter(discover.discover(0.1, CLUSTERS), mesh)
    lowered = jax.jit(tx.update).lower(
        jax.tree.map(lambda p: jnp.ones((4, *p.shape), p.dtype), params),
        tx.init(params),
        params,
        cluster_ids=jnp.arange(4),
    )
    # The CPU backend widens 16-bit collectives, so this is read before its own passes.
    lines = [line for line in lowered.as_text().splitlines() if "all_to_all" in line or "all_gather" in line]
    moved = [line for line in lines if "stablehlo" in line]
    assert len(moved) == 2
    assert all("bf16" in line and "xf32" not in line for line in moved)


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


def test_each_device_holds_its_share_of_all_buffers():
    mesh, params = make_mesh(8), make_params(5, 4000)
    tx = shard_by_parameter(discover.discover(0.1, discover.Clusters.uniform(10)), mesh)
    state = tx.init(params)
    values = sum(p.size for p in jax.tree.leaves(params))
    held = sum(leaf.addressable_shards[0].data.size for leaf in jax.tree.leaves(state))
    assert 11 * values / 8 <= held <= 11 * values / 8 + 11 * 8 * len(jax.tree.leaves(params))


MODEL_SPECS = {"layer": {"kernel": P(None, "model"), "bias": P("model")}, "out": P("model", None), "shift": P()}


@pytest.mark.parametrize(("name", "shape"), [("discover", (2, 4)), ("discover_igt", (4, 2)), ("adam", (2, 4))])
def test_parameters_sharded_over_a_model_axis_take_the_same_trajectory(name, shape):
    mesh = make_mesh(8, ("data", "model"), shape)
    params = make_params(5, 12)
    tx = shard_by_parameter(OPTIMIZERS[name](), mesh, param_specs=MODEL_SPECS)
    placed = jax.tree.map(lambda p, s: jax.device_put(p, NamedSharding(mesh, s)), params, MODEL_SPECS)
    (_, state), history = train(tx, sharded_group_value_and_grad(loss, mesh), placed, make_batches())
    _, expected = train(OPTIMIZERS[name](), discover.group_value_and_grad(loss), params, make_batches())
    assert_close(history, expected)
    for leaf in jax.tree.leaves(state):
        assert leaf.ndim == 0 or leaf.addressable_shards[0].data.size <= leaf.size / shape[0]


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


def test_more_devices_than_groups_are_padded_with_groups_that_do_not_count():
    mesh = make_mesh(8)
    data, ids, sizes = jax.tree.map(lambda a: a[0, :3], make_batches())
    sizes = jnp.maximum(sizes, 1)
    padded = pad_groups(data, ids, sizes, 8)
    assert [leaf.shape[0] for leaf in jax.tree.leaves(padded)] == [8] * 4
    params, whole = make_params(), OPTIMIZERS["discover"]()
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


def test_the_state_s_shapes_and_places_are_known_without_computing_it():
    mesh, params = make_mesh(4), make_params()
    inner = OPTIMIZERS["discover_igt"]()
    abstract = state_shardings(inner, jax.eval_shape(lambda: params), mesh)
    state = shard_by_parameter(inner, mesh).init(params)
    for want, got in itertools.zip_longest(jax.tree.leaves(abstract), jax.tree.leaves(state)):
        assert (want.shape, want.dtype) == (got.shape, got.dtype)
        assert want.sharding.is_equivalent_to(got.sharding, got.ndim)


@pytest.mark.parametrize("devices", [1, 2])
def test_kernels_are_told_to_stay_away_from_slices_on_several_devices(devices):
    seen = []

    def update(updates, state, params=None, **_):
        del params
        seen.append(in_slices.get())
        return jax.tree.map(lambda g: jnp.sum(g, axis=0), updates), state

    inner = optax.GradientTransformationExtraArgs(lambda params: (), update)
    tx = shard_by_parameter(inner, make_mesh(devices))
    jax.eval_shape(lambda g, p: tx.update(g, (), p), jnp.ones((2, 3)), jnp.ones(3))
    assert seen == [devices > 1]
    assert not in_slices.get()


def test_members_may_train_side_by_side():
    mesh = make_mesh(2)
    params = jax.tree.map(lambda p: jnp.stack([p, 2 * p]), make_params())
    data, ids, sizes = jax.tree.map(lambda a: a[0], make_batches())

    def step(tx, gradients):
        def one(params):
            _, grads = gradients(params, data)
            return tx.update(grads, tx.init(params), params, cluster_ids=ids, group_sizes=sizes)[0]

        return quick_jit(jax.vmap(one))(params)

    whole = OPTIMIZERS["discover"]()
    sharded = step(shard_by_parameter(whole, mesh), sharded_group_value_and_grad(loss, mesh))
    assert_close(sharded, step(whole, discover.group_value_and_grad(loss)))


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: shard_by_parameter(discover.sgd(0.1), make_mesh(2), data_axis="batch"), "no axis 'batch'.*'data'"),
        (
            lambda: shard_by_parameter(discover.sgd(0.1), jax.make_mesh((2,), ("data",))),
            "type Auto, got Explicit",
        ),
        (lambda: shard_by_parameter(discover.sgd(0.1), make_mesh(2), exchange="sum"), "'groups', 'mean', got 'sum'"),
        (
            lambda: shard_by_parameter(discover.sgd(0.1), make_mesh(2), clusters_per_device=0),
            "at least 1, got 0",
        ),
        (
            lambda: shard_by_parameter(discover.sgd(0.1), make_mesh(2)).update(
                jnp.ones((3, 2)), (), jnp.ones(2), cluster_ids=jnp.arange(3)
            ),
            "multiple of the 2 devices.*got 3; pad_groups",
        ),
        (
            lambda: shard_by_parameter(discover.sgd(0.1), make_mesh(2)).update(jnp.ones((2, 2)), ()),
            "needs the parameters",
        ),
        (
            lambda: shard_by_parameter(discover.sgd(0.1), make_mesh(2), param_specs=P("data")).init(jnp.ones(2)),
            "sharded over 'data', the axis of the batches",
        ),
        (
            lambda: shard_by_parameter(discover.sgd(0.1), make_mesh(2), param_specs=P("model")).init(jnp.ones(2)),
            "sharded over 'model'; the mesh has data",
        ),
        (
            lambda: shard_by_parameter(
                discover.sgd(0.1), make_mesh(8, ("data", "model"), (2, 4)), param_specs=P("model")
            ).init(jnp.ones(6)),
            r"dimension 0 of the parameter, \(6,\), does not divide over the 4 devices",
        ),
        (
            lambda: shard_by_parameter(discover.sgd(0.1), make_mesh(2), param_specs=P()).init((jnp.ones(2),) * 2),
            "one PartitionSpec per parameter, got 1 for 2",
        ),
        (
            lambda: sharded_group_value_and_grad(loss, make_mesh(2))(make_params(), jnp.ones((3, 2))),
            "multiple of the 2 devices.*got 3; pad_groups",
        ),
    ],
)
def test_a_call_that_cannot_be_says_what_is_wrong(call, says):
    with pytest.raises(ValueError, match=says):
        call()
