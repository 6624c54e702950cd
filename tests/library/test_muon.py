"""`muon` and `discover_muon`: against NumPy, what they reduce to, which parameters they take, what they refuse."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import NamedSharding

import discover
from discover.sharding import shard_by_parameter, sharded_group_value_and_grad
from tests.library import problem
from tests.library.sharding import sharded
from tests.reference import muon_reference

PROBS = (0.5, 0.3, 0.2)
CLUSTERS = discover.Clusters(PROBS)
SHAPES = [(problem.FEATURES, problem.CLASSES)]
RNG = np.random.default_rng(0)


def normal(*shape):
    return np.asarray(RNG.normal(size=shape))


NETWORK = {
    "stem": normal(3, 3, 2, 4),
    "first": normal(4, 4),
    "second": normal(2, 2, 4),  # as a matrix it is [4, 4] too
    "wide": normal(2, 6),
    "bias": normal(4),
    "scale": normal(),
    "nothing": normal(0, 3),
}


def close(actual, expected, tolerance=1e-10):
    """Five steps of Newton–Schulz multiply a rounding error by up to 3.4⁵ = 485."""
    np.testing.assert_allclose(actual, expected, rtol=0, atol=tolerance)


def orthogonal(direction, **options):
    tx = discover.scale_by_orthogonal(**options)
    return jax.jit(lambda d: tx.update(d, tx.init(d))[0])(direction)


def test_muon_against_plain_numpy():
    batches = problem.draw_batches(40, 3, PROBS, sizes=[1, 2, 4])
    path, _ = problem.train(discover.muon(0.05, 0.9, 0.8), problem.start(), batches)
    theta = problem.flatten(problem.start())
    close(path, muon_reference.muon(theta, problem.flat_gradient, batches, SHAPES, 0.05, 0.9, 0.8))


def test_discover_muon_against_plain_numpy():
    batches = problem.draw_batches(40, 2, PROBS, sizes=[1, 2, 4])
    path, _ = problem.train(discover.discover_muon(0.05, CLUSTERS, beta=0.9, nu=0.8), problem.start(), batches)
    theta = problem.flatten(problem.start())
    close(path, muon_reference.discover_muon(theta, problem.flat_gradient, batches, PROBS, SHAPES, 0.05, 0.9, 0.8))


def test_each_parameter_takes_its_step_whatever_stands_beside_it():
    """Matrices of one shape are worked on together; kernels are matrices of their last axis; the rest is Adam's."""
    steps = orthogonal(NETWORK)
    for name in ("stem", "first", "second", "wide"):
        close(steps[name], muon_reference.matrix_step(np.asarray(NETWORK[name])))
    for name in ("bias", "scale"):
        close(steps[name], 0.2 * np.sign(NETWORK[name]), 1e-7)
    assert steps["nothing"].shape == (0, 3)


@pytest.mark.parametrize("num_groups", [1, 3])
def test_one_cluster_is_muon(num_groups):
    """The same numbers, bit for bit, for one group; several are summed in another order, which is rounding."""
    batches = [[(0, size, group) for _, size, group in batch] for batch in problem.draw_batches(30, num_groups, PROBS)]
    tx = discover.discover_muon(0.05, discover.Clusters.uniform(1), beta=0.9, nu=0.8, weight_decay=0.1, l2=0.01)
    path, _ = problem.train(tx, problem.start(), batches)
    plain, _ = problem.train(discover.muon(0.05, 0.9, 0.8, weight_decay=0.1, l2=0.01), problem.start(), batches)
    close(path, plain, 0 if num_groups == 1 else 1e-10)


def test_it_is_the_chain_that_the_documentation_names():
    batches, schedule = problem.draw_batches(20, 3, PROBS), optax.cosine_decay_schedule(0.05, 20)
    chained = optax.chain(
        discover.scale_by_discover(CLUSTERS, 0.9, 0.8),
        discover.scale_by_orthogonal(),
        optax.add_decayed_weights(0.1),
        optax.scale_by_learning_rate(schedule),
    )
    alias = discover.discover_muon(schedule, CLUSTERS, beta=0.9, nu=0.8, weight_decay=0.1)
    close(problem.train(alias, problem.start(), batches)[0], problem.train(chained, problem.start(), batches)[0])


def test_optax_makes_the_same_step_but_for_its_own_momentum():
    ours = orthogonal(NETWORK["wide"])
    theirs = optax.contrib.muon(1.0, beta=0.0, nesterov=False)
    step, _ = theirs.update(NETWORK["wide"], theirs.init(NETWORK["wide"]), NETWORK["wide"])
    close(ours, -0.2 * np.sqrt(6) * step)


@pytest.mark.float32
def test_bfloat16_changes_the_steps_by_its_rounding_only():
    matrices = {"a": jnp.asarray(RNG.normal(size=(24, 16)), jnp.float32)}
    exact, fast = (orthogonal(matrices, matrix_dtype=dtype)["a"] for dtype in (jnp.float32, jnp.bfloat16))
    assert fast.dtype == jnp.float32
    assert 0 < np.linalg.norm(fast - exact) / np.linalg.norm(exact) < 0.1


LABELLED = {
    "a tree": {"w": "adam", "b": "adam"},
    "the upper part of one": "adam",
    "a function": lambda params: jax.tree.map(lambda p: "adam", params),
}


@pytest.mark.parametrize("labels", LABELLED.values(), ids=LABELLED.keys())
def test_labels_choose_which_parameters_take_adams_step(labels):
    batches = problem.draw_batches(10, 2, PROBS)
    path, _ = problem.train(discover.muon(0.05, 0.0, labels=labels), problem.start(), batches)
    adam, _ = problem.train(discover.adam(0.2 * 0.05, 0.0), problem.start(), batches)
    close(path, adam)


def test_a_label_that_is_none_is_named():
    tx = discover.muon(0.1, labels={"w": "muon", "b": "sgd"})
    with pytest.raises(ValueError, match=r"^labels must be 'muon' or 'adam', got 'sgd' for \['b'\]$"):
        tx.init(problem.start())


def test_a_parameter_that_is_no_matrix_is_refused():
    tx = discover.discover_muon(0.1, CLUSTERS, labels="muon")
    with pytest.raises(ValueError, match=r"^\['b'\] of shape \(3,\) is no matrix, which Muon needs; label it 'adam'$"):
        tx.init(problem.start())


def test_a_direction_of_zero_makes_no_step():
    steps = orthogonal(jax.tree.map(np.zeros_like, NETWORK))
    assert all(not np.any(step) for step in jax.tree.leaves(steps))


def test_devices_put_the_matrices_together():
    """A slice of a matrix is no matrix, and the Gram matrix of damping is a sum over devices."""
    mesh = sharded.make_mesh(4, ("data", "model"), (2, 2))
    params = sharded.make_params(5, 12)
    tx = discover.discover_muon(0.02, sharded.CLUSTERS, l2=0.01, weight_decay=0.01, mask=sharded.MASK, damping=0.1)
    over_devices = shard_by_parameter(tx, mesh, param_specs=sharded.MODEL_SPECS)
    placed = jax.tree.map(lambda p, s: jax.device_put(p, NamedSharding(mesh, s)), params, sharded.MODEL_SPECS)
    batches = sharded.make_batches(steps=2)
    _, history = sharded.train(over_devices, sharded_group_value_and_grad(sharded.loss, mesh), placed, batches)
    _, expected = sharded.train(tx, discover.group_value_and_grad(sharded.loss), params, batches)
    sharded.assert_close(history, expected)
