"""Random gradients of a small model in float64, and the PyTorch optimizers that are given them."""

import numpy as np
import torch

from discover.torch import Discover, DiscoverAdamW, DiscoverMuon

NAMES = ["nli", "qa", "news"]
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


def model(dtype=torch.float32):
    """A small network of images."""
    torch.manual_seed(0)
    layers = torch.nn.Sequential(torch.nn.Conv2d(1, 4, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(16, 3))
    return layers.to(dtype)


def loss_of(net, step):
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(8, 1, 4, 4, generator=generator) + step % 3
    return (net(x.to(net[0].weight.dtype)) - 1).square().mean()


def train(net, opt, steps, after=lambda: None):
    """Steps with the clusters in turn; the parameters at the end."""
    for step in steps:
        opt.cluster = sorted(opt.clusters)[step % len(opt.clusters)]
        loss_of(net, step).backward()
        opt.step()
        opt.zero_grad()
        after()
    return [p.detach().clone() for p in net.parameters()]


def equal(left, right):
    """Whether all tensors are the same to the bit."""
    left, right = list(left), list(right)
    return len(left) == len(right) and all(map(torch.equal, left, right))
