"""Buffers in the host's memory: the numbers of those beside the parameters, to the bit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import discover
from discover.gpu.host_memory import HostBuffers, fetch
from discover.sharding import shard_by_parameter
from tests.library.sharding.sharded import make_mesh

pytestmark = pytest.mark.float32

CLUSTERS = discover.Clusters.uniform(9)
PARAMS = {"w": jnp.linspace(-1, 1, 210).reshape(30, 7), "b": jnp.ones(5), "s": jnp.zeros(())}


def after(tx, num_steps, start=None, first=0):
    """Parameters and state after steps whose groups repeat clusters, are of none, and are empty."""

    def step(held, key):
        params, state = held
        id_key, size_key, grad_key = jax.random.split(key, 3)
        ids = jax.random.randint(id_key, (4,), -1, 9)
        sizes = jax.random.randint(size_key, (4,), 0, 3)
        grads = jax.tree.map(lambda p: jax.random.normal(grad_key, (4, *p.shape)), params)
        return discover.take_step(tx, grads, state, params, cluster_ids=ids, group_sizes=sizes), None

    keys = jax.random.split(jax.random.key(0), num_steps)[first:]
    start = start or jax.jit(lambda p: (p, tx.init(p)))(PARAMS)
    return jax.jit(lambda held: jax.lax.scan(step, held, keys)[0])(start)


def optimizer(place, dtype="int8", **options):
    return discover.discover(0.1, CLUSTERS, buffers=place, buffer_dtype=dtype, l2=0.01, **options)


@pytest.mark.parametrize(
    ("dtype", "num_steps"), [("int8", 520), pytest.param(None, 1100, marks=pytest.mark.slow), ("bfloat16", 30)]
)
def test_the_numbers_are_those_of_buffers_on_the_device_also_when_the_mean_is_summed_afresh(dtype, num_steps):
    beside, away = (after(optimizer(place, dtype), num_steps) for place in ("device", "host"))
    jax.tree.map(np.testing.assert_array_equal, away[0], beside[0])
    np.testing.assert_array_equal(away[1].direction.mean["w"], beside[1].direction.mean["w"])
    host, held = away[1].direction.buffers, beside[1].direction.buffers
    assert isinstance(host, HostBuffers)
    assert {rows.sharding.memory_kind for rows in host.rows} == {"pinned_host"}
    rows = fetch(host, jnp.arange(9), jax.eval_shape(lambda: held))
    jax.tree.map(np.testing.assert_array_equal, rows, held)


def test_a_run_that_goes_on_from_its_state_is_the_same_to_the_bit():
    tx = optimizer("host")
    whole = after(tx, 12)
    jax.tree.map(np.testing.assert_array_equal, after(tx, 12, after(tx, 5), first=5), whole)


def test_on_a_gpu_the_kernel_has_the_rows_of_the_batch(gpu):
    plain = after(optimizer("host"), 3)
    shapes = gpu()
    params, _ = after(optimizer("host"), 3)
    assert set(shapes) == {(30, 7), (5,), ()}
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), params, plain[0])


@pytest.mark.parametrize(
    "options", [{"estimate_probs": True, "skip_nonfinite": True}, {"buffered": {"w": True, "b": False, "s": False}}]
)
def test_other_options_work_with_it(options):
    one, other = (after(optimizer(place, **options), 6)[0] for place in ("device", "host"))
    jax.tree.map(np.testing.assert_array_equal, one, other)


def test_what_needs_all_buffers_is_refused():
    with pytest.raises(ValueError, match="damping reads the buffers of all clusters: with it buffers must be 'device'"):
        optimizer("host", damping=0.1)
    with pytest.raises(ValueError, match="buffers must be one of 'device', 'host', got 'disk'"):
        optimizer("disk")
    with pytest.raises(ValueError, match="buffers on the host cannot be cut over devices"):
        shard_by_parameter(optimizer("host"), make_mesh(2)).init(PARAMS)


def test_a_state_that_was_read_to_the_device_is_refused_in_words_that_mend_it():
    tx = optimizer("host")
    params, state = after(tx, 1)
    place = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    lost = jax.tree.map(lambda x: jax.device_put(x, place), state)
    with pytest.raises(ValueError, match=r"must be in the host's memory, .*with_memory_kind\('pinned_host'\)"):
        after(tx, 2, (params, lost), first=1)
    mended = jax.tree.map(
        lambda x: jax.device_put(x, x.sharding.with_memory_kind("pinned_host")), lost.direction.buffers
    )
    lost = lost._replace(direction=lost.direction._replace(buffers=mended))
    jax.tree.map(np.testing.assert_array_equal, after(tx, 2, (params, lost), first=1), after(tx, 2))
