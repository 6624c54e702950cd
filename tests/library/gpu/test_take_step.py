"""A step is the update and the sum, also where the kernel moves the parameters itself."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from discover import Clusters, discover, mean_over_groups, take_step
from discover.context import Context, Offset
from discover.gpu import parameters
from tests.library.gpu.on_gpu import assert_identical, assert_same, compiled, random_tree, wide

pytestmark = pytest.mark.float32


def steps(take, tx, params, grads):
    """Two steps from a state that is not zero, the second of them on a batch without examples."""
    state = jax.tree.map(lambda s: s + jnp.ones_like(s), tx.init(params))

    def step(now, sizes):
        params, state = now
        return take(tx, grads, state, params, cluster_ids=jnp.array([2, 0, 2, 1]), group_sizes=sizes), None

    return jax.lax.scan(step, (params, state), jnp.array([[3, 2, 1, 0], [0, 0, 0, 0]]))[0]


def update_and_add(tx, grads, state, params, **extra):
    updates, state = tx.update(grads, state, params, **extra)
    return optax.apply_updates(params, updates), state


@pytest.mark.parametrize(
    ("options", "small", "expected"),
    [
        ({"weight_decay": 0.2}, 0, {(), (3, 5), (7,)}),
        ({"weight_decay": 0.2, "mask": {"scale": True, "kernel": False, "shift": True}}, 2**18, {(8,), (3, 5)}),
        ({"buffer_dtype": jnp.bfloat16, "l2": 0.1, "weight_decay": 0.2}, 2**18, {(23,)}),
    ],
)
def test_on_a_gpu_the_kernel_moves_the_parameters_as_the_sum_would(monkeypatch, gpu, options, small, expected):
    rng = np.random.default_rng(0)
    params, grads = random_tree(rng), random_tree(rng, 4)
    del params["none"], grads["none"]
    rate = optax.linear_schedule(0.3, 0.1, 5)
    tx = discover(rate, Clusters.uniform(3), beta=0.9, nu=0.7, **options)
    plain = compiled(functools.partial(steps, update_and_add, tx), params, grads)
    monkeypatch.setattr(parameters, "SMALL", small)
    shapes = gpu()
    program = functools.partial(steps, take_step, tx)
    fast = compiled(program, params, grads)
    assert set(shapes) == expected
    assert jax.tree.structure(fast) == jax.tree.structure(plain)
    assert_same(fast[0], plain[0])
    tolerance = 2e-2 if "buffer_dtype" in options else 1e-6
    jax.tree.map(lambda a, b: np.testing.assert_allclose(wide(a), wide(b), atol=tolerance), fast[1], plain[1])
    assert fast[1].steps == 2  # one more than it had


@pytest.mark.parametrize(
    "params",
    [{"a": jnp.ones(3), "b": jnp.ones(2, jnp.bfloat16)}, {"a": jnp.ones(3), "b": jnp.ones((0, 2))}],
)
def test_parameters_that_the_kernel_cannot_take_are_moved_by_the_plain_rule(gpu, params):
    grads = jax.tree.map(lambda p: jnp.stack([p, 2 * p, 3 * p, 4 * p]), params)
    tx = discover(0.1, Clusters.uniform(3), weight_decay=0.1)
    plain = compiled(functools.partial(steps, update_and_add, tx), params, grads)
    gpu()
    program = functools.partial(steps, take_step, tx)
    fast = compiled(program, params, grads)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(wide(a), wide(b), atol=1e-6), fast, plain)


@pytest.mark.parametrize(
    "options",
    [{"context": Context(Offset(2.0, 1.0, jnp.full(3, 10.0)))}, {"group_sizes": jnp.ones(4)}],
    ids=["offset", "sizes"],
)
def test_a_step_is_the_update_whatever_else_it_is_given(gpu, options):
    with jax.enable_x64(True):
        tx = discover(0.1, Clusters.uniform(3), weight_decay=0.1)
        params = np.arange(3, dtype=np.float32)
        state = jax.tree.map(lambda x: x.astype(jnp.float64) + 1, tx.init(jnp.asarray(params)))
        call = (jnp.ones((4, 3), jnp.float32), state, params)
        ids = jnp.arange(4) % 3
        plain = update_and_add(tx, *call, cluster_ids=ids, **options)
        gpu()
        fast = take_step(tx, *call, cluster_ids=ids, **options)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), fast, plain)


def test_a_mask_may_be_the_upper_part_of_a_tree(gpu):
    params = {"a": {"b": jnp.ones(3), "c": jnp.ones(2)}, "d": (jnp.ones(4), None)}
    grads = jax.tree.map(lambda p: jnp.stack([p, 2 * p, 3 * p, 4 * p]), params)
    masks = [{"a": True, "d": False}, {"a": {"b": True, "c": True}, "d": (False, None)}]
    txs = [discover(0.1, Clusters.uniform(3), l2=0.1, mask=mask) for mask in masks]
    one, other = (compiled(functools.partial(steps, update_and_add, tx), params, grads) for tx in txs)
    assert_identical(one, other)
    gpu()
    assert_same(compiled(functools.partial(steps, take_step, txs[0]), params, grads), one)


@pytest.mark.parametrize(("decay", "moves"), [(1e-4, True), (0.0, False)])
def test_the_smallest_decay_is_not_rounded_away(gpu, decay, moves):
    """1 − λμ is 1 in float32 for λμ = 1e-8, but that much may tip the scales of a step."""
    tx = discover(1e-4, Clusters.uniform(3), weight_decay=decay)
    state = tx.init(jnp.ones(3))
    state = state._replace(direction=state.direction._replace(mean=jnp.full(3, 2.5e-4)))  # θ − μd alone is 1 again
    gpu()
    moved, _ = take_step(tx, jnp.zeros((1, 3)), state, jnp.ones(3), cluster_ids=jnp.array([0]))
    assert bool(jnp.all(moved < 1)) == moves


@pytest.mark.parametrize("bad", [np.inf, np.nan])
def test_an_empty_batch_moves_nothing_and_no_penalty_touches_nothing(gpu, bad):
    tx = discover(0.1, Clusters.uniform(3), weight_decay=0.1)
    params = jnp.array([1.0, 2.0])
    state = tx.init(params)
    broken = state._replace(direction=state.direction._replace(mean=jnp.array([bad, 0.0])))
    gpu()
    moved, _ = take_step(tx, jnp.ones((2, 2)), broken, params, cluster_ids=jnp.array([-1, -1]))
    np.testing.assert_array_equal(moved, params)
    _, after = take_step(tx, jnp.ones((2, 2)), state, jnp.array([bad, 2.0]), cluster_ids=jnp.array([0, 1]))
    assert jnp.all(jnp.isfinite(after.direction.mean))
    assert jnp.all(jnp.isfinite(after.direction.buffers))


@pytest.mark.slow
def test_traced_hyperparameters_and_learnt_probabilities_move_the_same(gpu):
    rng = np.random.default_rng(0)
    params, grads = random_tree(rng), random_tree(rng, 4)
    del params["none"], grads["none"]

    def program(take, rate, decay, l2, params, grads):
        tx = discover(rate, Clusters.uniform(3), weight_decay=decay, l2=l2, estimate_probs=True)
        return steps(take, tx, params, grads)

    numbers = tuple(jnp.float32(n) for n in (0.1, 0.2, 0.3))
    plain = compiled(functools.partial(program, update_and_add), *numbers, params, grads)
    gpu()
    fast = functools.partial(program, take_step)
    assert_same(compiled(fast, *numbers, params, grads), plain)


@pytest.mark.parametrize(
    "make",
    [
        lambda: optax.chain(mean_over_groups(), optax.adam(0.1)),
        lambda: discover(0.1, Clusters.uniform(3), l2=0.1),  # and on a CPU this is exact too
    ],
)
def test_any_optimizer_takes_a_step(make):
    params, grads = {"a": jnp.ones(3)}, {"a": jnp.arange(12.0).reshape(4, 3)}
    tx = make()
    step = functools.partial(steps, take_step, tx)
    assert_identical(
        compiled(step, params, grads), compiled(functools.partial(steps, update_and_add, tx), params, grads)
    )


def test_an_optimizer_without_groups_takes_a_step():
    params = jnp.ones(3)
    tx = optax.sgd(0.1)
    moved, _ = take_step(tx, jnp.ones(3), tx.init(params), params, cluster_ids=jnp.array([0]))
    np.testing.assert_allclose(moved, 0.9 * params)


def test_a_step_without_cluster_ids_says_what_is_missing(gpu):
    gpu()
    tx = discover(0.1, Clusters.uniform(3))
    with pytest.raises(TypeError, match="cluster_ids is missing"):
        take_step(tx, jnp.ones((4, 2)), tx.init(jnp.ones(2)), jnp.ones(2))


@pytest.mark.slow
def test_several_networks_are_moved_side_by_side(gpu):
    rng = np.random.default_rng(0)
    params, grads = random_tree(rng, 2), random_tree(rng, 2, 4)
    del params["none"], grads["none"]

    def program(rates, params, grads):
        tx = lambda rate: discover(rate, Clusters.uniform(3), l2=0.1)  # noqa: E731
        return jax.vmap(lambda rate, params, grads: steps(take_step, tx(rate), params, grads))(rates, params, grads)

    rates = jnp.array([0.1, 0.3])
    plain = compiled(program, rates, params, grads)
    gpu()
    assert_same(compiled(program, rates, params, grads), plain)
