"""Which device computes: asked in one place, and answered when a program is lowered."""

import types

import jax
import jax.numpy as jnp
import pytest

import discover
from discover.gpu import device
from tests.library.gpu.on_gpu import lowered_for_cuda


@pytest.mark.parametrize(
    ("capability", "runs"),
    [("9.0", True), ("8.0", True), ("12.1", True), ("7.5", False), ("gfx942", False), ("", False)],
)
def test_the_kernels_want_an_nvidia_gpu_that_triton_knows(monkeypatch, capability, runs):
    found = types.SimpleNamespace(compute_capability=capability) if capability else jax.devices("cpu")[0]
    monkeypatch.setattr(jax, "local_devices", lambda *, backend=None: [found])
    assert device.runs_kernels() is runs


@pytest.mark.parametrize("chosen", ["cpu", None])
def test_a_device_that_was_chosen_counts_and_not_the_gpu_beside_it(monkeypatch, chosen):
    cpu, gpu = jax.devices("cpu")[0], types.SimpleNamespace(platform="gpu", compute_capability="9.0")
    monkeypatch.setattr(jax, "local_devices", lambda *, backend=None: [gpu if backend is None else cpu])
    assert not device.is_cpu()
    with jax.default_device(chosen or cpu):
        assert device.is_cpu()


@pytest.mark.float32
def test_beside_a_gpu_arrays_on_the_cpu_take_the_cpus_way_and_those_on_the_gpu_the_kernels(monkeypatch):
    tx = discover.discover(0.1, discover.Clusters.uniform(3))
    params, grads = jnp.ones((4, 4)), jnp.ones((2, 4, 4))
    state = tx.init(params)

    def step(params, grads, state):
        return discover.take_step(tx, grads, state, params, cluster_ids=jnp.array([0, 1]))

    expected = jax.jit(step)(params, grads, state)
    monkeypatch.setattr(device, "is_cpu_only", lambda: False)
    monkeypatch.setattr(device, "runs_kernels", lambda: True)
    beside_a_gpu = jax.jit(lambda *arguments: step(*arguments))
    assert "discover_update" in lowered_for_cuda(beside_a_gpu, params, grads, state)
    assert "discover_update" not in beside_a_gpu.lower(params, grads, state).as_text()
    for after, before in zip(jax.tree.leaves(beside_a_gpu(params, grads, state)), jax.tree.leaves(expected)):
        assert jnp.array_equal(after, before)
