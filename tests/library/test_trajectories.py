"""Trajectories against the plain NumPy references, with unequal clusters, unequal groups and repeated clusters."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import discover
from discover.optimizers import igt
from tests.library import problem
from tests.reference import family_reference as reference

STEPS = 80
PROBS = (0.45, 0.3, 0.2, 0.05)
CLUSTERS = discover.Clusters(PROBS)


def exact(actual, expected):
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-11)


def batches():
    return problem.draw_batches(STEPS, 5, PROBS, sizes=[1, 3, 8])


def run(tx, **kwargs):
    return problem.train(tx, problem.start(), batches(), **kwargs)[0]


def theta():
    return problem.flatten(problem.start())


@pytest.mark.parametrize("rate", ["proportional", "per_visit"])
def test_the_rule(rate):
    numbers = [(0.95, 0.9), (0.8, 0.0), (0.99, 1.0), (0.1, 0.5)]

    def train(beta, nu):
        return problem.follow(discover.discover(0.2, CLUSTERS, beta=beta, nu=nu, rate=rate), problem.start(), batches())

    paths, states = jax.jit(jax.vmap(train))(*np.transpose(numbers))
    stored = discover.DiscoverState(*states.direction).buffers
    for k, (beta, nu) in enumerate(numbers):
        expected, buffers = reference.discover(theta(), problem.flat_gradient, batches(), PROBS, 0.2, beta, nu, rate)
        exact(paths[k], expected)
        for n in range(len(PROBS)):
            exact(problem.flatten({name: np.asarray(v)[k, n] for name, v in stored.items()}), buffers[n])


@pytest.mark.parametrize("tail_fraction", [None, 1, 2, 18, 90])
def test_igt_with_tail_averaging(tail_fraction):
    # The paper's heavy-ball form at μ is ours at μ/(1 − β).
    path = run(discover.igt_momentum(0.02 / (1 - 0.9), 0.9, tail_fraction=tail_fraction), true_params=True)
    exact(path, reference.igt(theta(), problem.flat_gradient, batches(), 0.02, 0.9, tail_fraction))


@pytest.mark.parametrize("tail_fraction", [None, 18])
def test_discover_igt(tail_fraction):
    tx = discover.discover_igt(0.05, CLUSTERS, beta=0.9, nu=0.8, tail_fraction=tail_fraction)
    expected = reference.discover_igt(theta(), problem.flat_gradient, batches(), PROBS, 0.05, 0.9, 0.8, tail_fraction)
    exact(run(tx, true_params=True), expected)


def test_qhm():
    exact(run(discover.qhm(0.2, 0.9, 0.7)), reference.qhm(theta(), problem.flat_gradient, batches(), 0.2, 0.9, 0.7))


def test_adam():
    exact(run(discover.adam(0.01)), reference.adam(theta(), problem.flat_gradient, batches(), 0.01))


def test_printed_algorithm_1():
    path = run(discover.paper_discover(0.1, CLUSTERS, alpha=0.095, alpha_n=0.1))
    expected, _ = reference.paper_algorithm_1(theta(), problem.flat_gradient, batches(), PROBS, 0.1, 0.095, 0.1)
    exact(path, expected)


def test_printed_discover_qhm():
    path = run(discover.paper_discover_qhm(0.02, CLUSTERS, alpha=0.3, alpha_n=0.1, nu=0.7))
    exact(path, reference.paper_discover_qhm(theta(), problem.flat_gradient, batches(), PROBS, 0.02, 0.3, 0.1, 0.7))


@pytest.mark.parametrize("tail_fraction", [None, 18])
def test_printed_discover_igt(tail_fraction):
    tx = discover.paper_discover_igt(0.05, CLUSTERS, alpha=0.095, alpha_n=0.1, tail_fraction=tail_fraction)
    expected = reference.paper_discover_igt(
        theta(), problem.flat_gradient, batches(), PROBS, 0.05, 0.095, 0.1, tail_fraction
    )
    exact(run(tx, true_params=True), expected)


def test_the_tail_weight_is_never_negative_and_stays_below_one():
    for tail_fraction in (None, 1, 2, 3, 18, 360):
        weights = jax.vmap(lambda s, tail=tail_fraction: discover.averaging_weight(s, tail))(np.arange(1, 500))
        assert weights[0] == 0
        assert np.all((weights >= 0) & (weights < 1))
        exact(weights, [reference.tail_weight(s, tail_fraction) for s in range(1, 500)])


@pytest.mark.parametrize("tail_fraction", [None, 18])
@pytest.mark.parametrize("step", [1, 2, 10, 10**5, 10**6, 3 * 10**7])
def test_the_transports_weights_keep_their_digits_in_float32(step, tail_fraction):
    gamma = reference.tail_weight(np.longdouble(step), tail_fraction)
    with jax.enable_x64(False):
        ahead = float(igt.look_ahead(step, tail_fraction))
        new = float(igt.new_weight(step, tail_fraction))
    np.testing.assert_allclose(ahead, float(gamma / (1 - gamma)), rtol=1e-5)
    np.testing.assert_allclose(new, float(1 - gamma), rtol=1e-5)


def test_decoupled_decay_shrinks_the_parameters_and_l2_enters_the_gradient():
    decay, l2, lr = 0.1, 0.3, 0.2
    expected, shrunk = theta(), theta()
    for batch in batches():
        g = reference.batch_gradient(expected, problem.flat_gradient, batch)
        expected = expected - lr * (g + l2 * expected)
        g = reference.batch_gradient(shrunk, problem.flat_gradient, batch)
        shrunk = shrunk * (1 - decay * lr) - lr * g
    exact(run(discover.sgd(lr, l2=l2))[-1], expected)
    exact(run(discover.sgd(lr, weight_decay=decay))[-1], shrunk)


@pytest.mark.parametrize(
    "make",
    [
        functools.partial(discover.momentum, 0.1),
        functools.partial(discover.adam, 0.01),
        functools.partial(discover.discover, 0.1, CLUSTERS, beta=0.9, nu=0.8),
        functools.partial(discover.igt_momentum, 0.1, tail_fraction=18),
        functools.partial(discover.discover_igt, 0.05, CLUSTERS, tail_fraction=18),
    ],
    ids=lambda make: make.func.__name__,
)
def test_l2_is_a_penalty_on_the_loss_for_every_optimizer(make):
    """Adding λ/2‖θ‖² to the loss gives the same trajectory, IGT's shifted points included."""
    l2 = 0.05

    def penalised(params, group):
        return problem.loss(params, group) + l2 / 2 * sum(jnp.sum(p**2) for p in params.values())

    exact(run(make(l2=l2)), run(make(), loss_fn=penalised))
