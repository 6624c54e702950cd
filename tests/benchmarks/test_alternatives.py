"""The optimizers that ours are compared with: each against plain NumPy, and judged where it means to be."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import discover
from benchmarks.alternatives import averaging, from_optax, mars, per_cluster
from discover.lab.experiments.presets.presets import get_preset
from discover.lab.experiments.run.run import run
from discover.lab.training.evaluate import eval_params
from discover.registry import OPTIMIZERS

STEPS, GROUPS, CLUSTERS, SHAPE = 7, 3, 4, (3, 2)
RATE, L2, EPS = 0.1, 0.01, 1e-8
RNG = np.random.default_rng(0)
START = RNG.normal(size=SHAPE)
GRADS = RNG.normal(size=(STEPS, GROUPS, *SHAPE))
IDS = np.array([[0, 0, 2], [1, 2, 1], [2, 2, 2], [0, 1, 1], [2, 0, 1], [1, 1, 1], [0, 2, 2]])  # cluster 3 never comes
SIZES = np.array([2, 1, 3])
MEANS = np.einsum("tg...,g->t...", GRADS, SIZES / SIZES.sum())


def rate(step):
    return RATE / (1 + step)


def trajectory(tx):
    """The parameters in training after each step, and those to judge by."""
    params = {"w": jnp.asarray(START, jnp.float32)}
    state = tx.init(params)
    step = jax.jit(lambda grads, state, params, ids: discover.take_step(
        tx, grads, state, params, cluster_ids=ids, group_sizes=jnp.asarray(SIZES)))  # fmt: skip
    trained, judged = [], []
    for grads, ids in zip(GRADS, IDS):
        params, state = step({"w": jnp.asarray(grads, jnp.float32)}, state, params, jnp.asarray(ids))
        trained.append(np.asarray(params["w"]))
        judged.append(np.asarray(eval_params(state, params)["w"]))
    return np.array(trained), np.array(judged)


def descend(step):
    """θ after each step of ``step(t, gradient with the penalty, θ) -> displacement``."""
    at, found = START, []
    for t, mean in enumerate(MEANS):
        at = at + step(t, mean + L2 * at, at)
        found.append(at)
    return np.array(found)


def same(found, wanted):
    np.testing.assert_allclose(found, wanted, rtol=2e-4, atol=2e-5)


class Moments:
    """Adam's moments of what it is given, with bias correction."""

    def __init__(self, beta1, beta2):
        self.beta1, self.beta2, self.m, self.v, self.t = beta1, beta2, 0.0, 0.0, 0

    def add(self, gradient):
        self.t += 1
        self.m = self.beta1 * self.m + (1 - self.beta1) * gradient
        self.v = self.beta2 * self.v + (1 - self.beta2) * gradient**2
        return self

    @property
    def step(self):
        root = np.sqrt(self.v / (1 - self.beta2**self.t))
        return self.m / (1 - self.beta1**self.t) / (root + EPS)


def test_lion():
    momentum = np.zeros(SHAPE)

    def step(t, gradient, _):
        nonlocal momentum
        sign = np.sign(0.9 * momentum + 0.1 * gradient)
        momentum = 0.98 * momentum + 0.02 * gradient
        return -rate(t) * sign

    same(trajectory(from_optax.lion(rate, beta2=0.98, l2=L2))[0], descend(step))


def test_ademamix():
    fast, slow = Moments(0.9, 0.999), np.zeros(SHAPE)

    def step(t, gradient, _):
        nonlocal slow
        slow = 0.99 * slow + 0.01 * gradient
        root = np.sqrt(fast.add(gradient).v / (1 - 0.999 ** (t + 1)))
        return -rate(t) * (fast.m / (1 - 0.9 ** (t + 1)) + 5 * slow) / (root + EPS)

    same(trajectory(from_optax.ademamix(rate, beta3=0.99, l2=L2))[0], descend(step))


def test_mars():
    moments, last = Moments(0.95, 0.99), np.zeros(SHAPE)

    def step(t, gradient, _):
        nonlocal last
        corrected = gradient + 0.1 * 0.95 / 0.05 * (gradient - last)
        last = gradient
        return -rate(t) * moments.add(corrected / max(1, np.linalg.norm(corrected))).step

    same(trajectory(mars.mars(rate, gamma=0.1, l2=L2))[0], descend(step))


def test_schedule_free_is_judged_at_its_average():
    moments = Moments(0.0, 0.999)
    x = z = y = START
    trained, judged, weight = [], [], 0.0
    for mean in MEANS:
        z = z - RATE * moments.add(mean + L2 * y).step
        weight += RATE**2
        x = x + RATE**2 / weight * (z - x)
        y = 0.8 * x + 0.2 * z
        trained.append(y)
        judged.append(x)
    found = trajectory(from_optax.schedule_free(lambda step: RATE, beta1=0.8, l2=L2))
    same(found[0], trained)
    same(found[1], judged)


def test_sam_goes_up_on_one_batch_and_down_from_where_it_was_on_the_next():
    at, momentum = START, np.zeros(SHAPE)
    before, trained, judged = at, [], []
    for t, mean in enumerate(MEANS):
        gradient = mean + L2 * at
        if t % 2 == 0:
            before, at = at, at + 0.2 * gradient / np.linalg.norm(gradient)
        else:
            momentum = 0.9 * momentum + 0.1 * gradient
            at = before = before - rate(t) * momentum
        trained.append(at)
        judged.append(before)
    found = trajectory(from_optax.sam(rate, rho=0.2, l2=L2))
    same(found[0], trained)
    same(found[1], judged)


@pytest.mark.parametrize("everybody", [False, True])
def test_moments_for_every_cluster(everybody):
    probs = np.array([0.4, 0.3, 0.2, 0.1])
    adams = [Moments(0.8, 0.99) for _ in range(CLUSTERS)]
    at, wanted = START, []
    for t, (grads, ids) in enumerate(zip(GRADS, IDS)):
        shares = np.array([SIZES[ids == n].sum() for n in range(CLUSTERS)])
        for n in np.flatnonzero(shares):
            adams[n].add(np.einsum("g...,g->...", grads[ids == n], SIZES[ids == n] / shares[n]) + L2 * at)
        weights = probs if everybody else shares / shares.sum()
        at = at - rate(t) * sum(w * adam.step for w, adam in zip(weights, adams) if adam.t)
        wanted.append(at)
    make = per_cluster.adatask if everybody else per_cluster.adam_per_cluster
    same(trajectory(make(rate, discover.Clusters(probs), beta1=0.8, beta2=0.99, l2=L2))[0], wanted)


def test_an_average_of_the_parameters_is_what_is_judged():
    momentum = np.zeros(SHAPE)

    def step(t, gradient, _):
        nonlocal momentum
        momentum = 0.9 * momentum + 0.1 * gradient
        return -rate(t) * momentum

    wanted = descend(step)
    trained, judged = trajectory(averaging.averaged_momentum(rate, memory=0.7, l2=L2))
    same(trained, wanted)
    weights = 0.7 ** np.arange(STEPS)[::-1]
    same(judged[-1], np.tensordot(weights / weights.sum(), wanted, axes=1))


def test_accumulation_takes_a_step_of_the_mean_after_so_many_batches():
    tx = averaging.accumulated_momentum(rate, every=3, l2=L2)
    at, momentum, wanted = START, np.zeros(SHAPE), []
    for t in range(STEPS):
        if t % 3 == 2:
            momentum = 0.9 * momentum + 0.1 * (MEANS[t - 2 : t + 1].mean(axis=0) + L2 * at)
            at = at - rate(t) * momentum
        wanted.append(at)
    same(trajectory(tx)[0], wanted)


def test_accumulated_muon_is_muon_on_the_mean_of_the_batches():
    found, _ = trajectory(averaging.accumulated_muon(RATE, every=STEPS, l2=L2))
    tx, params = discover.muon(RATE, l2=L2), {"w": jnp.asarray(START, jnp.float32)}
    once = {"w": jnp.asarray(MEANS.mean(axis=0), jnp.float32)[None]}
    wanted, _ = discover.take_step(tx, once, tx.init(params), params)
    same(found[-1], wanted["w"])
    same(found[0], START)


def test_a_run_is_judged_where_its_optimizer_says():
    base = get_preset("digits").config.with_values(
        {
            "model.name": "logistic",
            "model.depth": None,
            "model.width": None,
            "training.steps": 6,
            "training.eval_every": 0,
        }
    )
    base = base.with_values({"training.seeds": [0, 1], "training.steps_per_dispatch": 6})
    mine, programs = "benchmarks.alternatives.averaging:averaged_momentum", {}

    def loss(name, **values):
        options = {f"optimizer.{key}": value for key, value in values.items()}
        config = base.with_values({"optimizer.name": name, "optimizer.learning_rate": 0.3, **options})
        return [member.final["test"]["loss"] for member in run(config, None, programs=programs).members]

    plain = loss("momentum", beta=0.9)
    assert loss(mine, memory=0.0) == pytest.approx(plain)  # an average of the last parameters alone
    assert loss(mine, memory=0.9) != pytest.approx(plain, rel=1e-3)


@pytest.mark.parametrize("name", ["per_cluster:adatask", "per_cluster:adam_per_cluster", "from_optax:lion"])
def test_whether_one_has_clusters_is_seen_by_its_arguments(name):
    entry = OPTIMIZERS.find(f"benchmarks.alternatives.{name}")
    assert entry.clustered == name.startswith("per_cluster")
    assert {"beta1", "beta2", "l2"} <= set(entry.hyperparameters)
