"""The between-cluster variance along a run, against plain NumPy and exact expectations."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import discover
from discover.lab.diagnostics.tracking import between_cluster, find_buffers

PROBS = np.array([0.5, 0.3, 0.2])
CLUSTERS = discover.Clusters(PROBS)
PARAMS = {"w": jnp.arange(6.0).reshape(2, 3), "b": jnp.ones(2)}


def halves(rng, noise=0.0):
    centre = {"w": rng.normal(size=(3, 2, 3)), "b": rng.normal(size=(3, 2))}

    def draw(*many):
        return jax.tree.map(
            lambda c: jnp.asarray(c + noise * rng.normal(size=(*many, 2, *c.shape)), jnp.float32), centre
        )

    flat = np.concatenate([centre["b"].reshape(3, -1), centre["w"].reshape(3, -1)], axis=1)
    return draw, flat


def trained(tx, rng, steps=5):
    state = tx.init(PARAMS)
    for _ in range(steps):
        grads = jax.tree.map(lambda p: jnp.asarray(rng.normal(size=(2, *p.shape)), jnp.float32), PARAMS)
        _, state = tx.update(grads, state, PARAMS, cluster_ids=jnp.asarray(rng.integers(0, 3, 2)))
    return state


OPTIMIZERS = {
    "sgd": discover.sgd(0.1),
    "momentum": discover.momentum(0.1),
    "adam": discover.adam(0.1),
    "discover": discover.discover(0.1, CLUSTERS, weight_decay=0.1),
    "discover_igt": discover.discover_igt(0.1, CLUSTERS),
    "chained": optax.chain(discover.scale_by_discover(CLUSTERS), optax.scale(-0.1)),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_estimates_are_the_formulas_of_the_paper(name):
    rng = np.random.default_rng(0)
    state = trained(OPTIMIZERS[name], rng)
    draw, g = halves(rng)
    found = jax.jit(lambda s, h: between_cluster(s, h, jnp.asarray(PROBS), num_groups=2, batch_size=64))(state, draw())
    own, shared = find_buffers(state)
    sgd = PROBS @ np.sum(g**2, axis=1)
    mean = PROBS @ g
    plain = PROBS @ np.sum((g - mean) ** 2, axis=1) / 2
    np.testing.assert_allclose(found.paper_sgd, sgd, rtol=1e-5)
    np.testing.assert_allclose(found.drawn_plain, plain, rtol=1e-5)
    np.testing.assert_allclose(found.signal, mean @ mean, rtol=1e-5)
    if name in ("sgd", "adam"):
        assert shared is None
        np.testing.assert_allclose(found.paper, sgd, rtol=1e-5)
        np.testing.assert_allclose(found.drawn, plain, rtol=1e-5)
        return
    centre = np.concatenate([np.asarray(shared["b"]).ravel(), np.asarray(shared["w"]).ravel()])
    if own is None:
        np.testing.assert_allclose(found.paper, 2 / 64 * PROBS @ np.sum((centre - g) ** 2, axis=1), rtol=1e-5)
        np.testing.assert_allclose(found.drawn, plain, rtol=1e-5)
        return
    buffers = np.concatenate([np.asarray(own["b"]).reshape(3, -1), np.asarray(own["w"]).reshape(3, -1)], axis=1)
    np.testing.assert_allclose(found.paper, 2 / 64 * PROBS @ np.sum((buffers - g) ** 2, axis=1), rtol=1e-5)
    left = (g - buffers) - (mean - centre)
    np.testing.assert_allclose(found.drawn, PROBS @ np.sum(left**2, axis=1) / 2, rtol=1e-4)


@pytest.mark.slow
def test_estimate_for_batches_as_drawn_has_no_bias_from_the_noise_of_the_measurement():
    rng = np.random.default_rng(1)
    state = trained(OPTIMIZERS["discover"], rng)
    draw, _ = halves(rng, noise=3.0)
    measure = jax.jit(jax.vmap(lambda h: between_cluster(state, h, jnp.asarray(PROBS), num_groups=2, batch_size=64)))
    many = draw(3000)
    found = measure(many)
    clean = jax.tree.map(lambda leaf: jnp.mean(leaf, axis=(0, 1)), many)
    exact = between_cluster(
        state,
        jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), clean),
        jnp.asarray(PROBS),
        num_groups=2,
        batch_size=64,
    )
    for part in ("drawn", "drawn_plain", "signal"):
        values = np.asarray(getattr(found, part))
        error = values.std() / np.sqrt(len(values))
        assert abs(values.mean() - getattr(exact, part)) < 4.5 * error, part
    assert np.asarray(found.paper).mean() > 2 * exact.paper  # the paper's estimate counts it


@pytest.mark.parametrize("name", ["momentum", "discover"])
def test_factor_of_independent_draws_gives_the_formula(name):
    rng = np.random.default_rng(4)
    state = trained(OPTIMIZERS[name], rng)
    grads = halves(rng, noise=0.5)[0]()
    values, vectors = np.linalg.eigh((np.diag(PROBS) - np.outer(PROBS, PROBS)) / 2)
    factor = jnp.asarray(np.sqrt(np.maximum(values, 0))[:, None] * vectors.T, jnp.float32)
    sizes = {"num_groups": 2, "batch_size": 64}
    formula = between_cluster(state, grads, jnp.asarray(PROBS), **sizes)
    composed = between_cluster(state, grads, jnp.asarray(PROBS), factor=factor, **sizes)
    for part in ("paper", "paper_sgd", "drawn", "drawn_plain", "signal"):
        np.testing.assert_allclose(getattr(composed, part), getattr(formula, part), rtol=1e-4, atol=1e-5)


def test_buffers_that_know_the_clusters_leave_nothing_between():
    rng = np.random.default_rng(2)
    draw, _ = halves(rng)
    grads = draw()
    tx = discover.scale_by_discover(CLUSTERS)
    state = tx.init(PARAMS)
    mean = jax.tree.map(lambda g: jnp.einsum("n,n...->...", jnp.asarray(PROBS, jnp.float32), g[0]), grads)
    state = state._replace(buffers=jax.tree.map(lambda g: g[0], grads), mean=mean)
    found = between_cluster(state, grads, jnp.asarray(PROBS), num_groups=2, batch_size=64)
    assert found.drawn == pytest.approx(0, abs=1e-5)
    assert found.paper == pytest.approx(0, abs=1e-5)
    assert found.drawn_plain > 0.1


def test_wrong_shapes_are_refused():
    rng = np.random.default_rng(3)
    state = trained(OPTIMIZERS["discover"], rng)
    draw, _ = halves(rng)
    with pytest.raises(ValueError, match=r"halves must have leaves \[2, 2"):
        between_cluster(state, draw(), jnp.ones(2) / 2, num_groups=2, batch_size=64)
    two = jax.tree.map(lambda g: g[:, :2], draw())
    with pytest.raises(ValueError, match="the optimizer has 3 clusters"):
        between_cluster(state, two, jnp.ones(2) / 2, num_groups=2, batch_size=64)
