"""Random gradients of a small model, given to the JAX optimizer and to the PyTorch one in float64."""

import jax
import numpy as np
import torch

import discover
from discover import torch as ours

PAIRS = {
    "discover": (discover.discover, ours.Discover),
    "adam": (discover.discover_adam, ours.DiscoverAdamW),
    "muon": (discover.discover_muon, ours.DiscoverMuon),
}
SHAPES = {"wide": (3, 7), "tall": (6, 2), "kernel": (4, 3, 2, 2), "same": (3, 7), "scale": (5,), "number": ()}


def draw(seed, steps, num_clusters, shapes=None, most_groups=3):
    """(cluster ids, sizes, gradients of each group) for each step, and the parameters; all as torch has them."""
    rng = np.random.default_rng(seed)
    shapes = shapes or SHAPES
    params = {name: rng.normal(size=shape) for name, shape in shapes.items()}
    batches = []
    for _ in range(steps):
        ids = rng.integers(0, num_clusters, rng.integers(1, most_groups + 1))
        grads = [{n: rng.normal(size=shape) + 3 * np.cos(k + 1) for n, shape in shapes.items()} for k in ids]
        batches.append((ids, rng.integers(1, 9, len(ids)), grads))
    return params, batches


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
        update = jax.jit(lambda grads, state, tree, ids, sizes: tx.update(grads, state, tree, cluster_ids=ids, group_sizes=sizes))
        for ids, sizes, grads in batches:
            missing = most - len(ids)  # filled up with groups that do not count, so that one program serves all
            grads = {name: np.stack([to_jax(one[name]) for one in [*grads, *grads[:1] * missing]]) for name in params}
            updates, state = update(grads, state, tree, np.pad(ids, (0, missing)), np.pad(sizes, (0, missing)))
            tree = {name: tree[name] + updates[name] for name in tree}
            path.append({name: to_torch_layout(value) for name, value in tree.items()})
    return path


def parameters(params, dtype=torch.float64):
    return {name: torch.nn.Parameter(torch.tensor(value, dtype=dtype)) for name, value in params.items()}


def give(tensors, grads):
    """As backward would: gradients of their own."""
    for name, p in tensors.items():
        p.grad = torch.tensor(grads[name], dtype=p.dtype)


def take_step(opt, tensors, batch):
    """One step of an optimizer on a batch of `draw`."""
    ids, sizes, grads = batch
    if len(ids) == 1:
        opt.cluster = int(ids[0])
        give(tensors, grads[0])
    else:
        for n, size, one in zip(ids, sizes, grads):
            give(tensors, one)
            opt.collect(int(n), float(size))
    opt.step()
    opt.zero_grad()


def torch_path(opt, tensors, batches):
    path = []
    for batch in batches:
        take_step(opt, tensors, batch)
        path.append({name: p.detach().numpy().copy() for name, p in tensors.items()})
    return path


def assert_equal_paths(ours, theirs, tolerance=1e-12):
    assert len(ours) == len(theirs)
    for step, (mine, other) in enumerate(zip(ours, theirs)):
        for name in other:
            np.testing.assert_allclose(mine[name], other[name], rtol=0, atol=tolerance, err_msg=f"{name}, step {step}")
