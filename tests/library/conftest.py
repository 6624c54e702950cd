"""Strict settings for the optimizers' tests (float64, no silent broadcasting between ranks), and the way of a GPU."""

import functools

import jax
import pytest

from discover.gpu import damping_kernel, device, split_kernel, update_kernel


@pytest.fixture(autouse=True)
def strict(request):
    x64 = request.node.get_closest_marker("float32") is None
    with jax.enable_x64(x64), jax.numpy_rank_promotion("raise"):
        yield


@pytest.fixture
def gpu(monkeypatch):
    """The way of a GPU, in Pallas's interpreter; the shapes that the update kernel was given."""
    shapes, update, cut = [], update_kernel.update_in_kernels, split_kernel.split

    def counted(scalars, parameters):
        shapes.extend(one.mean.shape for one in parameters)
        return update(scalars, parameters, block=8, interpret=True)

    def on():
        monkeypatch.setattr(device, "by_device", lambda *, cpu, gpu, other: gpu())
        monkeypatch.setattr(update_kernel, "update_in_kernels", counted)
        monkeypatch.setattr(split_kernel, "split", functools.partial(cut, block=8, interpret=True))
        for name in ("products", "solve", "subtract"):
            interpreted = functools.partial(getattr(damping_kernel, name), interpret=True)
            monkeypatch.setattr(damping_kernel, name, interpreted)
        return shapes

    return on
