"""Theorem 1 on simulated problems holds for the rule; what else the page says is in the record of all simulations."""

import json
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import theory
from benchmarks.theory import evidence
from benchmarks.theory.simulate import make_settings, optimizer_for, random_problems, simulate, starting_points
from discover import Clusters

SETTINGS = make_settings()
PROBLEMS, STEPS = 40, 400


@pytest.mark.parametrize(
    "index", [pytest.param(i, marks=[] if i == 3 else pytest.mark.slow) for i in range(len(SETTINGS))]
)
def test_theorem_1_holds_at_every_step_of_every_random_problem(index):
    setting = SETTINGS[index]
    problems, hyper = random_problems(setting, PROBLEMS, seed=index)
    start = starting_points(problems, seed=index)
    error = simulate(
        problems,
        optimizer_for("discover", Clusters(setting.probs)),
        hyper,
        jnp.asarray(start),
        jax.random.key(index),
        num_steps=STEPS,
        num_groups=setting.num_groups,
        group_size=setting.group_size,
        num_seeds=32,
    )
    size = setting.num_groups * setting.group_size
    theorem = theory.theorem_1(theory.constants(problems), hyper["mu"], hyper["alpha"], size, setting.num_groups)
    bound = theorem.curve(STEPS, np.sum((start - np.asarray(problems.optimum)) ** 2, axis=-1))
    assert error.shape == bound.shape == (PROBLEMS, STEPS + 1)
    assert np.all(np.asarray(error) <= bound)  # and finite


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


@pytest.mark.slow
def test_the_evidence_is_one_record(tmp_path):
    evidence.run(tmp_path, quick=True)
    assert [path.name for path in tmp_path.iterdir()] == ["theory.json"]
    record = json.loads((tmp_path / "theory.json").read_text())
    assert sum(row["problems"] for row in record["bound"]["rows"]) == 20
    assert all(row["discover"]["violations"] == 0 for row in record["bound"]["rows"])


def test_figures_are_drawn_from_the_record(tmp_path):
    assert evidence.draw(tmp_path) == []
    shutil.copy(Path(__file__).parents[2] / "docs" / "figures" / "theory.json", tmp_path)
    drawn = evidence.draw(tmp_path)
    assert [path.stem for path in drawn[::2]] == ["theory-bound", "theory-steady-state", "theory-groups"]
    assert all(path.stat().st_size > 10_000 for path in drawn)
