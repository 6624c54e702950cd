"""The bounds against exact expectations on small finite problems, and the problems against what was asked."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks import theory


def all_gradients(problem, theta):
    """Every example's gradient at theta, [N, m, d], in NumPy float64."""
    num_clusters, num_examples, _ = problem.gradients_at_optimum.shape
    grid = jnp.meshgrid(jnp.arange(num_clusters), jnp.arange(num_examples), indexing="ij")
    grads = jax.vmap(jax.vmap(lambda n, i: problem.gradient(theta, n, i)))(*grid)
    return np.asarray(grads, np.float64)


def make(kind, seed=0, **kwargs):
    options = {
        "num_clusters": 3,
        "num_examples": 5,
        "dim": 4,
        "in_cluster_variance": 1.5,
        "between_cluster_variance": 7.0,
        "strong_convexity": 0.5,
        "smoothness": 2.0,
        "probs": (0.5, 0.3, 0.2),
        **kwargs,
    }
    return theory.make_problem(kind, jax.random.key(seed), **options)


@pytest.mark.parametrize("kind", ["quadratic", "logistic"])
@given(seed=st.integers(0, 2**30), in_var=st.floats(0, 50), between=st.floats(0, 500))
@settings(max_examples=8)
def test_problem_has_the_asked_variances_and_its_optimum_where_it_says(kind, seed, in_var, between):
    with jax.enable_x64(True):
        problem = make(kind, seed, in_cluster_variance=in_var, between_cluster_variance=between)
        found = theory.constants(problem)
        assert float(found.in_cluster_variance) == pytest.approx(in_var, rel=1e-9, abs=1e-12)
        assert float(found.between_cluster_variance) == pytest.approx(between, rel=1e-9, abs=1e-12)
        grads = all_gradients(problem, problem.optimum)
        mean = np.einsum("n,nid->d", np.asarray(problem.probs), grads) / grads.shape[1]
        np.testing.assert_allclose(mean, 0, atol=1e-9)
        np.testing.assert_allclose(grads, problem.gradients_at_optimum, atol=1e-12)


@pytest.mark.parametrize("kind", ["quadratic", "logistic"])
@pytest.mark.parametrize("seed", range(2))
def test_problem_keeps_its_declared_convexity_and_smoothness(kind, seed):
    with jax.enable_x64(True):
        problem = make(kind, seed)
        nu, delta = float(problem.strong_convexity), float(problem.smoothness)
        rng = np.random.default_rng(seed)
        for _ in range(10):
            theta = problem.optimum + rng.normal(size=problem.optimum.shape)
            other = problem.optimum + rng.normal(size=problem.optimum.shape)
            step = np.asarray(theta - other)
            change = all_gradients(problem, theta) - all_gradients(problem, other)
            norms = np.linalg.norm(change, axis=-1)
            assert np.all(norms <= delta * np.linalg.norm(step) * (1 + 1e-9))
            assert np.all(change @ step >= nu * step @ step * (1 - 1e-9))


@pytest.mark.parametrize("kind", ["quadratic", "logistic"])
def test_logistic_and_quadratic_gradients_are_gradients_of_a_convex_loss(kind):
    # The Jacobian of every example gradient is symmetric: there is a loss behind it.
    with jax.enable_x64(True):
        problem = make(kind)
        jacobian = np.asarray(jax.jacobian(lambda t: problem.gradient(t, 1, 2))(problem.optimum + 0.3))
        np.testing.assert_allclose(jacobian, jacobian.T, atol=1e-12)


def exact_noise(problem, theta, buffers, num_groups, group_size):
    """E‖u‖² of one Discover step by the law of total variance, groups independent (SGD: buffers 0)."""
    probs = np.asarray(problem.probs, np.float64)
    grads = all_gradients(problem, theta)
    means = grads.mean(axis=1)
    spread = np.sum((grads - means[:, None]) ** 2, axis=-1).mean(axis=1)
    left = means - buffers
    between = probs @ np.sum((left - probs @ left) ** 2, axis=-1)
    return probs @ spread / (num_groups * group_size) + between / num_groups


def lemma_1(found, distance):
    """E‖s(θ)‖² ≤ 2δ²‖θ − θ*‖² + 2E‖g(x, θ*)‖²: the noise of one example's gradient."""
    return 2 * found.smoothness**2 * distance + found.sigma_in_printed


def lemma_3(found, distance, error, batch_size, num_groups=None):
    """E‖u‖² ≤ 2δ²(1/|B| + 1/K)‖θ − θ*‖² + σ_in²/|B| + 2G/K: the noise of Discover's step; K = |B| as printed."""
    groups = num_groups or batch_size
    spread = 2 * found.smoothness**2 * (1 / batch_size + 1 / groups) * distance
    return spread + found.sigma_in / batch_size + 2 * error / groups


def lemma_4(found, distance, error, mu, alpha, batch_size, num_groups):
    """One step of the appendix's recursion: bounds on the distance and on the buffers' error after it."""
    nu, square, each = found.strong_convexity, found.smoothness**2, batch_size / num_groups
    noise = lemma_3(found, distance, error, batch_size, num_groups)
    after = (1 - 2 * mu * nu + mu**2 * square) * distance + mu**2 * noise
    fresh = (1 + 2 / each) * square * distance + found.sigma_in / each
    return after, (1 - alpha) * error + alpha * fresh


@pytest.mark.parametrize("kind", ["quadratic", "logistic"])
@pytest.mark.parametrize(("num_groups", "group_size"), [(1, 1), (6, 1), (3, 4), (1, 16)])
def test_lemmas_1_to_3_bound_the_exact_noise(kind, num_groups, group_size):
    with jax.enable_x64(True):
        rng = np.random.default_rng(0)
        for seed in range(8):
            problem = make(kind, seed, between_cluster_variance=float(rng.choice([0.1, 1, 100])))
            found = theory.constants(problem)
            offset = rng.normal(size=4) * rng.choice([0.0, 0.1, 3.0])
            theta = problem.optimum + offset
            distance = float(offset @ offset)
            centres = np.asarray(problem.gradients_at_optimum).mean(axis=1)
            buffers = centres + rng.normal(size=centres.shape) * rng.choice([0.0, 0.1, 3.0])
            error = float(np.asarray(problem.probs) @ np.sum((buffers - centres) ** 2, axis=-1))

            sgd = exact_noise(problem, theta, 0.0, 1, 1)
            assert sgd <= lemma_1(found, distance)
            at_optimum = exact_noise(problem, problem.optimum, 0.0, 1, 1)
            assert at_optimum == pytest.approx(found.in_cluster_variance + found.between_cluster_variance, rel=1e-9)
            assert at_optimum <= found.sigma_in + found.between_cluster_variance  # Lemma 2
            ours = exact_noise(problem, theta, buffers, num_groups, group_size)
            size = num_groups * group_size
            assert ours <= lemma_3(found, distance, error, size, num_groups)


def test_lemma_3_with_the_printed_batch_size_fails_for_cluster_pure_groups():
    # The slip: 1/|B| in front of the between-cluster term, which batches of one cluster per core do not earn.
    with jax.enable_x64(True):
        problem = make("quadratic", in_cluster_variance=0.01, between_cluster_variance=100.0)
        found = theory.constants(problem)
        noise = exact_noise(problem, problem.optimum, 0.0, num_groups=2, group_size=32)
        assert noise > lemma_3(found, 0.0, found.between_cluster_variance, batch_size=64)
        assert noise <= lemma_3(found, 0.0, found.between_cluster_variance, batch_size=64, num_groups=2)


def test_proof_slip_contraction_with_delta_is_false_and_with_nu_true():
    nu, delta, mu = 0.5, 2.0, 0.1
    exact = max((1 - mu * nu) ** 2, (1 - mu * delta) ** 2)
    assert exact > 1 - 2 * mu * delta + mu**2 * delta**2  # as printed
    assert exact <= 1 - 2 * mu * nu + mu**2 * delta**2  # as used


POSITIVE = st.floats(0.01, 10.0)


@given(
    nu=POSITIVE,
    ratio=st.floats(1.0, 20.0),
    inner=POSITIVE,
    between=st.floats(0, 1000),
    p_min=st.floats(0.01, 0.5),
    share=st.floats(0.05, 1.0),
    part=st.floats(0.05, 1.0),
    groups=st.integers(1, 16),
    size=st.integers(1, 16),
)
@settings(max_examples=100)
def test_iterating_the_recursion_never_leaves_theorem_1(nu, ratio, inner, between, p_min, share, part, groups, size):
    found = theory.Constants(nu, nu * ratio, inner, between, p_min)
    alpha = share * p_min
    batch = groups * size
    printed = theory.step_size_limit(found, alpha, batch, groups)
    limit = theory.direct_step_size_limit(found, alpha, batch, groups)
    assert printed <= limit * (1 + 1e-12)
    mu = part * limit
    bound = theory.theorem_1(found, mu, alpha, batch, groups).curve(60, 3.0)
    distance, error = np.float64(3.0), np.float64(between)
    for step in range(60):
        assert distance <= bound[step] * (1 + 1e-9)
        distance, error = lemma_4(found, distance, error, mu, alpha, batch, groups)


def test_printed_batch_sizes_are_the_default():
    found = theory.Constants(1.0, 2.0, 1.0, 100.0, 0.25)
    assert theory.step_size_limit(found, 0.2, 8) == pytest.approx(min(8 / (3 * 4 * 13), 0.2 / 6))
    bound = theory.theorem_1(found, 0.03, 0.2, 8)
    assert bound.contraction == pytest.approx(0.97)
    assert bound.gamma == pytest.approx(3 * 0.03**2 / (0.2 * 8))
    assert bound.steady_state == pytest.approx(4 * 0.03 / 8 * 2.0)
    assert lemma_3(found, 1.0, 2.0, 8) == pytest.approx((16 + 2 + 4) / 8)
    decays = [0.97**t * (2.0 + 3 * 0.03**2 / (0.2 * 8) * 100) + bound.steady_state for t in range(6)]
    np.testing.assert_allclose(bound.curve(5, 2.0), decays)


def test_printed_in_cluster_constant_contains_the_between_cluster_variance():
    found = theory.Constants(1.0, 2.0, in_cluster_variance=1.0, between_cluster_variance=100.0, min_prob=0.25)
    assert found.sigma_in == 2.0
    assert found.sigma_in_printed == 202.0


def test_theorem_refuses_what_lies_outside_it():
    found = theory.Constants(1.0, 2.0, 1.0, 1.0, 0.25)
    with pytest.raises(ValueError, match="alpha must lie in"):
        theory.theorem_1(found, 0.01, 0.3, 8)
    with pytest.raises(ValueError, match="step_size must be at most"):
        theory.theorem_1(found, 0.5, 0.2, 8)
    with pytest.raises(ValueError, match="num_groups"):
        theory.theorem_1(found, 0.01, 0.2, 8, 9)
    assert theory.theorem_1(found, 0.5, 0.2, 8, check=False).contraction == 0.5
