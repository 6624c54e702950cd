"""Random gradients of a small model in float64, and the PyTorch optimizers that are given them."""

import numpy as np
import torch

from discover.torch import Discover, DiscoverAdamW, DiscoverMuon

OURS = {"discover": Discover, "adam": DiscoverAdamW, "muon": DiscoverMuon}
SHAPES = {"wide": (3, 7), "tall": (6, 2), "kernel": (4, 3, 2, 2), "same": (3, 7), "scale": (5,), "number": ()}


def draw(seed, steps, num_clusters, shapes=None, groups=(1, 3)):
    """(cluster ids, sizes, gradients of each group) for each step, and the parameters; all as torch has them."""
    rng = np.random.default_rng(seed)
    shapes = shapes or SHAPES
    params = {name: rng.normal(size=shape) for name, shape in shapes.items()}
    batches = []
    for _ in range(steps):
        ids = rng.integers(0, num_clusters, rng.integers(groups[0], groups[1] + 1))
        grads = [{n: rng.normal(size=shape) + 3 * np.cos(k + 1) for n, shape in shapes.items()} for k in ids]
        batches.append((ids, rng.integers(1, 9, len(ids)), grads))
    return params, batches


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
