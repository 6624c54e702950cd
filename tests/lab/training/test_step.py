"""The step that every optimizer shares: groups, padding, clipping, members."""

from functools import cache, partial
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import discover
from discover.lab.models import build_network
from discover.lab.training.evaluate import make_evaluate
from discover.lab.training.programs import Members, ModelPrograms, Programs
from discover.lab.training.step import StepBatch, TrainState, clip_each, make_step

NETWORK = build_network("logistic", (3,), 2)
IMAGES = jax.random.normal(jax.random.key(0), (20, 3))
LABELS = np.asarray(IMAGES[:, 0] > 0).astype(np.int32)
GROUPS, SIZE = 3, 4


def prepare(key, images, labels, cluster_id):
    return images, jax.nn.one_hot(labels, 2)


def make_momentum(hyper):
    return discover.momentum(hyper["learning_rate"], hyper["beta"])


def make_discover(hyper):
    return discover.discover(hyper["learning_rate"], discover.Clusters.uniform(2), beta=hyper["beta"], nu=0.7)


def draw(seed, count=1):
    rng = np.random.default_rng(seed)
    indices = rng.integers(0, 20, (count, GROUPS, SIZE)).astype(np.int32)
    sizes = np.full((count, GROUPS), SIZE, np.int32)
    return StepBatch(indices, LABELS[indices], rng.integers(0, 2, (count, GROUPS)).astype(np.int32), sizes)


def one_step(make, hyper, batch, *, merge, params=None):
    step = make_step(NETWORK.apply, prepare, merge_groups=merge)
    params = NETWORK.init(jax.random.key(1)) if params is None else params
    state = TrainState(params, make(hyper).init(params))
    clip_norm = hyper.get("clip_norm")
    return jax.jit(partial(step, make(hyper)))(state, jax.random.key(2), 0, batch, IMAGES, clip_norm)


def first(batches):
    return jax.tree.map(lambda a: jnp.asarray(a[0]), batches)


HYPER = {"learning_rate": jnp.float32(0.5), "beta": jnp.float32(0.9)}


def test_merging_the_groups_changes_nothing_for_an_optimizer_that_averages_them():
    apart = one_step(make_momentum, HYPER, first(draw(0)), merge=False)
    merged = one_step(make_momentum, HYPER, first(draw(0)), merge=True)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), apart, merged)


@pytest.mark.parametrize(("make", "merge"), [(make_momentum, True), (make_momentum, False), (make_discover, False)])
def test_padding_changes_nothing(make, merge):
    """A group's examples beyond its size, and groups of size 0, may hold anything."""
    small = first(draw(0))
    sizes = jnp.asarray([SIZE, 2, 0], jnp.int32)
    one = small._replace(group_sizes=sizes)
    other = one._replace(
        examples=one.examples.at[1, 2:].set(7).at[2].set(9), labels=one.labels.at[1, 2:].set(0).at[2].set(1)
    )
    results = [one_step(make, HYPER, batch, merge=merge) for batch in (one, other)]
    jax.tree.map(np.testing.assert_array_equal, *results)
    rows = np.concatenate([one.examples[0], one.examples[1, :2]])
    logits = NETWORK.apply(NETWORK.init(jax.random.key(1)), IMAGES[rows])
    expected = optax.softmax_cross_entropy_with_integer_labels(logits, LABELS[rows]).mean()
    np.testing.assert_allclose(results[0][1].loss, expected, rtol=1e-6)


def test_clipping_scales_each_group_down_to_the_norm_and_leaves_small_ones():
    grads = {"a": jnp.array([[3.0, 0.0], [0.3, 0.0]]), "b": jnp.array([[4.0], [0.4]])}
    clipped = clip_each(grads, jnp.float32(1.0))
    np.testing.assert_allclose(clipped["a"], [[0.6, 0.0], [0.3, 0.0]], rtol=1e-6)
    np.testing.assert_allclose(clipped["b"], [[0.8], [0.4]], rtol=1e-6)
    zero = clip_each({"a": jnp.zeros((1, 2))}, jnp.float32(1.0))
    assert np.array_equal(zero["a"], np.zeros((1, 2)))


def test_clipping_of_an_averaging_optimizer_is_the_ordinary_one():
    hyper = {**HYPER, "beta": jnp.float32(0.0), "clip_norm": jnp.float32(0.01)}
    params = NETWORK.init(jax.random.key(1))
    state, _ = one_step(make_momentum, hyper, first(draw(0)), merge=True)
    moved = optax.global_norm(jax.tree.map(lambda a, b: a - b, state.params, params))
    np.testing.assert_allclose(moved, 0.5 * 0.01, rtol=1e-4)


def members(seeds, rates):
    own = list(dict.fromkeys(seeds))
    hyper = {"learning_rate": jnp.asarray(rates, jnp.float32), "beta": jnp.full(len(rates), 0.9, jnp.float32)}
    return Members(hyper, jnp.asarray(seeds, jnp.int32), jnp.asarray([own.index(s) for s in seeds], jnp.int32)), own


@cache
def programs(make, mode):
    evaluate = make_evaluate(NETWORK.apply, lambda x: x, batch_size=7)
    model = ModelPrograms(NETWORK.init, evaluate, member_mode=mode)
    step = make_step(NETWORK.apply, prepare, merge_groups=False)
    return Programs(model, make, step, steps_per_dispatch=6)


def train(made, seeds, rates, cuts=(0, 6)):
    arguments, own = members(seeds, rates)
    state, logs = made.start(arguments), []
    for begin, end in pairwise(cuts):
        drawn = [jax.tree.map(lambda a: a[begin:end], draw(seed, 6)) for seed in own]  # noqa: B023 (used at once)
        stacked = jax.tree.map(lambda *a: np.stack(a, axis=1), *drawn)
        padded = jax.tree.map(lambda a: np.resize(a, (6, *a.shape[1:])), stacked)
        state, metrics = made.advance(state, arguments, padded, IMAGES, begin, end - begin)
        logs.append(np.asarray(metrics.loss)[: end - begin])
    return state, np.concatenate(logs)


@pytest.mark.parametrize(("make", "mode", "tolerance"), [(make_discover, "map", 5e-7), (make_momentum, "vmap", 2e-6)])
def test_members_trained_together_equal_members_trained_alone(make, mode, tolerance):
    """To rounding: the compiler may sum in another order, or unroll a loop over one member."""
    seeds, rates = [3, 3, 8], [0.5, 0.1, 0.5]
    made = programs(make, mode)
    state, losses = train(made, seeds, rates)
    for member, (seed, rate) in enumerate(zip(seeds, rates)):
        alone, alone_losses = train(made, [seed], [rate])
        np.testing.assert_allclose(losses[:, member], alone_losses[:, 0], rtol=tolerance, atol=tolerance)
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a[member], b[0], rtol=tolerance, atol=tolerance),  # noqa: B023
            state,
            alone,
        )


def test_cutting_a_run_into_dispatches_changes_no_bit():
    made = programs(make_discover, "map")
    whole = train(made, [1], [0.5])
    for cuts in ((0, 1, 6), (0, 2, 3, 4, 6)):
        jax.tree.map(np.testing.assert_array_equal, whole, train(made, [1], [0.5], cuts))


def test_new_learning_rates_and_seeds_compile_nothing():
    made = programs(make_discover, "map")
    train(made, [1], [0.5])
    before = made.compile_seconds
    assert before > 0
    train(made, [7], [0.01])
    assert made.compile_seconds == before


@pytest.mark.parametrize("batch_size", [7, 20, 50])
def test_evaluation_covers_every_example_whatever_the_batch_size(batch_size):
    params = {"head": {"kernel": jnp.ones((3, 2)).at[0].set(jnp.array([-1.0, 2.0])), "bias": jnp.zeros(2)}}
    found = jax.jit(make_evaluate(NETWORK.apply, lambda x: x, batch_size=batch_size))(params, IMAGES, LABELS)
    logits = NETWORK.apply(params, IMAGES)
    expected = optax.softmax_cross_entropy_with_integer_labels(logits, LABELS).mean()
    np.testing.assert_allclose(found.loss, expected, rtol=1e-6)
    np.testing.assert_allclose(found.accuracy, np.mean(np.argmax(logits, -1) == LABELS))


def test_igt_is_evaluated_at_its_true_parameters():
    def make(hyper):
        return discover.igt_momentum(hyper["learning_rate"], hyper["beta"])

    made = programs(make, "map")
    state, _ = train(made, [1], [0.5])
    true = discover.igt_eval_params(state.opt_state, state.params)
    found = made.evaluate(state, IMAGES, jnp.asarray(LABELS))
    evaluate = make_evaluate(NETWORK.apply, lambda x: x, batch_size=7)
    at = [evaluate(jax.tree.map(lambda p: p[0], params), IMAGES, LABELS).loss for params in (true, state.params)]
    np.testing.assert_allclose(found.loss[0], at[0], rtol=1e-6)
    assert abs(float(found.loss[0] - at[1])) > 1e-4
