"""On several devices the update kernel works on each device's own slices (here in Pallas's interpreter)."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType

import discover
from benchmarks.traffic import collectives, count_kinds
from discover.gpu import device, update_kernel
from discover.sharding import shard_by_parameter
from tests.library.gpu.on_gpu import H200, lowered_for_cuda
from tests.library.sharding.sharded import CLUSTERS, MODEL_SPECS, assert_close, make_mesh, make_params, quick_jit

pytestmark = pytest.mark.float32


def one_update(tx, groups):
    """One update from a state that is not zero, and its arguments."""
    numbers = np.random.default_rng(0)

    def random(*lead):
        return jax.tree.map(
            lambda p: jnp.asarray(numbers.normal(size=(*lead, *p.shape)), "float32"), make_params(5, 12)
        )

    params, grads = random(), random(groups)
    state = jax.tree.map(lambda s: (s + 0.5).astype(s.dtype), tx.init(params))
    update = quick_jit(lambda grads, state: tx.update(grads, state, params, cluster_ids=jnp.arange(groups) % 3))
    return update, (grads, state)


@pytest.mark.parametrize(
    ("name", "shape"), [("discover_igt", (4,)), pytest.param("discover", (2, 4), marks=pytest.mark.slow)]
)
def test_the_kernel_updates_slices_where_they_are_and_equals_the_plain_rule(name, shape, monkeypatch):
    if name == "discover":
        inner = discover.discover(0.1, CLUSTERS, buffer_dtype=jnp.bfloat16)
    else:
        inner = discover.discover_igt(0.1, CLUSTERS, l2=0.01)  # adds a vector to every group's gradient in the kernel
    count, groups = math.prod(shape), max(shape[0], 2)
    names, specs = (("data",), None) if len(shape) == 1 else (("data", "model"), MODEL_SPECS)
    tx = shard_by_parameter(inner, make_mesh(count, names, shape), param_specs=specs)
    update, arguments = one_update(tx, groups)
    plain = update.lower(*arguments).compile()

    sizes, rule = [], update_kernel.update_in_kernels

    def interpreted(scalars, parameters):
        sizes.extend(one.mean.size for one in parameters)
        return rule(scalars, parameters, interpret=True)

    monkeypatch.setattr(update_kernel, "update_in_kernels", interpreted)
    monkeypatch.setattr(device, "by_device", lambda *, cpu, gpu, other: gpu())
    kernel = one_update(tx, groups)[0].lower(*arguments).compile()
    monkeypatch.undo()
    # Every parameter, cut by the data axis and by the model axis that it is sharded over.
    assert sorted(sizes) == sorted(-(-size // count) for size in (5 * 12, 12 * 2, 12, 1))
    for actual, expected in zip(*map(jax.tree.leaves, (kernel(*arguments), plain(*arguments))), strict=True):
        assert actual.dtype == expected.dtype
        tolerance = 2e-2 if expected.dtype == jnp.bfloat16 else 1e-5  # only the buffers may be rounded so coarsely
        assert_close(actual.astype("float32"), expected.astype("float32"), rtol=tolerance, atol=1e-6)
    assert count_kinds(collectives(kernel)) == count_kinds(collectives(plain))


def test_the_kernel_on_slices_lowers_for_cuda(monkeypatch):
    mesh = AbstractMesh((8,), ("data",), (AxisType.Auto,), abstract_device=H200)
    inner = discover.discover(0.1, CLUSTERS)
    on_gpus = shard_by_parameter(inner, mesh)
    params, (grads, state) = make_params(5, 12), one_update(shard_by_parameter(inner, make_mesh(8)), 8)[1]
    monkeypatch.setattr(device, "by_device", lambda *, cpu, gpu, other: gpu())
    update = jax.jit(lambda grads, state: on_gpus.update(grads, state, params, cluster_ids=jnp.arange(8) % 3))
    assert "discover_update" in lowered_for_cuda(update, grads, state, mesh=mesh)
