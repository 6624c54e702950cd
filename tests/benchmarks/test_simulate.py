"""Theorem 1 on simulated problems: it holds for the rule, and its failure shows when the rule is broken."""

import json
import shutil
from functools import cache, partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from benchmarks import theory
from benchmarks.theory import evidence
from benchmarks.theory.simulate import make_settings, optimizer_for, random_problems, simulate, starting_points
from discover import Clusters, DiscoverState, discover

SETTINGS = make_settings()
SIZES = {"num_clusters": 4, "num_examples": 6, "dim": 3, "in_cluster_variance": 1.0}
PROBLEMS_EACH = 40
NUM_STEPS = 400


@cache
def problems_of(setting, num_problems, seed):
    return random_problems(setting, num_problems, seed)


def ratios(setting, make_optimizer, num_problems, seed, num_steps=NUM_STEPS, extra=None):
    """Measured E‖θ_t − θ*‖² over Theorem 1's bound, [problems, steps + 1]."""
    problems, hyper = problems_of(setting, num_problems, seed)
    start = starting_points(problems, seed)
    error = simulate(
        problems,
        make_optimizer,
        {**hyper, **(extra or {})},
        jnp.asarray(start),
        jax.random.key(seed),
        num_steps=num_steps,
        num_groups=setting.num_groups,
        group_size=setting.group_size,
        num_seeds=32,
    )
    size = setting.num_groups * setting.group_size
    theorem = theory.theorem_1(theory.constants(problems), hyper["mu"], hyper["alpha"], size, setting.num_groups)
    bound = theorem.curve(num_steps, np.sum((start - np.asarray(problems.optimum)) ** 2, axis=-1))
    return np.asarray(error) / bound


UNSPOILT, SHRINKS, IGNORES_PROBS = 0, 1, 2


def spoilable(clusters):
    """Theorem 1's Discover, whose ḡ is spoilt after every step as `hyper["spoil"]` says."""

    def make(hyper):
        inner = discover(hyper["mu"], clusters, beta=1 - hyper["alpha"], nu=0.0)

        def spoil(node):
            if not isinstance(node, DiscoverState):
                return node
            choices = [node.mean, 0.9 * node.mean, jnp.mean(node.buffers, axis=0)]
            return node._replace(mean=jnp.stack(choices)[hyper["spoil"]])

        def update(grads, state, params=None, **extra):
            updates, state = inner.update(grads, state, params, **extra)
            return updates, jax.tree.map(spoil, state, is_leaf=lambda node: isinstance(node, DiscoverState))

        return optax.GradientTransformationExtraArgs(inner.init, update)

    return make


def test_there_are_at_least_200_problems():
    assert PROBLEMS_EACH * len(SETTINGS) >= 200


@pytest.mark.parametrize(
    "index", [pytest.param(i, marks=[] if i == 3 else pytest.mark.slow) for i in range(len(SETTINGS))]
)
def test_theorem_1_holds_at_every_step_of_every_random_problem(index):
    setting = SETTINGS[index]
    found = ratios(setting, optimizer_for("discover", Clusters(setting.probs)), PROBLEMS_EACH, seed=index)
    assert found.shape == (PROBLEMS_EACH, NUM_STEPS + 1)
    assert np.all(found <= 1.0)
    assert np.all(np.isfinite(found))


@pytest.mark.slow
def test_bound_is_violated_when_the_mean_is_not_the_mean_of_the_buffers():
    setting = SETTINGS[1]
    cases = {"spoil": np.arange(PROBLEMS_EACH) % 3}
    found = ratios(setting, spoilable(Clusters(setting.probs)), PROBLEMS_EACH, seed=1, extra=cases)
    left = found.max(axis=1) > 1.0
    assert np.mean(left[cases["spoil"] == SHRINKS]) > 0.3
    assert np.mean(left[cases["spoil"] == IGNORES_PROBS]) > 0.3
    assert not np.any(left[cases["spoil"] == UNSPOILT])  # so it is the mean that matters, not the wrapper


@pytest.mark.slow
def test_printed_mini_batch_algorithm_leaves_the_bound_and_a_batch_of_one_example_keeps_it():
    several, single = SETTINGS[1], SETTINGS[0]
    found = ratios(several, optimizer_for("paper_discover", Clusters(several.probs)), PROBLEMS_EACH, seed=1)
    assert np.mean(found.max(axis=1) > 1.0) > 0.5
    found = ratios(single, optimizer_for("paper_discover", Clusters(single.probs)), PROBLEMS_EACH, seed=0)
    assert np.all(found <= 1.0)


CASES = {  # between-cluster variance, step size; in-cluster variance 1
    "near": (1.0, 0.0167),
    "far": (100.0, 0.0167),
    "half step": (100.0, 0.00835),
}


@cache
def family():
    """One small quadratic problem at the between-cluster variance of each case."""
    make = partial(theory.make_problem, "quadratic", jax.random.key(0), **SIZES)
    variances = jnp.asarray([between for between, _ in CASES.values()])
    return jax.jit(jax.vmap(lambda variance: make(between_cluster_variance=variance)))(variances)


@cache
def steady_states(name, groups, size):
    """For each case the mean of E‖θ_t − θ*‖² over the last half of 1000 steps."""
    problems = family()
    mu = jnp.asarray([step for _, step in CASES.values()])
    error = simulate(
        problems,
        optimizer_for(name, Clusters.uniform(4)),
        {"mu": mu, "alpha": jnp.full(len(mu), 0.1)},
        problems.optimum,
        jax.random.key(1),
        num_steps=1000,
        num_groups=groups,
        group_size=size,
        num_seeds=64,
    )
    return dict(zip(CASES, np.asarray(error)[:, 500:].mean(axis=1)))


@pytest.mark.slow
def test_steady_state_does_not_move_with_the_between_cluster_variance_and_sgd_does():
    ours = steady_states("discover", 8, 1)
    assert ours["far"] / ours["near"] == pytest.approx(1.0, abs=0.1)
    theirs = steady_states("sgd", 8, 1)
    assert theirs["far"] / theirs["near"] == pytest.approx(101 / 2, rel=0.2)


def test_steady_state_scales_with_step_size_over_batch_size():
    small, large = steady_states("discover", 2, 1), steady_states("discover", 8, 1)
    assert large["far"] / large["half step"] == pytest.approx(2.0, rel=0.2)
    assert small["far"] / large["far"] == pytest.approx(4.0, rel=0.3)


@pytest.mark.slow
def test_pure_groups_cost_sgd_much_and_discover_only_the_noise_of_its_buffers():
    few, many = steady_states("sgd", 1, 8), steady_states("sgd", 8, 1)
    assert few["far"] / many["far"] == pytest.approx(8, rel=0.3)
    # A buffer that moves by ρ at each visit keeps ρ/(2 − ρ) of a group's in-cluster noise, of which (1 − Σ p_n²) is
    # seen in a step. With α = 0.1 and p = 1/4, ρ is 0.4 for one group per batch and 0.05 for eight.
    wanted = (1 + 0.75 * 0.4 / 1.6) / (1 + 0.75 * 0.05 / 1.95)  # 1.165
    few, many = steady_states("discover", 1, 8), steady_states("discover", 8, 1)
    assert few["far"] / many["far"] == pytest.approx(wanted, abs=0.08)


def test_simulation_is_the_plain_algorithm_1():
    """Against Algorithm 1 in NumPy, one example per batch, fed with the same draws."""
    with jax.enable_x64(True):
        probs = (0.5, 0.3, 0.2)
        problem = theory.make_problem(
            "quadratic",
            jax.random.key(3),
            num_clusters=3,
            num_examples=4,
            dim=5,
            in_cluster_variance=1.0,
            between_cluster_variance=10.0,
            probs=probs,
        )
        start, mu, alpha = np.zeros(5), 0.02, 0.1
        key = jax.random.key(4)
        found = simulate(
            problem,
            optimizer_for("discover", Clusters(probs)),
            {"mu": mu, "alpha": alpha},
            jnp.asarray(start),
            key,
            num_steps=30,
            num_groups=1,
            num_seeds=1,
        )
        theta, mean, buffers = start.copy(), np.zeros(5), np.zeros((3, 5))
        errors = [np.sum((theta - problem.optimum) ** 2)]
        for step_key in jax.random.split(jax.random.split(key, 1)[0], 30):
            draws = np.asarray(jax.random.uniform(step_key, (1, 2), jnp.float64))[0]
            n = int(np.searchsorted(np.cumsum(probs), draws[0], side="right"))
            i = int(4 * draws[1])
            g = np.asarray(problem.gradient(jnp.asarray(theta), n, i))
            theta = theta - mu * (g - buffers[n] + mean)
            mean = mean - alpha * (buffers[n] - g)
            buffers[n] = (1 - alpha / probs[n]) * buffers[n] + alpha / probs[n] * g
            errors.append(np.sum((theta - np.asarray(problem.optimum)) ** 2))
        np.testing.assert_allclose(found, errors, rtol=1e-9)


def test_unknown_optimizer_is_refused():
    with pytest.raises(ValueError, match="choose from sgd"):
        optimizer_for("newton", Clusters.uniform(2))


@pytest.mark.slow
def test_the_evidence_is_one_record(tmp_path):
    evidence.run(tmp_path, quick=True)
    assert [path.name for path in tmp_path.iterdir()] == ["theory.json"]
    record = json.loads((tmp_path / "theory.json").read_text())
    assert sum(row["problems"] for row in record["bound"]["rows"]) == 20
    assert all(row["discover"]["violations"] == 0 for row in record["bound"]["rows"])


def test_figures_are_drawn_from_the_record_and_are_reproducible(tmp_path):
    drawn = []
    for out in (tmp_path / "a", tmp_path / "b"):
        out.mkdir()
        assert evidence.draw(out) == []
        shutil.copy(Path(__file__).parents[2] / "docs" / "figures" / "theory.json", out)
        drawn.append(evidence.draw(out))
    assert [path.stem for path in drawn[0][::2]] == ["theory-bound", "theory-steady-state", "theory-groups"]
    assert all(a.read_bytes() == b.read_bytes() for a, b in zip(*drawn))
