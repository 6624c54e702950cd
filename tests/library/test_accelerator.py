"""What is asked of the device: whether it runs the kernels, whether it is a CPU."""

import types

import jax
import jax.numpy as jnp
import pytest

from discover.gpu import device as accelerator


@pytest.mark.parametrize(
    ("capability", "runs"),
    [("9.0", True), ("8.0", True), ("12.1", True), ("7.5", False), ("gfx942", False), ("", False)],
)
def test_the_kernels_want_an_nvidia_gpu_that_triton_knows(monkeypatch, capability, runs):
    device = types.SimpleNamespace(compute_capability=capability) if capability else jax.devices("cpu")[0]
    monkeypatch.setattr(jax, "local_devices", lambda *, backend=None: [device])
    assert accelerator.runs_kernels() is runs


@pytest.mark.parametrize("chosen", ["cpu", None])
def test_a_device_that_was_chosen_counts_and_not_the_gpu_beside_it(monkeypatch, chosen):
    cpu, gpu = jax.devices("cpu")[0], types.SimpleNamespace(platform="gpu", compute_capability="9.0")
    monkeypatch.setattr(jax, "local_devices", lambda *, backend=None: [gpu if backend is None else cpu])
    assert accelerator.runs_kernels()
    assert not accelerator.is_cpu()
    with jax.default_device(chosen or cpu):
        assert not accelerator.runs_kernels()
        assert accelerator.is_cpu()
        assert jnp.sum(jnp.ones(3)) == 3
