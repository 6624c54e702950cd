"""The same trajectories as the JAX optimizers, in float64 to 1e-12."""

import jax
import numpy as np
import pytest

pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'discover-optim[torch]'")

from hypothesis import given, settings
from hypothesis import strategies as st

import discover
from tests.torch.problem import PAIRS, assert_equal_paths, draw, jax_path, parameters, torch_path

COUNTS = (500, 300, 150, 50)
SETTINGS = {
    "plain": {},
    "another beta and nu": {"beta": 0.8, "nu": 0.3},
    "decay": {"weight_decay": 0.1},
    "l2": {"l2": 0.05},
    "damping": {"damping": 0.1},
    "all at once": {"damping": 0.3, "weight_decay": 0.1, "l2": 0.05, "beta": 0.9},
    "per visit": {"rate": "per_visit"},
}


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


@pytest.mark.parametrize("options", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize("kind", PAIRS)
def test_the_same_trajectory_with_clusters_of_unequal_probability(kind, options):
    theirs, ours = PAIRS[kind]
    params, batches = draw(0, 12, len(COUNTS))
    expected = jax_path(theirs(0.05, discover.Clusters.from_counts(COUNTS), **options), params, batches)
    tensors = parameters(params)
    path = torch_path(ours(tensors.items(), 0.05, COUNTS, **options), tensors, batches)
    assert_equal_paths(path, expected)


def test_adam_with_a_momentum_of_its_own():
    theirs, ours = PAIRS["adam"]
    params, batches = draw(1, 12, 3)
    options = {"beta1": 0.9, "beta2": 0.99, "eps": 1e-6}
    expected = jax_path(theirs(0.01, discover.Clusters.uniform(3), **options), params, batches)
    tensors = parameters(params)
    assert_equal_paths(torch_path(ours(tensors.items(), 0.01, 3, **options), tensors, batches), expected)


def test_muon_with_adams_step_for_all_is_a_fifth_of_adam():
    params, batches = draw(2, 8, 3)
    expected = jax_path(discover.discover_adam(0.01, discover.Clusters.uniform(3)), params, batches)
    tensors = parameters(params)
    path = torch_path(PAIRS["muon"][1](tensors.values(), 0.05, 3, orthogonal=False), tensors, batches)
    assert_equal_paths(path, expected)


@settings(max_examples=25, deadline=None)
@given(
    kind=st.sampled_from(list(PAIRS)),
    shapes=st.lists(st.lists(st.integers(1, 4), min_size=0, max_size=4).map(tuple), min_size=1, max_size=4),
    counts=st.lists(st.integers(1, 50), min_size=1, max_size=5),
    beta=st.floats(0, 1),
    nu=st.floats(0, 1),
    damping=st.sampled_from([None, 0.0, 0.1, float("inf")]),
    seed=st.integers(0, 2**16),
)
def test_any_shapes_clusters_and_visits(kind, shapes, counts, beta, nu, damping, seed):
    theirs, ours = PAIRS[kind]
    params, batches = draw(seed, 4, len(counts), {str(number): shape for number, shape in enumerate(shapes)})
    options = {"beta": beta, "nu": nu, "damping": damping, "weight_decay": 0.1}
    with jax.disable_jit():
        expected = jax_path(theirs(0.01, discover.Clusters.from_counts(counts), **options), params, batches)
    tensors = parameters(params)
    path = torch_path(ours(tensors.items(), 0.01, counts, **options), tensors, batches)
    # With κ = 0 the clusters' whole span is taken out: what is left is as small as the rounding, and Adam enlarges it.
    assert_equal_paths(path, expected, 1e-12 if damping else 1e-6)


@pytest.mark.parametrize("kind", PAIRS)
def test_the_mean_is_that_of_the_buffers(kind):
    params, batches = draw(3, 20, 4)
    tensors = parameters(params)
    opt = PAIRS[kind][1](tensors.items(), 0.01, COUNTS)
    torch_path(opt, tensors, batches)
    for p in tensors.values():
        state = opt.state[p]
        mean = sum(prob * state[f"buffer:{n}"] for n, prob in enumerate(opt.probs))
        np.testing.assert_allclose(state["mean"].numpy(), mean.numpy(), atol=1e-14)
