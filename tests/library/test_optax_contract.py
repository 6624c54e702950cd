"""What an optax user expects of every optimizer here."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest

import discover
from tests.library import problem

PROBS = (0.5, 0.3, 0.2)
CLUSTERS = discover.Clusters(PROBS)

OPTIMIZERS = {
    "sgd": discover.sgd,
    "momentum": discover.momentum,
    "qhm": discover.qhm,
    "igt": lambda lr, **k: discover.igt_momentum(lr, tail_fraction=18, **k),
    "adam": discover.adam,
    "discover": lambda lr, **k: discover.discover(lr, CLUSTERS, **k),
    "discover_bf16": lambda lr, **k: discover.discover(lr, CLUSTERS, buffer_dtype=jnp.bfloat16, **k),
    "discover_qhm": lambda lr, **k: discover.discover_qhm(lr, CLUSTERS, nu=0.7, **k),
    "discover_igt": lambda lr, **k: discover.discover_igt(lr, CLUSTERS, tail_fraction=18, **k),
    "paper_discover": lambda lr, **k: discover.paper_discover(lr, CLUSTERS, alpha=0.1, alpha_n=0.1, **k),
    "paper_discover_qhm": lambda lr, **k: discover.paper_discover_qhm(lr, CLUSTERS, alpha=0.1, nu=0.5, **k),
    "paper_discover_igt": lambda lr, **k: discover.paper_discover_igt(lr, CLUSTERS, alpha=0.1, **k),
}
every_optimizer = pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS.keys())
GRADS = {"w": jnp.ones((2, problem.FEATURES, problem.CLASSES)), "b": jnp.ones((2, problem.CLASSES))}
IDS = np.array([0, 2], np.int32)


def batches(num_steps=20):
    return problem.draw_batches(num_steps, 4, PROBS)


@every_optimizer
def test_unknown_extra_arguments_are_ignored(make):
    tx = make(0.1)
    params = problem.start()
    tx.update(GRADS, tx.init(params), params, cluster_ids=IDS, value=1.0, somebody_elses=None)


@every_optimizer
def test_updates_look_like_the_parameters_and_keep_their_dtype(make):
    for dtype in (jnp.float32, jnp.float16, jnp.bfloat16):
        params = problem.start(dtype=dtype)
        tx = make(0.1)
        updates, _ = tx.update(optax.tree.cast(GRADS, dtype), tx.init(params), params, cluster_ids=IDS)
        new = optax.apply_updates(params, updates)
        assert jax.tree.map(lambda p: (p.shape, p.dtype), new) == jax.tree.map(lambda p: (p.shape, p.dtype), params)


@every_optimizer
def test_abstract_init_gives_the_same_structure(make):
    tx, params = make(0.1), problem.start()
    abstract = jax.eval_shape(tx.init, params)
    concrete = tx.init(params)
    assert jax.tree.structure(abstract) == jax.tree.structure(concrete)
    assert [(a.shape, a.dtype) for a in jax.tree.leaves(abstract)] == [
        (c.shape, c.dtype) for c in jax.tree.leaves(concrete)
    ]


@every_optimizer
def test_the_state_keeps_its_structure_shapes_and_dtypes(make):
    tx, params = make(0.1), problem.start()
    state = tx.init(params)
    _, after = tx.update(GRADS, state, params, cluster_ids=IDS)
    assert jax.tree.structure(state) == jax.tree.structure(after)
    assert [(a.shape, a.dtype) for a in jax.tree.leaves(state)] == [(a.shape, a.dtype) for a in jax.tree.leaves(after)]


@every_optimizer
def test_jit_with_donation_compiles_once_and_agrees_with_a_plain_call(make):
    tx, params = make(0.1), problem.start()
    traces = []

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def step(params, state, grads, ids, sizes):
        traces.append(1)
        updates, state = tx.update(grads, state, params, cluster_ids=ids, group_sizes=sizes)
        return optax.apply_updates(params, updates), state

    plain_params, plain_state = problem.start(), tx.init(params)
    state = tx.init(params)
    for t in range(4):
        ids, sizes = jnp.array([t % 3, 2]), jnp.array([t, 3])
        params, state = step(params, state, GRADS, ids, sizes)
        updates, plain_state = tx.update(GRADS, plain_state, plain_params, cluster_ids=ids, group_sizes=sizes)
        plain_params = optax.apply_updates(plain_params, updates)
    assert len(traces) == 1
    np.testing.assert_allclose(problem.flatten(params), problem.flatten(plain_params), rtol=1e-12)


@every_optimizer
def test_hyperparameters_may_be_traced_so_one_program_serves_a_grid(make):
    rates = jnp.array([0.01, 0.1, 0.3])

    def final(lr):
        tx, params = make(lr, weight_decay=0.1 * lr, l2=0.01 * lr), problem.start()
        state = tx.init(params)
        for _ in range(3):
            updates, state = tx.update(GRADS, state, params, cluster_ids=IDS)
            params = optax.apply_updates(params, updates)
        return params["w"]

    together = jax.jit(jax.vmap(final))(rates)
    for i, lr in enumerate(rates):
        np.testing.assert_allclose(together[i], final(float(lr)), rtol=1e-6)


@every_optimizer
def test_the_state_survives_a_checkpoint(make, tmp_path):
    tx, params = make(0.1), problem.start()
    state = tx.init(params)
    for _ in range(3):
        updates, state = tx.update(GRADS, state, params, cluster_ids=IDS)
        params = optax.apply_updates(params, updates)
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "state", state)
        checkpointer.wait_until_finished()
        restored = checkpointer.restore(tmp_path / "state", jax.eval_shape(tx.init, params))
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
    path, _ = problem.train(tx, problem.start(), batches())
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
    x, y, ids, _ = problem.stack(batches())
    for t in range(20):
        _, grads = discover.group_value_and_grad(problem.loss)(params, (x[t], y[t]))
        direction, state = first.update(grads, state, params, cluster_ids=ids[t])
        updates, other = rest.update(direction, other, params)
        params = optax.apply_updates(params, updates)
    np.testing.assert_allclose(path[-1], problem.flatten(params), rtol=1e-9)


def test_a_schedule_sets_the_learning_rate_of_each_step():
    halves = optax.exponential_decay(0.4, 1, 0.5)
    with_schedule, _ = problem.train(discover.discover(halves, CLUSTERS), problem.start(), batches())
    params, state = problem.start(), None
    x, y, ids, _ = problem.stack(batches())
    for t in range(20):
        tx = discover.discover(0.4 * 0.5**t, CLUSTERS)
        inner = tx.init(params)
        state = inner if state is None else (state[0], *inner[1:])
        _, grads = discover.group_value_and_grad(problem.loss)(params, (x[t], y[t]))
        updates, state = tx.update(grads, state, params, cluster_ids=ids[t])
        params = optax.apply_updates(params, updates)
    np.testing.assert_allclose(with_schedule[-1], problem.flatten(params), rtol=1e-6)


INJECTABLE = {
    "sgd": (discover.sgd, {}),
    "qhm": (discover.qhm, {}),
    "igt": (discover.igt_momentum, {"tail_fraction": 18.0}),
    "adam": (discover.adam, {}),
    "discover_qhm": (discover.discover_qhm, {"clusters": CLUSTERS, "nu": 0.7}),
    "discover_igt": (discover.discover_igt, {"clusters": CLUSTERS, "tail_fraction": 18.0}),
    "discover_adam": (discover.discover_adam, {"clusters": CLUSTERS}),
    "paper_discover": (discover.paper_discover, {"clusters": CLUSTERS, "alpha": 0.1, "alpha_n": 0.1}),
    "paper_discover_qhm": (discover.paper_discover_qhm, {"clusters": CLUSTERS, "alpha": 0.1, "nu": 0.5}),
    "paper_discover_igt": (discover.paper_discover_igt, {"clusters": CLUSTERS, "alpha": 0.1}),
}


@pytest.mark.parametrize("name", INJECTABLE)
def test_inject_hyperparams_works_with_every_optimizer(name):
    factory, options = INJECTABLE[name]
    injected, plain = optax.inject_hyperparams(factory)(learning_rate=0.1, **options), factory(0.1, **options)
    params = problem.start(dtype=jnp.float32)
    grads = optax.tree.cast(GRADS, jnp.float32)
    updates, _ = injected.update(grads, injected.init(params), params, cluster_ids=IDS)
    expected, _ = plain.update(grads, plain.init(params), params, cluster_ids=IDS)
    np.testing.assert_allclose(problem.flatten(updates), problem.flatten(expected), rtol=1e-4, atol=1e-7)


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
    tx = optax.partition(
        {"igt": discover.igt_momentum(0.1, tail_fraction=18), "sgd": discover.sgd(0.1)}, {"w": "igt", "b": "sgd"}
    )
    params = problem.start()
    state = tx.init(params)
    for _ in range(3):
        updates, state = tx.update(GRADS, state, params, cluster_ids=IDS)
        params = optax.apply_updates(params, updates)
    judged = discover.igt_eval_params(state, params)
    np.testing.assert_array_equal(judged["b"], params["b"])
    assert judged["w"].shape == params["w"].shape


@every_optimizer
def test_wrappers_that_do_not_know_groups_are_refused_with_a_sentence(make):
    params = problem.start()
    for wrap in (lambda tx: tx, lambda tx: optax.chain(tx)):
        masked = wrap(optax.masked(make(0.1), {"w": True, "b": False}))
        with pytest.raises(ValueError, match=r"inside optax.masked.*use optax.partition"):
            masked.update(GRADS, masked.init(params), params, cluster_ids=IDS)
    accumulating = optax.MultiSteps(make(0.1), 2).gradient_transformation()
    with pytest.raises(ValueError, match=r"inside optax.MultiSteps.*accumulate_groups"):
        accumulating.update(GRADS, accumulating.init(params), params, cluster_ids=IDS)
    finite = optax.apply_if_finite(make(0.1), 3)
    with pytest.raises(ValueError, match=r"inside optax.apply_if_finite, which expects updates shaped like"):
        finite.update(GRADS, finite.init(params), params, cluster_ids=IDS)


def test_decay_may_be_masked():
    tx = discover.discover(0.1, CLUSTERS, weight_decay=0.5, mask={"w": True, "b": False})
    params = problem.start()
    zero = jax.tree.map(jnp.zeros_like, GRADS)
    updates, _ = tx.update(zero, tx.init(params), params, cluster_ids=IDS)
    np.testing.assert_allclose(updates["w"], -0.05 * params["w"], rtol=1e-12)
    np.testing.assert_array_equal(updates["b"], 0)


def test_only_the_buffers_of_the_batchs_clusters_are_touched():
    """Cost must not grow with N: the compiled update of 1,000 clusters does no more work than that of 10."""

    def cost(num_clusters):
        rule = discover.scale_by_discover(discover.Clusters.uniform(num_clusters))
        state = jax.eval_shape(rule.init, jnp.zeros(4096))
        grads = jax.ShapeDtypeStruct((4, 4096), float)
        update = jax.jit(lambda g, s, i: rule.update(g, s, cluster_ids=i), donate_argnums=(1,))
        compiled = update.lower(grads, state, jax.ShapeDtypeStruct((4,), jnp.int32)).compile()
        analysis = compiled.cost_analysis()
        memory = compiled.memory_analysis()
        return analysis["flops"], memory.temp_size_in_bytes

    (flops, temp), (many_flops, many_temp) = cost(10), cost(1000)
    assert many_flops < 1.1 * flops + 4 * 1000
    assert many_temp < 1.1 * temp + 16 * 1000


@pytest.mark.parametrize("num_groups", [1, 2, 4])
def test_no_copy_of_all_buffers_is_made(num_groups):
    rule = discover.scale_by_discover(discover.Clusters.uniform(1000))

    def many(state, grads, ids):
        return jax.lax.fori_loop(0, 5, lambda _, s: rule.update(grads, s, cluster_ids=ids)[1], state)

    state = jax.eval_shape(rule.init, jnp.zeros((16, 8)))
    grads, ids = jax.ShapeDtypeStruct((num_groups, 16, 8), float), jax.ShapeDtypeStruct((num_groups,), jnp.int32)
    text = jax.jit(many, donate_argnums=0).lower(state, grads, ids).compile().as_text()
    assert "[1000,16,8]" in text
    assert not re.search(r"= f64\[1000,16,8\]\S* copy\(", text)
