"""Every row of the table of reductions in docs/family.md, over many steps with real gradients, to rounding."""

import jax
import numpy as np
import optax
import pytest

import discover
from tests.library import problem
from tests.reference import family_reference as reference

STEPS = 120
PROBS = (0.5, 0.3, 0.2)
ONE = discover.Clusters.uniform(1)


def exact(actual, expected):
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-12)


def one_cluster_batches():
    return [
        [(0, size, group) for _, size, group in batch]
        for batch in problem.draw_batches(STEPS, 3, PROBS, sizes=[1, 2, 5])
    ]


def test_one_cluster_is_qhm():
    batches, start = one_cluster_batches(), problem.flatten(problem.start())
    numbers = [(0.9, 0.7), (0.5, 0.0), (0.97, 1.0), (0.0, 0.3)]

    def both(beta, nu):
        optimizers = discover.discover(0.3, ONE, beta=beta, nu=nu), discover.qhm(0.3, beta, nu)
        return [problem.follow(tx, problem.start(), batches)[0] for tx in optimizers]

    for (beta, nu), path, plain in zip(numbers, *jax.jit(jax.vmap(both))(*np.transpose(numbers))):
        exact(path, plain)
        exact(path, reference.qhm(start, problem.flat_gradient, batches, 0.3, beta, nu))


def test_one_cluster_with_nu_1_is_momentum_and_heavy_ball_at_a_smaller_rate():
    batches, start = one_cluster_batches(), problem.flatten(problem.start())
    path, _ = problem.train(discover.discover(0.3, ONE, beta=0.9, nu=1.0), problem.start(), batches)
    exact(path, problem.train(discover.momentum(0.3, 0.9), problem.start(), batches)[0])
    exact(path, reference.heavy_ball(start, problem.flat_gradient, batches, 0.3 * (1 - 0.9), 0.9))
    heavy_ball = optax.chain(discover.mean_over_groups(), optax.sgd(0.3 * (1 - 0.9), momentum=0.9))
    exact(path, problem.train(heavy_ball, problem.start(), batches)[0])


def test_one_cluster_with_nu_0_is_sgd():
    batches = one_cluster_batches()
    path, _ = problem.train(discover.discover(0.3, ONE, beta=0.9, nu=0.0), problem.start(), batches)
    exact(path, problem.train(discover.sgd(0.3), problem.start(), batches)[0])
    exact(path, reference.qhm(problem.flatten(problem.start()), problem.flat_gradient, batches, 0.3, 0.0, 0.0))


def test_nu_0_with_one_example_per_batch_is_the_printed_algorithm_1():
    batches = problem.draw_batches(STEPS, 1, PROBS, group_size=1)
    alpha = 0.15  # in (0, p_min), as the algorithm demands, so that no rate is capped
    path, _ = problem.train(
        discover.discover(0.2, discover.Clusters(PROBS), beta=1 - alpha, nu=0.0), problem.start(), batches
    )
    start = problem.flatten(problem.start())
    printed, drift = reference.paper_algorithm_1(start, problem.flat_gradient, batches, PROBS, 0.2, alpha)
    exact(path, printed)
    assert drift.max() < 1e-12
    literal, _ = problem.train(
        discover.paper_discover(0.2, discover.Clusters(PROBS), alpha=alpha), problem.start(), batches
    )
    exact(path, literal)


@pytest.mark.parametrize("rate", ["proportional", "per_visit"])
def test_nu_0_with_one_cluster_per_example_and_full_rate_is_saga(rate):
    num_examples = 7
    examples = problem.draw_batches(1, num_examples, PROBS, group_size=1)[0]
    order = np.random.default_rng(1).integers(num_examples, size=STEPS)
    batches = [[(int(i), 1, examples[i][2])] for i in order]
    beta = 1 - 1 / num_examples if rate == "proportional" else 0.0
    tx = discover.discover(0.2, discover.Clusters.uniform(num_examples), beta=beta, nu=0.0, rate=rate)
    path, _ = problem.train(tx, problem.start(), batches)
    start = problem.flatten(problem.start())
    exact(path, reference.saga(start, problem.flat_gradient, batches, num_examples, 0.2))


def test_nu_1_steps_along_the_updated_mean_of_all_momenta():
    batches = problem.draw_batches(STEPS, 2, PROBS)
    rule = discover.scale_by_discover(discover.Clusters(PROBS), beta=0.9, nu=1.0)
    x, y, ids, sizes = problem.stack(batches)
    params, state = problem.start(), rule.init(problem.start())

    @jax.jit
    def step(params, state, x, y, ids, sizes):
        _, grads = discover.group_value_and_grad(problem.loss)(params, (x, y))
        direction, state = rule.update(grads, state, cluster_ids=ids, group_sizes=sizes)
        return optax.apply_updates(params, optax.tree.scale(-0.2, direction)), direction, state

    for t in range(STEPS):
        params, direction, state = step(params, state, x[t], y[t], ids[t], sizes[t])
        exact(problem.flatten(direction), problem.flatten(state.mean))


def test_discover_qhm_is_discover_between_nu_0_and_1():
    batches = problem.draw_batches(STEPS, 3, PROBS)
    clusters = discover.Clusters(PROBS)
    path, _ = problem.train(discover.discover_qhm(0.2, clusters, beta=0.9, nu=0.6), problem.start(), batches)
    exact(path, problem.train(discover.discover(0.2, clusters, beta=0.9, nu=0.6), problem.start(), batches)[0])


@pytest.mark.parametrize("tail_fraction", [None, 18])
def test_one_cluster_discover_igt_is_igt_with_momentum(tail_fraction):
    batches = one_cluster_batches()
    tx = discover.discover_igt(0.05, ONE, beta=0.9, nu=1.0, tail_fraction=tail_fraction)
    path, _ = problem.train(tx, problem.start(), batches, true_params=True)
    plain = discover.igt_momentum(0.05, 0.9, tail_fraction=tail_fraction)
    exact(path, problem.train(plain, problem.start(), batches, true_params=True)[0])


def test_the_papers_tuned_pairs_map_onto_the_family():
    """(α, α_n) with summed buffer changes is the rule at (β, ν, μ') of `map_to_family`."""
    batches = problem.draw_batches(STEPS, 8, (0.1,) * 10)
    start = problem.flatten(problem.start())
    printed, _ = reference.paper_algorithm_1(
        start, problem.flat_gradient, batches, (0.1,) * 10, 0.05, 0.095, 0.1, shared_clusters="sum"
    )
    beta, nu, rate = discover.map_to_family(0.05, 0.095, 0.1, num_groups=8, num_clusters=10)
    path, _ = problem.train(
        discover.discover(rate, discover.Clusters.uniform(10), beta=beta, nu=nu), problem.start(), batches
    )
    exact(path, printed)
    assert (round(beta, 3), round(nu, 2), round(rate / 0.05, 2)) == (0.92, 0.17, 1.19)


def test_a_pair_outside_the_family_is_refused_by_name():
    with pytest.raises(ValueError, match=r"alpha = 0.1 and alpha_n = 0.01 .* nu = -.*paper_\*"):
        discover.map_to_family(0.1, 0.1, 0.01, num_groups=128, num_clusters=3)
    with pytest.raises(ValueError, match=r"alpha_n = 0.9 .* beta = -"):
        discover.map_to_family(0.1, 0.9, 0.9, num_groups=8, num_clusters=3)
