"""What an optax user expects of every optimizer here."""

import functools
import inspect
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest

import discover
from discover.registry import OPTIMIZERS
from discover.rule import AFRESH
from tests.library import problem, table

CLUSTERS = table.CLUSTERS
every_optimizer = pytest.mark.parametrize("name", OPTIMIZERS)
IN_8_BITS = [f"{name}+int8" for name, entry in OPTIMIZERS.items() if "buffer_dtype" in entry.arguments]
every_state = pytest.mark.parametrize(
    "name", [*OPTIMIZERS, *(pytest.param(name, marks=pytest.mark.slow) for name in IN_8_BITS)]
)
GRADS = {"w": jnp.ones((2, problem.FEATURES, problem.CLASSES)), "b": jnp.ones((2, problem.CLASSES))}
IDS = np.array([0, 2], np.int32)


def batches(num_steps=20):
    return problem.draw_batches(num_steps, 4, CLUSTERS.probs)


def looks(tree):
    return jax.tree.map(lambda x: (x.shape, x.dtype), tree)


@every_optimizer
def test_the_table_says_what_the_factory_takes(name):
    entry = OPTIMIZERS[name]
    assert entry.clustered == ("clusters" in inspect.signature(entry.make).parameters)
    assert {"weight_decay", "l2"} <= set(entry.hyperparameters)
    assert "mask" not in entry.hyperparameters
    assert set(entry.search) <= {"learning_rate", *entry.hyperparameters}
    assert entry.baseline is None or not OPTIMIZERS[entry.baseline].clustered
    assert re.fullmatch("#[0-9A-F]{6}", entry.color)
    assert len({other.color for other in OPTIMIZERS.values()}) == len(OPTIMIZERS)


@every_state
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float16, jnp.bfloat16])
def test_updates_look_like_the_parameters_and_the_state_keeps_its_look(name, dtype):
    """Also when traced without numbers, with arguments that are somebody else's, and when the step is taken at once."""
    tx, params = table.make(name, weight_decay=0.1, l2=0.1), problem.start(dtype=dtype)
    grads = optax.tree.cast(GRADS, dtype)

    def step(params, state):
        updates, state = tx.update(grads, state, params, cluster_ids=IDS, value=1.0, somebody_elses=None)
        return optax.apply_updates(params, updates), state

    state = jax.eval_shape(tx.init, params)
    assert looks(jax.eval_shape(step, params, state)) == looks((params, state))
    at_once = functools.partial(discover.take_step, tx, grads, cluster_ids=IDS)
    assert looks(jax.eval_shape(lambda p, s: at_once(s, p), params, state)) == looks((params, state))
    if dtype == jnp.float32:
        assert looks(tx.init(params)) == looks(state)


@every_state
def test_update_and_sum_are_the_step_an_empty_batch_is_none_and_a_grid_of_rates_is_one_program(name):
    """Under jit and vmap, with donation, compiled once: what `alone` does with one rate `together` does with two."""
    traces = []

    def make(rate):
        traces.append(1)
        return table.make(name, rate, weight_decay=0.1 * rate, l2=0.01 * rate)

    def step(rate, params, state, ids, sizes):
        updates, state = make(rate).update(GRADS, state, params, cluster_ids=ids, group_sizes=sizes)
        return optax.apply_updates(params, updates), state

    @jax.jit
    def alone(rate, params, state, ids, sizes):
        at_once = discover.take_step(make(rate), GRADS, state, params, cluster_ids=ids, group_sizes=sizes)
        return step(rate, params, state, ids, sizes), at_once

    together = jax.jit(jax.vmap(step, (0, 0, 0, None, None)), donate_argnums=(1, 2))
    rates, start = np.array([0.01, 0.3]), problem.start()
    one = (start, table.make(name, 0.1).init(start))
    both = jax.tree.map(lambda x: np.stack([x, x]), one)
    for t in range(3):
        ids, sizes = np.array([t % 3, 2]), np.array([t, 3])
        one, at_once = alone(rates[1], *one, ids, sizes)
        jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-12), at_once, one)
        both = together(rates, *both, ids, sizes)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a[1], b, rtol=1e-9, atol=1e-12), both, one)
    for after in alone(rates[1], *one, ids, np.array([0, 0])):
        jax.tree.map(np.testing.assert_array_equal, after, one)
    assert len(traces) == 3  # two in the one program, one in the other


@every_state
def test_the_state_survives_a_checkpoint(name, tmp_path):
    tx, params = table.make(name), problem.start()
    shapes, rng = jax.eval_shape(tx.init, params), np.random.default_rng(0)
    state = jax.tree.map(lambda x: jnp.asarray(10 * rng.random(x.shape), x.dtype), shapes)
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "state", state)
        checkpointer.wait_until_finished()
        restored = checkpointer.restore(tmp_path / "state", shapes)
    assert jax.tree.structure(restored) == jax.tree.structure(state)
    jax.tree.map(np.testing.assert_array_equal, restored, state)


def test_it_composes_with_clipping_decay_schedules_and_averages():
    tx = optax.chain(
        discover.scale_by_discover(CLUSTERS, beta=0.9, nu=0.9),
        optax.clip_by_global_norm(1e-3),
        optax.add_decayed_weights(1e-4),
        optax.scale_by_adam(),
        optax.scale_by_learning_rate(optax.cosine_decay_schedule(0.1, 100)),
        optax.ema(0.9),
    )
    path, _ = problem.train(tx, problem.start(), batches(6))
    first = optax.chain(discover.scale_by_discover(CLUSTERS, beta=0.9, nu=0.9))
    rest = optax.chain(
        optax.clip_by_global_norm(1e-3),
        optax.add_decayed_weights(1e-4),
        optax.scale_by_adam(),
        optax.scale_by_learning_rate(optax.cosine_decay_schedule(0.1, 100)),
        optax.ema(0.9),
    )
    params = problem.start()
    state, other = first.init(params), rest.init(params)
    x, y, ids, _ = problem.stack(batches(6))

    @jax.jit
    def step(params, state, other, x, y, ids):
        _, grads = discover.group_value_and_grad(problem.loss)(params, (x, y))
        direction, state = first.update(grads, state, params, cluster_ids=ids)
        updates, other = rest.update(direction, other, params)
        return optax.apply_updates(params, updates), state, other

    for t in range(6):
        params, state, other = step(params, state, other, x[t], y[t], ids[t])
    np.testing.assert_allclose(path[-1], problem.flatten(params), rtol=1e-9)


def test_a_schedule_sets_the_learning_rate_of_each_step():
    halves = optax.exponential_decay(0.4, 1, 0.5)
    with_schedule, _ = problem.train(discover.discover(halves, CLUSTERS), problem.start(), batches(6))
    params = problem.start()
    state = discover.discover(0.4, CLUSTERS).init(params)
    x, y, ids, _ = problem.stack(batches(6))

    @jax.jit
    def step(rate, params, state, x, y, ids):
        tx = discover.discover(rate, CLUSTERS)
        _, grads = discover.group_value_and_grad(problem.loss)(params, (x, y))
        updates, after = tx.update(grads, state, params, cluster_ids=ids)
        return optax.apply_updates(params, updates), state._replace(direction=after.direction)

    for t in range(6):
        params, state = step(0.4 * 0.5**t, params, state, x[t], y[t], ids[t])
    np.testing.assert_allclose(with_schedule[-1], problem.flatten(params), rtol=1e-6)


@every_optimizer
def test_inject_hyperparams_works(name):
    entry = OPTIMIZERS[name]
    options = {key: table.NEEDED[key] for key in entry.required} | ({"clusters": CLUSTERS} if entry.clustered else {})
    injected = optax.inject_hyperparams(entry.make)(learning_rate=0.1, **options)
    plain = entry.make(0.1, **options)
    params = problem.start(dtype=jnp.float32)
    grads = optax.tree.cast(GRADS, jnp.float32)

    def three_steps(tx):
        def step(now, ids):
            params, state = now
            updates, state = tx.update(grads, state, params, cluster_ids=ids)
            return (optax.apply_updates(params, updates), state), None

        return jax.lax.scan(step, (params, tx.init(params)), jnp.array([[0, 2], [1, 2], [2, 0]]))[0][0]

    moved, expected = jax.jit(lambda: [three_steps(tx) for tx in (injected, plain)])()
    np.testing.assert_allclose(problem.flatten(moved), problem.flatten(expected), rtol=1e-4, atol=1e-6)


def test_inject_hyperparams_reaches_learning_rate_beta_and_nu():
    injected = optax.inject_hyperparams(discover.discover)(learning_rate=0.1, clusters=CLUSTERS, beta=0.9, nu=0.5)
    path, state = problem.train(injected, problem.start(), batches())
    plain, _ = problem.train(discover.discover(0.1, CLUSTERS, beta=0.9, nu=0.5), problem.start(), batches())
    np.testing.assert_allclose(path, plain, rtol=1e-6)
    assert set(state.hyperparams) >= {"learning_rate", "beta", "nu"}
    state.hyperparams["learning_rate"] = jnp.asarray(0.0)
    updates, _ = injected.update(GRADS, state, problem.start(), cluster_ids=IDS)
    assert all(not np.any(u) for u in jax.tree.leaves(updates))


def test_partition_gives_each_parameter_its_own_optimizer():
    inner = discover.discover(0.1, CLUSTERS, beta=0.9, nu=0.5)
    tx = optax.partition({"discover": inner, "frozen": discover.freeze()}, {"w": "discover", "b": "frozen"})
    path, _ = problem.train(tx, problem.start(), batches())
    bias = problem.start()["b"]

    def loss_at_fixed_bias(params, group):
        return problem.loss({"w": params["w"], "b": bias + 0 * params["b"]}, group)

    alone, _ = problem.train(inner, problem.start(), batches(), loss_fn=loss_at_fixed_bias)
    np.testing.assert_allclose(path, alone, rtol=1e-12)


def test_igt_inside_partition_is_evaluated_at_its_true_parameters_and_the_others_at_their_own():
    igt = discover.igt_momentum(0.1, tail_fraction=None)  # shifts from the second step on
    tx = optax.partition({"igt": igt, "sgd": discover.sgd(0.1)}, {"w": "igt", "b": "sgd"})

    @functools.partial(jax.jit, static_argnums=0)
    def after_three_steps(tx, params, grads):
        def step(now, scale):
            params, state = now
            updates, state = tx.update(jax.tree.map(lambda g: scale * g, grads), state, params, cluster_ids=IDS)
            return (optax.apply_updates(params, updates), state), None

        (params, state), _ = jax.lax.scan(step, (params, tx.init(params)), jnp.array([1.0, -2.0, 3.0]))
        return params, discover.igt_eval_params(state, params)

    params, judged = after_three_steps(tx, problem.start(), GRADS)
    alone, judged_alone = after_three_steps(igt, problem.start()["w"], GRADS["w"])
    np.testing.assert_array_equal(judged["b"], params["b"])
    np.testing.assert_allclose(params["w"], alone, rtol=1e-12)
    np.testing.assert_allclose(judged["w"], judged_alone, rtol=1e-12)
    assert np.all(np.abs(judged["w"] - params["w"]) > 1e-3)


@every_optimizer
def test_wrappers_that_do_not_know_groups_are_refused(name):
    tx, params = table.make(name), problem.start()
    accumulating = optax.MultiSteps(tx, 2).gradient_transformation()
    with pytest.raises(ValueError, match=r"MultiSteps takes the axis away: .*accumulate_groups"):
        jax.eval_shape(lambda: accumulating.update(GRADS, accumulating.init(params), params, cluster_ids=IDS))
    masked = optax.masked(tx, {"w": True, "b": False})
    with pytest.raises(ValueError, match=r"in an optax.partition \(optax.masked leaves the other gradients alone"):
        jax.eval_shape(lambda: discover.take_step(masked, GRADS, masked.init(params), params, cluster_ids=IDS))
    finite = optax.apply_if_finite(tx, 3)
    with pytest.raises(TypeError, match="branches must have equal output types"):  # jax's own words
        jax.eval_shape(lambda: finite.update(GRADS, finite.init(params), params, cluster_ids=IDS))


def test_decay_may_be_masked():
    tx = discover.discover(0.1, CLUSTERS, weight_decay=0.5, mask={"w": True, "b": False})
    params = problem.start()
    zero = jax.tree.map(jnp.zeros_like, GRADS)
    updates, _ = tx.update(zero, tx.init(params), params, cluster_ids=IDS)
    np.testing.assert_allclose(updates["w"], -0.05 * params["w"], rtol=1e-12)
    np.testing.assert_array_equal(updates["b"], 0)


def test_only_the_buffers_of_the_batchs_clusters_are_touched():
    """Cost must not grow with N: the compiled update of 1,000 clusters does no more work than that of 10.

    But for the sum over all buffers, which takes place once in `AFRESH` steps.
    """

    def cost(num_clusters):
        rule = discover.scale_by_discover(discover.Clusters.uniform(num_clusters))
        state = jax.eval_shape(rule.init, jnp.zeros(4096))
        grads = jax.ShapeDtypeStruct((4, 4096), float)
        update = jax.jit(lambda g, s, i: rule.update(g, s, cluster_ids=i), donate_argnums=(1,))
        compiled = update.lower(grads, state, jax.ShapeDtypeStruct((4,), jnp.int32)).compile()
        analysis = compiled.cost_analysis()
        memory = compiled.memory_analysis()
        return analysis["flops"] - 2 * 4096 * num_clusters * (1 - 1 / AFRESH), memory.temp_size_in_bytes

    (flops, temp), (many_flops, many_temp) = cost(10), cost(1000)
    assert many_flops < 1.1 * flops + 24 * 1000
    assert many_temp < 1.1 * temp + 16 * 1000
