"""`discover_adam`: what it is made of, and what it reduces to."""

import numpy as np
import optax
import pytest

import discover
from tests.library import problem

PROBS = (0.5, 0.3, 0.2)


def exact(actual, expected):
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("beta", "nu"), [(0.0, 1.0), (0.9, 0.0)])
def test_one_cluster_without_memory_of_its_own_is_adam(beta, nu):
    batches = [[(0, size, group) for _, size, group in batch] for batch in problem.draw_batches(80, 3, PROBS)]
    tx = discover.discover_adam(0.01, discover.Clusters.uniform(1), beta=beta, nu=nu, beta1=0.9, weight_decay=0.1)
    path, _ = problem.train(tx, problem.start(), batches)
    exact(path, problem.train(discover.adam(0.01, weight_decay=0.1), problem.start(), batches)[0])


def test_it_is_the_chain_that_the_documentation_names():
    batches, clusters = problem.draw_batches(80, 3, PROBS, sizes=[1, 2, 4]), discover.Clusters(PROBS)
    schedule = optax.cosine_decay_schedule(0.01, 80)
    chained = optax.chain(
        discover.scale_by_discover(clusters, 0.9, 0.8),
        optax.scale_by_adam(0.5, 0.99),
        optax.add_decayed_weights(0.1),
        optax.scale_by_learning_rate(schedule),
    )
    alias = discover.discover_adam(schedule, clusters, beta=0.9, nu=0.8, beta1=0.5, beta2=0.99, weight_decay=0.1)
    exact(problem.train(alias, problem.start(), batches)[0], problem.train(chained, problem.start(), batches)[0])


def test_a_trajectory_against_plain_numpy():
    """(A1) and (A2) written out, on the directions of (F1) to (F4)."""
    batches, probs = problem.draw_batches(60, 2, PROBS), np.array(PROBS)
    beta, nu, beta1, beta2, lr = 0.9, 0.7, 0.8, 0.95, 0.02
    tx = discover.discover_adam(lr, discover.Clusters(PROBS), beta=beta, nu=nu, beta1=beta1, beta2=beta2)
    path, _ = problem.train(tx, problem.start(), batches)

    theta = problem.flatten(problem.start())
    buffers, m, v, expected = np.zeros((3, theta.size)), 0.0, 0.0, []
    for t, batch in enumerate(batches, start=1):
        total = sum(size for _, size, _ in batch)
        share, sums = np.zeros(3), np.zeros((3, theta.size))
        for n, size, group in batch:
            share[n] += size / total
            sums[n] += size / total * problem.flat_gradient(theta, group)
        present = share > 0
        delta = np.zeros_like(buffers)
        delta[present] = sums[present] / share[present, None] - buffers[present]
        direction = probs @ buffers + (1 - nu * beta) * share @ delta
        buffers += np.minimum(1, (1 - beta) * share / probs)[:, None] * delta
        m, v = beta1 * m + (1 - beta1) * direction, beta2 * v + (1 - beta2) * direction**2
        theta = theta - lr * (m / (1 - beta1**t)) / (np.sqrt(v / (1 - beta2**t)) + 1e-8)
        expected.append(theta)
    exact(path, np.array(expected))
