r"""The constants and the bound of the paper's Theorem 1.

Setting: a mixture of $N$ clusters with probabilities $p_n$. Example gradients $g(x, θ)$ are δ-Lipschitz in θ,
the risk is ν-strongly convex, $g_n(θ) = E_{x∼P_n} g(x, θ)$, $g(θ) = Σ_n p_n g_n(θ)$, $g(θ^*) = 0$. At $θ^*$:

    in-cluster variance        V_in  = Σ p_n E‖g(x, θ*) − g_n(θ*)‖²
    between-cluster variance   V_bet = Σ p_n ‖g_n(θ*)‖²

Every step draws `num_groups` = K clusters independently, and `batch_size`/K examples of each. The paper's
analysis is the case K = |B| (every example drawn independently); its implementation has one cluster per core,
K < |B|.
All bounds here are stated for both: the 1/|B| in front of a between-cluster term is a 1/K.

Where the paper needs a reading (see `docs/theory.md`):

- σ_n² is printed as $2E‖g(x, θ^*)‖²$, which contains the between-cluster variance that the theorem is to be
  free of. The proof needs, and supports, $σ_n² = 2E‖g(x, θ^*) − g_n(θ^*)‖²$: that is `Constants.sigma_in`.
- "the loss is δ-Lipschitz" must read "its gradient is δ-Lipschitz".
- the proof writes $‖I − μH‖² ≤ 1 − 2μδ + μ²δ²$; what holds, and what its next line uses, is $1 − 2μν + μ²δ²$.

All functions broadcast over arrays, so a thousand problems can be bounded in one call.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]


def _array(value: ArrayLike) -> Array:
    return np.asarray(value, dtype=np.float64)


@dataclass(frozen=True)
class Constants:
    """What the bounds need to know about a problem; scalars, or arrays over many problems.

    Args:
      strong_convexity: ν > 0.
      smoothness: δ ≥ ν, the Lipschitz constant of the example gradients.
      in_cluster_variance: $Σ p_n E‖g(x, θ^*) − g_n(θ^*)‖²$, not doubled.
      between_cluster_variance: $Σ p_n‖g_n(θ^*)‖²$.
      min_prob: the smallest cluster probability.
    """

    strong_convexity: ArrayLike
    smoothness: ArrayLike
    in_cluster_variance: ArrayLike
    between_cluster_variance: ArrayLike
    min_prob: ArrayLike

    @property
    def sigma_in(self) -> Array:
        """$σ_{in}² = Σ p_n σ_n²$ with $σ_n² = 2E‖g(x, θ^*) − g_n(θ^*)‖²$: twice the in-cluster variance."""
        return 2.0 * _array(self.in_cluster_variance)

    @property
    def sigma_in_printed(self) -> Array:
        """$σ_{in}²$ with $σ_n² = 2E‖g(x, θ^*)‖²$ as printed: twice the *total* variance."""
        return 2.0 * (_array(self.in_cluster_variance) + _array(self.between_cluster_variance))


def _groups(batch_size: ArrayLike, num_groups: ArrayLike | None) -> tuple[Array, Array]:
    size = _array(batch_size)
    groups = size if num_groups is None else _array(num_groups)
    if np.any(size < 1):
        raise ValueError(f"batch_size must be at least 1, got {np.min(size)}")
    if np.any(groups < 1) or np.any(groups > size):
        raise ValueError(f"num_groups must lie between 1 and batch_size, got {np.min(groups)} to {np.max(groups)}")
    return size, groups


def _check_alpha(constants: Constants, alpha: ArrayLike) -> Array:
    a = _array(alpha)
    if np.any(a <= 0) or np.any(a > _array(constants.min_prob)):
        raise ValueError(
            f"alpha must lie in (0, p_min], got {np.min(a):.6g} to {np.max(a):.6g}, "
            f"with p_min {np.min(_array(constants.min_prob)):.6g}"
        )
    return a


def step_size_limit(
    constants: Constants, alpha: ArrayLike, batch_size: ArrayLike, num_groups: ArrayLike | None = None
) -> Array:
    r"""Theorem 1's limit on the step size, with the number of independent draws K in the place of |B|.

    $$μ ≤ \min\Big\{\frac{νK}{3δ²(K + 5)}, \frac{α}{6ν}\Big\}$$

    Args:
      constants: the problem.
      alpha: α in (0, p_min]; the family's 1 − β.
      batch_size: |B|.
      num_groups: K; None is the printed limit, K = |B|.
    """
    _, groups = _groups(batch_size, num_groups)
    a = _check_alpha(constants, alpha)
    nu, d2 = _array(constants.strong_convexity), _array(constants.smoothness) ** 2
    return np.minimum(nu * groups / (3.0 * d2 * (groups + 5.0)), a / (6.0 * nu))


def direct_step_size_limit(
    constants: Constants, alpha: ArrayLike, batch_size: ArrayLike, num_groups: ArrayLike | None = None
) -> Array:
    r"""The limit that the same argument needs when nothing is rounded up on the way.

    $$μ ≤ \min\Big\{\frac{ν}{δ²(1 + 5/K + 8/|B|)}, \frac{α}{3ν}\Big\}$$

    Never smaller than `step_size_limit`: the theorem's conclusion holds up to here.
    """
    size, groups = _groups(batch_size, num_groups)
    a = _check_alpha(constants, alpha)
    nu, d2 = _array(constants.strong_convexity), _array(constants.smoothness) ** 2
    return np.minimum(nu / (d2 * (1.0 + 5.0 / groups + 8.0 / size)), a / (3.0 * nu))


@dataclass(frozen=True)
class Theorem1:
    """Theorem 1 for one problem and one choice of μ, α and batch (or arrays of them).

    Attributes:
      contraction: q = 1 − μν.
      gamma: γ = 3μ²/(αK), the weight of the buffers' error in the potential.
      initial_buffer_error: $G_0 = Σ p_n‖g_n(θ^*)‖²$, since the buffers start at zero.
      steady_state: 4μσ_in²/(ν|B|), what remains as t → ∞.
    """

    contraction: Array
    gamma: Array
    initial_buffer_error: Array
    steady_state: Array

    def curve(self, num_steps: int, initial_squared_distance: ArrayLike) -> Array:
        r"""$E‖θ_t − θ^*‖² ≤ q^t(‖θ_0 − θ^*‖² + γG_0) + 4μσ_{in}²/(ν|B|)$ at t = 0 … `num_steps`, on a new last axis."""
        start = _array(initial_squared_distance) + self.gamma * self.initial_buffer_error
        powers = self.contraction[..., None] ** np.arange(num_steps + 1)
        return powers * start[..., None] + self.steady_state[..., None]


def theorem_1(
    constants: Constants,
    step_size: ArrayLike,
    alpha: ArrayLike,
    batch_size: ArrayLike,
    num_groups: ArrayLike | None = None,
    *,
    check: bool = True,
) -> Theorem1:
    r"""Theorem 1: how close Discover (ν = 0, proportional rate, α = 1 − β) gets, and how fast.

    $$E‖θ_t − θ^*‖² ≤ q^t\big(‖θ_0 − θ^*‖² + γG_0\big) + \frac{4μ}{ν|B|}σ_{in}²,
      \quad q = 1 − μν, \quad γ = \frac{3μ²}{αK}$$

    For batches of K cluster-pure groups the statement survives with K in γ and in the step-size limit, while
    the steady state keeps the full |B|: that is our extension of the printed theorem (K = |B|).

    Args:
      constants: the problem.
      step_size: μ.
      alpha: α in (0, p_min]; the family's 1 − β.
      batch_size: |B|.
      num_groups: K, clusters drawn independently per step; None means K = |B|.
      check: refuse a step size for which the argument does not hold (`direct_step_size_limit`).

    Raises:
      ValueError: α or μ lies outside the theorem's range.

    Example:
      >>> problem = Constants(1.0, 2.0, 1.0, 100.0, min_prob=0.25)
      >>> limit = step_size_limit(problem, alpha=0.2, batch_size=8)
      >>> theorem = theorem_1(problem, limit, alpha=0.2, batch_size=8)
      >>> round(float(theorem.steady_state), 4)
      0.0333
    """
    size, groups = _groups(batch_size, num_groups)
    a, mu = _check_alpha(constants, alpha), _array(step_size)
    if np.any(mu <= 0):
        raise ValueError(f"step_size must be positive, got {np.min(mu)}")
    limit = direct_step_size_limit(constants, a, size, groups)
    if check and np.any(mu > limit * (1 + 1e-12)):
        raise ValueError(f"step_size must be at most {np.min(limit):.6g} for Theorem 1, got {np.max(mu):.6g}")
    nu = _array(constants.strong_convexity)
    shape = np.broadcast_shapes(mu.shape, nu.shape, a.shape, size.shape, groups.shape)
    return Theorem1(
        contraction=np.broadcast_to(1.0 - mu * nu, shape),
        gamma=np.broadcast_to(3.0 * mu**2 / (a * groups), shape),
        initial_buffer_error=np.broadcast_to(_array(constants.between_cluster_variance), shape),
        steady_state=np.broadcast_to(4.0 * mu * constants.sigma_in / (nu * size), shape),
    )
