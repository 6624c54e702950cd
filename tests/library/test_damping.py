"""Damping, (D1): against NumPy, what changes nothing, what does no harm."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import discover
from discover.damping import damp
from discover.gpu import damping_kernel
from discover.gpu.rows import parts_of
from discover.quantized import Draw, quantize, values_of, zeros
from tests.library import problem
from tests.library.gpu import on_gpu
from tests.reference import muon_reference

PROBS = (0.5, 0.3, 0.2)
CLUSTERS = discover.Clusters(PROBS)
RNG = np.random.default_rng(0)
DIRECTION = {"w": RNG.normal(size=(4, 3)), "b": RNG.normal(size=3), "s": RNG.normal(size=())}
BUFFERS = {name: RNG.normal(size=(3, *d.shape)) for name, d in DIRECTION.items()}
MEAN = {name: np.tensordot(PROBS, g, 1) for name, g in BUFFERS.items()}


OPTIMIZERS = {"discover": discover.discover, "adam": discover.discover_adam, "muon": discover.discover_muon}
AFTER = {"discover": optax.identity(), "adam": optax.scale_by_adam(0.0), "muon": discover.scale_by_orthogonal()}


def one_step(name, params, grads, clusters, **options):
    tx, ids = OPTIMIZERS[name](0.05, clusters, **options), jnp.arange(3) % clusters.num_clusters
    return jax.jit(lambda p, g: tx.update(g, tx.init(p), p, cluster_ids=ids)[0])(params, grads)


def damped(strength, buffers=BUFFERS, direction=DIRECTION, probs=PROBS, dtype=None):
    buffers, direction = (jax.tree.map(lambda x: jnp.asarray(x, dtype), tree) for tree in (buffers, direction))
    probs = jnp.asarray(probs, dtype)
    mean = jax.tree.map(lambda g: jnp.tensordot(probs, g, 1), buffers)
    return jax.jit(damp)(direction, mean, buffers, probs, strength)


def exact(actual, expected):
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-12)


def same(actual, expected):
    jax.tree.map(np.testing.assert_array_equal, actual, expected)


@pytest.mark.parametrize("strength", [0.01, 1.0])
def test_one_step_against_plain_numpy(strength):
    """(D1) through a singular value decomposition: every direction has its own factor."""
    result = damped(strength)
    for name, d in DIRECTION.items():
        rows = (np.sqrt(PROBS) * (BUFFERS[name] - MEAN[name]).reshape(3, -1).T).T
        ridge = strength * np.sum(rows**2) / 3
        _, sizes, along = np.linalg.svd(rows, full_matrices=False)
        factors = sizes**2 / (ridge + sizes**2)
        exact(result[name].ravel(), d.ravel() - along.T @ (factors * (along @ d.ravel())))


def test_a_trajectory_against_plain_numpy():
    batches = problem.draw_batches(30, 2, PROBS, sizes=[1, 2, 4])
    tx = discover.discover_muon(0.05, CLUSTERS, beta=0.9, nu=0.8, damping=0.1)
    path, _ = problem.train(tx, problem.start(), batches)
    cut = problem.FEATURES * problem.CLASSES

    def per_parameter(direction, buffers):
        parts = ((direction[:cut], buffers[:, :cut]), (direction[cut:], buffers[:, cut:]))
        return np.concatenate([muon_reference.damp(d, g, PROBS, 0.1) for d, g in parts])

    theta, shapes = problem.flatten(problem.start()), [(problem.FEATURES, problem.CLASSES)]
    expected = muon_reference.discover_muon(
        theta, problem.flat_gradient, batches, PROBS, shapes, 0.05, 0.9, 0.8, per_parameter
    )
    np.testing.assert_allclose(path, expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_an_infinite_strength_changes_nothing(dtype):
    same(damped(np.inf, dtype=dtype), jax.tree.map(lambda d: jnp.asarray(d, dtype), DIRECTION))


def test_a_large_strength_changes_nothing_that_float32_could_tell():
    direction = jax.tree.map(lambda d: jnp.asarray(d, jnp.float32), DIRECTION)
    same(damped(1e9, dtype=jnp.float32), direction)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_one_cluster_changes_nothing(name):
    params, grads = {"w": DIRECTION["w"]}, {"w": BUFFERS["w"]}
    same(*(one_step(name, params, grads, discover.Clusters.uniform(1), damping=c) for c in (None, 0.1)))


def test_empty_buffers_change_nothing():
    same(damped(0.1, jax.tree.map(np.zeros_like, BUFFERS)), DIRECTION)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_equal_buffers_change_nothing_but_rounding(dtype):
    """ḡ may differ from them by rounding, along the very direction of the step."""
    equal = {name: np.broadcast_to(d, (3, *d.shape)) for name, d in DIRECTION.items()}
    result = damped(0.1, equal, dtype=dtype)
    for name, d in DIRECTION.items():
        np.testing.assert_allclose(result[name], d, rtol=0.02)


@pytest.mark.parametrize("strength", [0.0, 1e-30])
def test_a_strength_of_zero_takes_the_whole_span_out(strength):
    result = damped(strength)
    rows = np.sqrt(PROBS)[:, None] * (BUFFERS["w"] - MEAN["w"]).reshape(3, -1)
    assert np.linalg.norm(rows @ np.asarray(result["w"]).ravel()) < 1e-10
    assert np.linalg.norm(result["w"]) > 0.1


def test_many_clusters_stay_finite_in_float32():
    buffers = {"w": RNG.normal(size=(300, 4, 3))}
    result = damped(1e-4, buffers, {"w": DIRECTION["w"]}, np.full(300, 1 / 300), jnp.float32)["w"]
    assert np.all(np.isfinite(result))
    assert np.linalg.norm(result) < np.linalg.norm(DIRECTION["w"])


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_damping_comes_before_everything_else(name):
    rule, ids = discover.scale_by_discover(CLUSTERS), jnp.arange(3)

    @jax.jit
    def by_hand(params, grads):
        direction, state = rule.update(grads, rule.init(params), params, cluster_ids=ids)
        direction = damp(direction, state.mean, state.buffers, jnp.asarray(PROBS), 0.3)
        return jax.tree.map(lambda u: -0.05 * u, AFTER[name].update(direction, AFTER[name].init(params))[0])

    jax.tree.map(exact, one_step(name, DIRECTION, BUFFERS, CLUSTERS, damping=0.3), by_hand(DIRECTION, BUFFERS))


def test_some_clusters_take_part_in_turn():
    """All in turn by threes are all; one at a time, the first step knows the first cluster only."""
    grads, ids, params = {"w": BUFFERS["w"]}, jnp.arange(3), {"w": DIRECTION["w"]}

    def directions(**options):
        tx = discover.discover(1.0, discover.Clusters.uniform(3), nu=0.5, **options)
        step = jax.jit(lambda state: tx.update(grads, state, params, cluster_ids=ids))
        first, state = step(tx.init(params))
        return np.asarray(first["w"]), np.asarray(step(state)[0]["w"])

    for all_of_them in (3, 4):
        exact(directions(damping=0.1, damping_clusters=all_of_them), directions(damping=0.1))
    plain, one = directions(), directions(damping=0.1, damping_clusters=1)
    for cluster in (0, 1):  # the steps differ from the undamped along one buffer's distance from the mean
        change = (one[cluster] - plain[cluster]).ravel()
        away = (BUFFERS["w"][cluster] - BUFFERS["w"].mean(0)).ravel()
        assert abs(abs(change @ away) / np.linalg.norm(change) / np.linalg.norm(away) - 1) < 1e-9


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_strength_below_zero_is_refused(name):
    with pytest.raises(ValueError, match=r"^damping must be None or at least 0, got -1$"):
        OPTIMIZERS[name](0.1, CLUSTERS, damping=-1)


@pytest.mark.float32
@pytest.mark.parametrize(
    ("taking_part", "buffer_dtype"),
    [(None, "float32"), (3, "bfloat16"), (3, "int8"), pytest.param(None, "int8", marks=pytest.mark.slow)],
)
def test_the_kernels_for_a_gpu_and_the_plain_lines_are_the_same(gpu, monkeypatch, taking_part, buffer_dtype):
    monkeypatch.setattr(damping_kernel, "BLOCK", 4)
    monkeypatch.setattr(damping_kernel, "LONG_BLOCK", 8)
    monkeypatch.setattr(damping_kernel, "SHARE", 16)
    monkeypatch.setattr(damping_kernel, "MOST_TOGETHER", 2)
    shapes = {"w": (15, 9), "b": (3,), "s": (), "v": (17,)}
    rng = np.random.default_rng(1)
    params = {name: jnp.asarray(rng.normal(size=shape), jnp.float32) for name, shape in shapes.items()}
    buffers = {name: jnp.asarray(rng.normal(size=(5, *p.shape)), jnp.float32) for name, p in params.items()}
    if buffer_dtype == "int8":
        buffers = {name: quantize(g, Draw(0, jnp.arange(5))) for name, g in buffers.items()}
    else:
        buffers = {name: g.astype(buffer_dtype) for name, g in buffers.items()}
    probs = jnp.asarray([0.1, 0.3, 0.2, 0.15, 0.25], jnp.float32)
    mean = jax.tree.map(
        lambda g: jnp.tensordot(probs, g, 1), {name: values_of(buffers[name], params[name]) for name in params}
    )
    rows = None if taking_part is None else (4 + jnp.arange(taking_part)) % 5

    def step(direction, mean, buffers):
        return damp(direction, mean, buffers, probs if rows is None else probs[rows], 0.1, rows)

    plain = on_gpu.compiled(step, params, mean, buffers)
    gpu()
    found = on_gpu.compiled(step, params, mean, buffers)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), found, plain)


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_the_kernels_for_a_gpu_lower_for_cuda(dtype):
    buffers = zeros(4, 5000) if dtype == "int8" else jnp.ones((4, 5000), jnp.float32)
    flat = damping_kernel.Flat(jnp.ones(5000, jnp.float32), jnp.ones(5000, jnp.float32), parts_of(buffers, 5000))
    rows = jnp.arange(4, dtype=jnp.int32)

    def step(one):
        (gram, along, _), _ = damping_kernel.products(rows, jnp.full(4, 0.25), [one, one])
        weights = damping_kernel.solve(gram[None], along[None])
        return damping_kernel.subtract(rows, jnp.concatenate([weights, weights]), None, [one, one])

    text = on_gpu.lowered_for_cuda(jax.jit(step), flat)
    assert all(f"discover_damping_{name}" in text for name in ("products", "solve", "subtract"))
