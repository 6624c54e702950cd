"""8-bit buffers cut over devices: slices are whole blocks, so that nothing of the trajectory changes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import discover
from discover.gpu import device, update_kernel
from discover.quantized import BLOCK, is_quantized
from discover.sharding import shard_by_parameter, state_shardings
from tests.library.sharding.sharded import CLUSTERS, make_mesh, quick_jit

pytestmark = pytest.mark.float32

DEVICES, STEPS = 4, 3
PARAMS = {"w": jnp.linspace(-1, 1, 700).reshape(70, 10), "b": jnp.ones(10)}


def optimizer():
    return discover.discover(0.1, CLUSTERS, buffer_dtype="int8", l2=0.1)


def after_some_steps(tx):
    def step(held, key):
        params, state = held
        grads = jax.tree.map(lambda p: jax.random.normal(key, (DEVICES, *p.shape)), PARAMS)
        updates, state = tx.update(grads, state, params, cluster_ids=jnp.array([0, 2, 2, 1]))
        return (jax.tree.map(jnp.add, params, updates), state), None

    def run(params):
        return jax.lax.scan(step, (params, tx.init(params)), jax.random.split(jax.random.key(0), STEPS))[0]

    return quick_jit(run)(PARAMS)


def codes_of(state):
    return [leaf for leaf in jax.tree.leaves(state, is_leaf=is_quantized) if is_quantized(leaf)]


def assert_alike(one, other):
    """The same parameters, and the same codes but for one in a hundred that a rounding turned."""
    (params, state), (same, same_state) = one, other
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-3), params, same)
    for held, expected in zip(codes_of(state), codes_of(same_state), strict=True):
        for name in ("codes", "scales"):
            a, b = (np.asarray(getattr(x, name)) for x in (held, expected))
            length = min(a.shape[1], b.shape[1])  # of slices, with zeros at the end
            assert np.mean(~np.isclose(a[:, :length], b[:, :length], rtol=1e-5)) < 0.01


def test_the_trajectory_is_that_of_one_device_and_each_device_has_its_blocks(monkeypatch):
    mesh = make_mesh(DEVICES)
    sharded = shard_by_parameter(optimizer(), mesh)
    found = after_some_steps(sharded)
    assert_alike(found, after_some_steps(optimizer()))
    shapes = state_shardings(optimizer(), PARAMS, mesh)
    for part in codes_of(found[1]) + codes_of(shapes):
        for leaf, numbers in zip(part, (4, BLOCK)):
            assert leaf.shape[1] * numbers % (DEVICES * BLOCK) == 0
            assert leaf.sharding.shard_shape(leaf.shape) == (leaf.shape[0], leaf.shape[1] // DEVICES)

    rule = update_kernel.update_in_kernels
    monkeypatch.setattr(update_kernel, "update_in_kernels", lambda *one: rule(*one, interpret=True))
    monkeypatch.setattr(device, "by_device", lambda *, cpu, gpu, other: gpu())
    assert_alike(after_some_steps(sharded), found)
