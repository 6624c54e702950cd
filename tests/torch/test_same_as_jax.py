"""The same trajectories as the JAX optimizers, in float64 to 1e-12."""

import jax
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'discover-optim[torch]'")

import discover
from discover import sample
from tests.torch.problem import OURS, assert_equal_paths, draw, parameters, torch_path

THEIRS = {"discover": discover.discover, "adam": discover.discover_adam, "muon": discover.discover_muon}
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


def to_jax(array):
    """A weight [out, in, …] of torch as the kernel […, in, out] of JAX."""
    return np.moveaxis(array, (0, 1), (-1, -2)) if array.ndim > 1 else array


def to_torch_layout(array):
    """And back."""
    array = np.asarray(array)
    return np.moveaxis(array, (-1, -2), (0, 1)) if array.ndim > 1 else array


def jax_path(tx, params, batches):
    """Parameters after each step."""
    with jax.enable_x64(True):
        tree = {name: to_jax(value) for name, value in params.items()}
        state, path = tx.init(tree), []
        most = max(len(ids) for ids, _, _ in batches)
        update = jax.jit(
            lambda grads, state, tree, ids, sizes: tx.update(grads, state, tree, cluster_ids=ids, group_sizes=sizes)
        )
        for ids, sizes, grads in batches:
            missing = most - len(ids)  # filled up with groups that do not count, so that one program serves all
            grads = {name: np.stack([to_jax(one[name]) for one in [*grads, *grads[:1] * missing]]) for name in params}
            updates, state = update(grads, state, tree, np.pad(ids, (0, missing)), np.pad(sizes, (0, missing)))
            tree = {name: tree[name] + updates[name] for name in tree}
            path.append({name: to_torch_layout(value) for name, value in tree.items()})
    return path


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


@pytest.mark.parametrize("options", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize("kind", OURS)
def test_the_same_trajectory_with_clusters_of_unequal_probability(kind, options):
    theirs, ours = THEIRS[kind], OURS[kind]
    params, batches = draw(0, 12, len(COUNTS))
    expected = jax_path(theirs(0.05, discover.Clusters.from_counts(COUNTS), **options), params, batches)
    tensors = parameters(params)
    path = torch_path(ours(tensors.items(), 0.05, COUNTS, **options), tensors, batches)
    assert_equal_paths(path, expected)


LARGE = {"matrix": (50, 96), "kernel": (16, 10, 5, 5), "vector": (4000,), "small": (30, 7)}


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_the_same_damping_of_large_parameters_from_a_part_of_their_numbers(layout, monkeypatch):
    params, batches = draw(3, 6, len(COUNTS), LARGE, groups=(1, 2))

    def path(damping):
        tensors = parameters(params)
        tensors["kernel"].data = tensors["kernel"].data.to(memory_format=layout)
        return torch_path(OURS["discover"](tensors.items(), 0.05, COUNTS, damping=damping), tensors, batches)

    whole = path(0.1)
    monkeypatch.setattr(sample, "LEAST", 1200)
    theirs = discover.discover(0.05, discover.Clusters.from_counts(COUNTS), damping=0.1)
    assert_equal_paths(path(0.1), jax_path(theirs, params, batches))
    for name, p in path(0.1)[-1].items():
        assert (abs(p - whole[-1][name]).max() > 1e-6) == (name != "small")


def test_adam_with_a_momentum_of_its_own():
    theirs, ours = THEIRS["adam"], OURS["adam"]
    params, batches = draw(1, 12, 3)
    options = {"beta1": 0.9, "beta2": 0.99, "eps": 1e-6}
    expected = jax_path(theirs(0.01, discover.Clusters.uniform(3), **options), params, batches)
    tensors = parameters(params)
    assert_equal_paths(torch_path(ours(tensors.items(), 0.01, 3, **options), tensors, batches), expected)


def test_muon_with_adams_step_for_all_is_a_fifth_of_adam():
    params, batches = draw(2, 8, 3)
    expected = jax_path(discover.discover_adam(0.01, discover.Clusters.uniform(3)), params, batches)
    tensors = parameters(params)
    path = torch_path(OURS["muon"](tensors.values(), 0.05, 3, orthogonal=False), tensors, batches)
    assert_equal_paths(path, expected)
