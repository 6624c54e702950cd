r"""Clustered problems whose optimum and variances are known because they were chosen.

Both kinds are finite sums of $N$ clusters × m examples. Example (n, i) has a given gradient at the optimum:

$$g_{n,i}(θ^*) = c_n + ξ_{n,i}, \quad Σ_n p_n c_n = 0, \quad Σ_i ξ_{n,i} = 0$$

so $θ^*$ is the optimum by construction, $Σ p_n‖c_n‖²$ is the between-cluster variance and the mean of ‖ξ‖² the
in-cluster variance there, both scaled to the asked values exactly. What differs is the curvature:

- quadratic: $g_{n,i}(θ) = A_{n,i}(θ − θ^*) + c_n + ξ_{n,i}$, eigenvalues of every $A_{n,i}$ from ν to δ;
- logistic: $ℓ_{n,i}(θ) = \log(1 + e^{−y a^Tθ}) + \frac{λ}{2}‖θ‖² + τ^Tθ$ with the tilt τ_{n,i} that makes
  the gradient at $θ^*$ the given one; ν = λ and δ = λ + max‖a‖²/4.

Problems are NamedTuples of arrays: `jax.vmap` over the generator's key makes hundreds of them, and over the
problem runs them together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.theory.bounds import Constants
from discover import Clusters


class Problem(NamedTuple):
    """A clustered problem of either kind; see `make_problem`. Many of them may be stacked on leading axes."""

    probs: jax.Array  # [N]
    optimum: jax.Array  # [d]
    gradients_at_optimum: jax.Array  # [N, m, d]
    strong_convexity: jax.Array  # [] also the weight λ of the logistic problem's regulariser
    smoothness: jax.Array  # []
    hessians: jax.Array | None  # [N, m, d, d]; quadratic
    features: jax.Array | None  # [N, m, d], already multiplied by the label ±1; logistic

    def gradient(self, theta: jax.Array, cluster: jax.Array, index: jax.Array) -> jax.Array:
        """The gradient of example `index` of cluster `cluster` at `theta`, `[d]`."""
        at_optimum, apart = self.gradients_at_optimum[cluster, index], theta - self.optimum
        if self.hessians is not None:
            return self.hessians[cluster, index] @ apart + at_optimum
        assert self.features is not None
        a = self.features[cluster, index]
        # The tilt cancels the logistic gradient at θ*, so only the difference from it remains.
        slope = jax.nn.sigmoid(-a @ self.optimum) - jax.nn.sigmoid(-a @ theta)
        return slope * a + self.strong_convexity * apart + at_optimum


def _probs(num_clusters: int, probs: Sequence[float] | None) -> jax.Array:
    clusters = Clusters.uniform(num_clusters) if probs is None else Clusters(probs)
    if clusters.num_clusters != num_clusters:
        raise ValueError(f"probs must have one entry per cluster ({num_clusters}), got {clusters.num_clusters}")
    return jnp.asarray(np.asarray(clusters.probs, np.float64))


def _scaled(values: jax.Array, weights: jax.Array, variance: jax.Array | float) -> jax.Array:
    """`values` `[..., d]` multiplied so that the `weights`-mean of their squared norm is `variance`."""
    mean_square = jnp.sum(weights * jnp.sum(values**2, axis=-1))
    safe = jnp.where(mean_square > 0, mean_square, 1.0)
    return values * jnp.where(mean_square > 0, jnp.sqrt(variance / safe), 0.0)


def _normals(key: jax.Array, *shapes: tuple[int, ...]) -> list[jax.Array]:
    """Standard normal arrays of these shapes from one draw: each draw costs a second of compilation on a CPU."""
    sizes = [math.prod(shape) for shape in shapes]
    flat = jax.random.normal(key, (sum(sizes),), jnp.result_type(float))
    ends = np.cumsum(sizes)
    return [flat[end - size : end].reshape(shape) for end, size, shape in zip(ends, sizes, shapes)]


def _gradients_at_optimum(
    centres: jax.Array,
    spread: jax.Array,
    probs: jax.Array,
    in_cluster_variance: jax.Array | float,
    between_cluster_variance: jax.Array | float,
) -> jax.Array:
    """c_n + ξ_{n,i} `[N, m, d]` from any `centres` `[N, d]` and `spread` `[N, m, d]`, centred and scaled."""
    centres = _scaled(centres - probs @ centres, probs, between_cluster_variance)
    spread = spread - jnp.mean(spread, axis=1, keepdims=True)
    spread = _scaled(spread, probs[:, None] / spread.shape[1], in_cluster_variance)
    return centres[:, None, :] + spread


def _rotations(normals: jax.Array) -> jax.Array:
    """`[..., d, d]` orthogonal matrices from `[2, ..., d]` vectors, each a product of two reflections.

    Not uniform over all rotations, which a QR decomposition would give at a much longer compilation.
    """
    normals = normals / jnp.linalg.norm(normals, axis=-1, keepdims=True)
    first, second = jnp.eye(normals.shape[-1]) - 2.0 * normals[..., :, None] * normals[..., None, :]
    return first @ second


def make_problem(
    kind: Literal["quadratic", "logistic"],
    key: jax.Array,
    *,
    num_clusters: int,
    num_examples: int,
    dim: int,
    in_cluster_variance: jax.Array | float,
    between_cluster_variance: jax.Array | float,
    strong_convexity: jax.Array | float = 1.0,
    smoothness: jax.Array | float = 2.0,
    probs: Sequence[float] | None = None,
) -> Problem:
    """A clustered problem. All numeric arguments may be traced.

    Args:
      kind: `quadratic`: every example has its own Hessian with eigenvalues from ν to δ. `logistic`: the features of
        cluster n are spread around its own centre, scaled so that the largest ‖a‖²/4 is δ − ν.
      key: a jax random key.
      num_clusters: N.
      num_examples: m, examples per cluster.
      dim: d.
      in_cluster_variance: $Σ p_n E‖g(x, θ^*) − g_n(θ^*)‖²$, met exactly.
      between_cluster_variance: $Σ p_n‖g_n(θ^*)‖²$, met exactly.
      strong_convexity: ν.
      smoothness: δ.
      probs: the clusters' probabilities; uniform if None.

    Example:
      >>> problem = make_problem("quadratic", jax.random.key(0), num_clusters=3, num_examples=4, dim=5,
      ...                        in_cluster_variance=1.0, between_cluster_variance=9.0)
      >>> round(float(constants(problem).between_cluster_variance), 3)
      9.0
    """
    p = _probs(num_clusters, probs)
    shape = (num_clusters, num_examples, dim)
    further = {"quadratic": [(2, *shape)], "logistic": [(num_clusters, 1, dim), shape]}[kind]
    centres, spread, optimum, *normals = _normals(key, (num_clusters, dim), shape, (dim,), *further)
    hessians = features = None
    if kind == "quadratic":
        # The ends of the spectrum are in every example: the declared ν and δ are attained, not only bounds.
        spectrum = jnp.linspace(strong_convexity, smoothness, dim)
        basis = _rotations(normals[0])
        hessians = jnp.einsum("...ij,j,...kj->...ik", basis, spectrum, basis)
    else:
        features = normals[0] + normals[1]
        longest = jnp.max(jnp.linalg.norm(features, axis=-1))
        features = features * 2.0 * jnp.sqrt(smoothness - strong_convexity) / longest
    return Problem(
        p,
        optimum,
        _gradients_at_optimum(centres, spread, p, in_cluster_variance, between_cluster_variance),
        jnp.asarray(strong_convexity, p.dtype),
        jnp.asarray(smoothness, p.dtype),
        hessians,
        features,
    )


def constants(problem: Problem) -> Constants:
    """The `Constants` of a problem, or arrays of them for problems stacked on leading axes.

    The variances are measured from the example gradients at the optimum, not copied from the request.
    """
    probs = np.asarray(problem.probs, np.float64)
    grads = np.asarray(problem.gradients_at_optimum, np.float64)
    means = grads.mean(axis=-2)
    spread = np.sum((grads - means[..., None, :]) ** 2, axis=-1).mean(axis=-1)
    return Constants(
        strong_convexity=np.asarray(problem.strong_convexity, np.float64),
        smoothness=np.asarray(problem.smoothness, np.float64),
        in_cluster_variance=np.sum(probs * spread, axis=-1),
        between_cluster_variance=np.sum(probs * np.sum(means**2, axis=-1), axis=-1),
        min_prob=probs.min(axis=-1),
    )
