"""The optimizers on problems whose optimum is known: what Theorem 1 says, and what happens.

`simulate` runs many seeds (and many problems at once) in one compiled program.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from benchmarks import theory
from discover import Clusters, discover, momentum, paper_discover, sgd
from discover.registry import choose

MakeOptimizer = Callable[[Any], optax.GradientTransformationExtraArgs]


def simulate(
    problem: theory.Problem,
    make_optimizer: MakeOptimizer,
    hyperparameters: Any,
    start: jax.Array,
    key: jax.Array,
    *,
    num_steps: int,
    num_groups: int,
    group_size: int = 1,
    num_seeds: int = 64,
) -> jax.Array:
    """$E‖θ_t − θ^*‖²$ for t = 0 … num_steps, estimated as the mean over seeds.

    Every step draws `num_groups` clusters independently by their probability, and `group_size` examples of each,
    with replacement. `group_size=1` is the setting of the paper's theorem: examples drawn independently.

    Args:
      problem: one problem, or many stacked on a leading axis (then `hyperparameters` leaves and `start` are too).
      make_optimizer: from hyperparameters (traced scalars) to an optimizer of this library.
      hyperparameters: a tree of numbers.
      start: θ_0, `[d]`.
      key: a jax random key; all problems and optimizers that are given the same key see the same draws.
      num_steps: T.
      num_groups: G, groups per batch.
      group_size: b, examples per group.
      num_seeds: runs that are averaged.

    Returns:
      `[T + 1]`, or `[problems, T + 1]`.
    """
    num_examples = problem.gradients_at_optimum.shape[-2]

    def one(problem: theory.Problem, hyperparameters: Any, start: jax.Array, key: jax.Array) -> jax.Array:
        tx = make_optimizer(hyperparameters)
        # Where one cluster ends and the next begins on [0, 1); the last one takes what rounding leaves.
        ends = jnp.cumsum(problem.probs)[:-1]

        def one_seed(seed_key: jax.Array) -> jax.Array:
            def step(carry, step_key):
                theta, state = carry
                # One draw for everything: the random bits cost more than the gradients of such small problems.
                draws = jax.random.uniform(step_key, (num_groups, 1 + group_size), ends.dtype)
                ids = jnp.sum(draws[:, :1] >= ends, axis=1)
                examples = (draws[:, 1:] * num_examples).astype(jnp.int32)
                per_example = jax.vmap(jax.vmap(problem.gradient, (None, None, 0)), (None, 0, 0))
                grads = jnp.mean(per_example(theta, ids, examples), axis=1)
                updates, state = tx.update(grads, state, theta, cluster_ids=ids)
                theta = theta + updates
                return (theta, state), jnp.sum((theta - problem.optimum) ** 2)

            keys = jax.random.split(seed_key, num_steps)
            _, errors = jax.lax.scan(step, (start, tx.init(start)), keys)
            return jnp.concatenate([jnp.sum((start - problem.optimum) ** 2)[None], errors])

        return jnp.mean(jax.vmap(one_seed)(jax.random.split(key, num_seeds)), axis=0)

    if problem.optimum.ndim == 1:
        return jax.jit(one)(problem, hyperparameters, start, key)
    keys = jax.random.split(key, problem.optimum.shape[0])
    return jax.jit(jax.vmap(one))(problem, hyperparameters, start, keys)


def optimizer_for(name: str, clusters: Clusters) -> MakeOptimizer:
    """From a name to a function of `{"mu", "alpha"}` that makes the optimizer.

    Args:
      name: `sgd`; `momentum` (β = 0.9); `discover` (Theorem 1's: ν = 0, β = 1 − α, proportional rate);
        `multi_momentum` (the same with ν = 1); or `paper_discover` (Algorithm 1 as printed, α_n = α/p_n).
      clusters: the problem's clusters.
    """
    makers: dict[str, MakeOptimizer] = {
        "sgd": lambda h: sgd(h["mu"]),
        "momentum": lambda h: momentum(h["mu"], 0.9),
        "discover": lambda h: discover(h["mu"], clusters, beta=1 - h["alpha"], nu=0.0),
        "multi_momentum": lambda h: discover(h["mu"], clusters, beta=1 - h["alpha"], nu=1.0),
        "paper_discover": lambda h: paper_discover(h["mu"], clusters, alpha=h["alpha"]),
    }
    return makers[choose("optimizer", name, makers)]


class Setting(NamedTuple):
    """A family of random problems that share shapes, cluster probabilities and the way batches are drawn."""

    kind: Literal["quadratic", "logistic"]
    probs: tuple[float, ...]
    num_groups: int
    group_size: int


def make_settings() -> tuple[Setting, ...]:
    """Settings inside Theorem 1's assumptions: independent examples, and groups (our extension of it)."""
    skewed = (0.4, 0.3, 0.2, 0.1)
    return (
        Setting("quadratic", (0.5, 0.3, 0.2), 1, 1),
        Setting("quadratic", skewed, 8, 1),
        Setting("logistic", (0.2,) * 5, 8, 1),
        Setting("logistic", skewed, 3, 4),
        Setting("quadratic", (0.25,) * 4, 2, 8),
    )


def random_problems(
    setting: Setting, num_problems: int, seed: int, *, num_examples: int = 6, dim: int = 4
) -> tuple[theory.Problem, dict[str, np.ndarray]]:
    """Random problems of a setting, with step sizes and rates α drawn from all that Theorem 1 allows.

    Condition numbers δ/ν are 1.2 to 4, variances spread over two (in-cluster) and five (between-cluster) decades.

    Returns:
      The stacked problems, and the hyperparameters `{"mu", "alpha"}` `[problems]` of each.
    """
    rng = np.random.default_rng(seed)
    columns = {
        "in_cluster_variance": 10.0 ** rng.uniform(-1, 1, num_problems),
        "between_cluster_variance": 10.0 ** rng.uniform(-2, 3, num_problems),
        "strong_convexity": rng.uniform(0.3, 2.0, num_problems),
    }
    columns["smoothness"] = columns["strong_convexity"] * rng.uniform(1.2, 4.0, num_problems)

    def generate(key: jax.Array, row: dict[str, jax.Array]) -> theory.Problem:
        probs, number = setting.probs, len(setting.probs)
        return theory.make_problem(
            setting.kind, key, num_clusters=number, num_examples=num_examples, dim=dim, probs=probs, **row
        )

    problems = jax.jit(jax.vmap(generate))(jax.random.split(jax.random.key(seed), num_problems), columns)
    alpha = rng.uniform(0.2, 1.0, num_problems) * min(setting.probs)
    limit = theory.step_size_limit(
        theory.constants(problems), alpha, setting.num_groups * setting.group_size, setting.num_groups
    )
    return problems, {"mu": limit * rng.uniform(0.2, 1.0, num_problems), "alpha": alpha}


def starting_points(problems: theory.Problem, seed: int) -> np.ndarray:
    """θ_0 for each problem: at distances from the optimum between 0.01 and 10."""
    rng = np.random.default_rng(seed)
    optimum = np.asarray(problems.optimum)
    direction = rng.normal(size=optimum.shape)
    direction /= np.linalg.norm(direction, axis=-1, keepdims=True)
    return optimum + direction * 10.0 ** rng.uniform(-2, 1, (*optimum.shape[:-1], 1))
