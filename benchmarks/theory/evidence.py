"""`python -m discover reproduce theory`: every simulation behind `docs/theory.md`, and its figures."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import theory
from benchmarks.theory.figures import write_theory_figures
from benchmarks.theory.simulate import make_settings, optimizer_for, random_problems, simulate, starting_points
from discover import Clusters
from discover.lab.experiments.folder import Folder
from discover.lab.records import write_text

OPTIMIZERS = ("sgd", "momentum", "discover", "multi_momentum", "paper_discover")
NUM_CLUSTERS, DIM, NUM_EXAMPLES = 10, 10, 16
ALPHA = 0.1  # = p_min, the largest that the theorem allows
IN_CLUSTER = 1.0
BETWEEN = 100.0
BOUND_SEEDS = 64


def run(out: Path, *, data: str | None = None, quick: bool = False, say: Callable[[str], None] = print) -> None:
    """Reruns the simulations and writes `theory.json` into `out`; it needs no `data`."""
    del data
    with Folder(out).claim() as folder:
        record = simulate_all(quick, say)
        write_text(folder.path / "theory.json", json.dumps(record, indent=1) + "\n")


def draw(out: Path) -> list[Path]:
    """The figures of the record in `out`; none where there is none."""
    return write_theory_figures(out / "theory.json", out) if (out / "theory.json").is_file() else []


def simulate_all(quick: bool, say: Callable[[str], None]) -> dict[str, Any]:
    sizes = {"steps": 300, "seeds": 8} if quick else {"steps": 3000, "seeds": 200}
    began = time.perf_counter()
    record: dict[str, Any] = {
        "settings": {
            **sizes,
            "num_clusters": NUM_CLUSTERS,
            "dim": DIM,
            "examples_per_cluster": NUM_EXAMPLES,
            "alpha": ALPHA,
            "in_cluster_variance": IN_CLUSTER,
            "between_cluster_variance": BETWEEN,
            "strong_convexity": 1.0,
            "smoothness": 2.0,
            "jax": jax.__version__,
            "device": jax.devices()[0].device_kind,
        }
    }
    say("bound: random problems inside the assumptions of Theorem 1")
    record["bound"] = _bound(num_problems=4 if quick else 60, num_steps=100 if quick else 600)
    say("trajectories, between-cluster variance, step size")
    record.update(_one_batch_size(sizes))
    say("scaling with the step size and the batch size")
    record["scaling"] = _scaling(sizes)
    say("number of groups at one batch size")
    record["groups"] = _groups(sizes)
    record["settings"]["seconds"] = round(time.perf_counter() - began, 1)
    return record


def _bound(num_problems: int, num_steps: int) -> dict[str, Any]:
    """Measured error over Theorem 1's bound, for random problems in each setting: rule and printed algorithm."""
    rows = []
    for index, setting in enumerate(make_settings()):
        problems, hyper = random_problems(setting, num_problems, seed=index)
        start = starting_points(problems, seed=index)
        size = setting.num_groups * setting.group_size
        bound = theory.theorem_1(theory.constants(problems), hyper["mu"], hyper["alpha"], size, setting.num_groups)
        limit = bound.curve(num_steps, np.sum((start - np.asarray(problems.optimum)) ** 2, axis=-1))
        row: dict[str, Any] = {**setting._asdict(), "problems": num_problems, "steps": num_steps, "seeds": BOUND_SEEDS}
        for name in ("discover", "paper_discover"):
            error = simulate(
                problems,
                optimizer_for(name, Clusters(setting.probs)),
                hyper,
                jnp.asarray(start),
                jax.random.key(index),
                num_steps=num_steps,
                num_groups=setting.num_groups,
                group_size=setting.group_size,
                num_seeds=BOUND_SEEDS,
            )
            ratio = np.asarray(error) / limit
            row[name] = {
                "largest_ratio": _rounded(ratio[:, 1:].max(axis=1)),
                "last_ratio": _rounded(ratio[:, -num_steps // 4 :].mean(axis=1)),
                "violations": int(np.sum(ratio.max(axis=1) > 1.0)),
            }
        rows.append(row)
    return {"rows": rows}


def _stack(between: np.ndarray) -> theory.Problem:
    """One quadratic problem at several between-cluster variances: the same Hessians, noise and directions."""

    def make(variance: jax.Array) -> theory.Problem:
        return theory.make_problem(
            "quadratic",
            jax.random.key(0),
            num_clusters=NUM_CLUSTERS,
            num_examples=NUM_EXAMPLES,
            dim=DIM,
            in_cluster_variance=IN_CLUSTER,
            between_cluster_variance=variance,
        )

    return jax.jit(jax.vmap(make))(jnp.asarray(between))


def _run(
    name: str, problems: theory.Problem, mu: np.ndarray, groups: int, size: int, sizes: dict[str, int]
) -> np.ndarray:
    clusters = Clusters.uniform(NUM_CLUSTERS)
    hyper = {"mu": jnp.asarray(mu), "alpha": jnp.full(len(mu), ALPHA)}
    start = problems.optimum + 1.0 / np.sqrt(DIM)
    error = simulate(
        problems,
        optimizer_for(name, clusters),
        hyper,
        start,
        jax.random.key(1),
        num_steps=sizes["steps"],
        num_groups=groups,
        group_size=size,
        num_seeds=sizes["seeds"],
    )
    return np.asarray(error, np.float64)


def _steady(errors: np.ndarray) -> list[float | None]:
    """The mean over the last quarter of the steps."""
    return _rounded(errors[:, -(errors.shape[1] // 4) :].mean(axis=1))


def _rounded(values: np.ndarray) -> list[float | None]:
    """Six digits are enough for a figure; what diverged is None, which JSON knows."""
    return [float(f"{v:.6g}") if np.isfinite(v) else None for v in np.asarray(values, np.float64)]


def _one_batch_size(sizes: dict[str, int]) -> dict[str, Any]:
    """|B| = 8 independent examples: curves over time, and steady states by between-cluster variance and by μ."""
    batch = 8
    between = np.array([1.0, 3.0, 10.0, 30.0, 100.0])
    multiples = np.array([0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0])
    problems = _stack(np.concatenate([between, np.full(len(multiples), BETWEEN)]))
    constants = theory.constants(problems)
    limits = theory.step_size_limit(constants, ALPHA, batch)
    mu = limits * np.concatenate([np.ones(len(between)), multiples])
    bounds = theory.theorem_1(constants, mu, ALPHA, batch, check=False)
    every = max(1, sizes["steps"] // 150)
    at = int(len(between) - 1)  # the trajectory shown: largest between-cluster variance, μ at the limit
    curve = bounds.curve(sizes["steps"], np.ones(len(mu)))[at]
    result: dict[str, Any] = {
        "trajectory": {"step": list(range(0, sizes["steps"] + 1, every)), "bound": _rounded(curve[::every])},
        "between": {"variance": between.tolist(), "bound": _rounded(bounds.steady_state[: len(between)])},
        "step_size": {
            "multiple": multiples.tolist(),
            "limit": float(limits[0]),
            "direct_limit": float(theory.direct_step_size_limit(constants, ALPHA, batch)[0]),
            "bound": _rounded(bounds.steady_state[len(between) :]),
        },
    }
    result["trajectory"]["step_size"] = float(mu[at])
    for name in OPTIMIZERS:
        errors = _run(name, problems, mu, batch, 1, sizes)
        result["trajectory"][name] = _rounded(errors[at][::every])
        steady = _steady(errors)
        result["between"][name] = steady[: len(between)]
        result["step_size"][name] = steady[len(between) :]
    return result


def _scaling(sizes: dict[str, int]) -> dict[str, Any]:
    """Steady state of Discover and SGD over step sizes (all inside the limit) and batch sizes."""
    rows = []
    for batch in (2, 8, 32):
        parts = np.array([0.2, 0.4, 0.6, 0.8, 1.0])
        problems = _stack(np.full(len(parts), BETWEEN))
        constants = theory.constants(problems)
        mu = parts * theory.step_size_limit(constants, ALPHA, 2)[0]
        row: dict[str, Any] = {
            "batch_size": batch,
            "step_size": _rounded(mu),
            "bound": _rounded(theory.theorem_1(constants, mu, ALPHA, batch).steady_state),
        }
        for name in ("sgd", "discover"):
            row[name] = _steady(_run(name, problems, mu, batch, 1, sizes))
        rows.append(row)
    return {"rows": rows}


def _groups(sizes: dict[str, int]) -> dict[str, Any]:
    """|B| = 32 in batches of G cluster-pure groups, from one group of 32 to 32 groups of one."""
    batch = 32
    rows = []
    problems = _stack(np.array([BETWEEN]))
    constants = theory.constants(problems)
    mu = theory.step_size_limit(constants, ALPHA, batch, 1)  # inside the limit for every G
    for groups in (1, 2, 4, 8, 16, 32):
        row: dict[str, Any] = {
            "groups": groups,
            "group_size": batch // groups,
            "bound": _rounded(theory.theorem_1(constants, mu, ALPHA, batch, groups).steady_state)[0],
        }
        for name in OPTIMIZERS:
            row[name] = _steady(_run(name, problems, mu, groups, batch // groups, sizes))[0]
        rows.append(row)
    return {"batch_size": batch, "step_size": float(mu[0]), "rows": rows}
