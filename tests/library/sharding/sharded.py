"""A small problem for many devices: a network whose shapes 2, 4 and 8 do not divide, and every optimizer."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from tests.library import table

CLUSTERS = table.CLUSTERS


MASK = functools.partial(jax.tree.map, lambda p: p.ndim > 1)


EXTRA = {
    "momentum": {"weight_decay": 0.01, "mask": MASK},
    "qhm": {"l2": 0.01},
    "discover": {"weight_decay": 0.01, "mask": MASK},
    "discover_qhm": {"rate": "per_visit", "estimate_probs": True},
    "discover_igt": {"l2": 0.01, "mask": MASK},
    "discover_adam": {"beta1": 0.5, "weight_decay": 0.01, "mask": MASK},
    "discover_muon": {"damping": 0.1, "l2": 0.01},
}
"""What the optimizers are tried with besides, so that every option crosses devices once."""


def make_optimizer(name):
    return table.make(name, 0.05, clusters=CLUSTERS, **EXTRA.get(name, {}))


STEPS, GROUPS, SIZE = 4, 8, 3


# Programs that run for a moment are compiled without LLVM's optimizations, which take longer than they save here.
quick_jit = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})


def make_mesh(count, names=("data",), shape=None):
    return Mesh(np.array(jax.devices()[:count]).reshape(shape or (count,)), names)


def loss(params, group, *, key=None):
    x, y = group
    noise = 0.0 if key is None else 0.1 * jax.random.normal(key, y.shape)
    hidden = jnp.tanh(x @ params["layer"]["kernel"] + params["layer"]["bias"][None])
    return jnp.mean((hidden @ params["out"] + params["shift"] - y + noise) ** 2)


def make_params(rows=5, columns=7):
    """Shapes that 2, 4 and 8 do not divide, and a scalar; of the precision that is set."""
    return _make_params(rows, columns, jnp.result_type(float))


@functools.cache
def _make_params(rows, columns, dtype):
    del dtype  # what the calls below make by default
    keys = jax.random.split(jax.random.key(0), 2)
    return {
        "layer": {"kernel": 0.5 * jax.random.normal(keys[0], (rows, columns)), "bias": jnp.zeros(columns)},
        "out": 0.5 * jax.random.normal(keys[1], (columns, 2)),
        "shift": jnp.zeros(()),
    }


@functools.cache
def make_batches(steps=STEPS, groups=GROUPS, seed=1):
    keys = jax.random.split(jax.random.key(seed), 3)
    x = jax.random.normal(keys[0], (steps, groups, SIZE, 5))
    ids = jax.random.randint(keys[1], (steps, groups), 0, CLUSTERS.num_clusters)
    y = jnp.sin(x[..., :2]) + ids[..., None, None]
    sizes = jax.random.randint(keys[2], (steps, groups), 0, SIZE + 1)
    return (x, y), ids, sizes


def make_step(tx, gradients):
    def step(carry, batch):
        params, state = carry
        data, ids, sizes, key = batch
        losses, grads = gradients(params, data, key=key)
        updates, state = tx.update(grads, state, params, cluster_ids=ids, group_sizes=sizes)
        return (optax.apply_updates(params, updates), state), losses

    return step


def train(tx, gradients, params, batches):
    """Parameters after each batch, in one compiled loop."""
    keys = jax.random.split(jax.random.key(9), batches[1].shape[0])

    @quick_jit
    def run(params, batches):
        def body(carry, batch):
            carry, losses = make_step(tx, gradients)(carry, batch)
            return carry, (carry[0], losses)

        return jax.lax.scan(body, (params, tx.init(params)), (*batches, keys))

    return run(params, batches)


def assert_close(actual, expected, rtol=1e-10, atol=1e-12):
    jax.tree.map(lambda a, e: np.testing.assert_allclose(a, e, rtol=rtol, atol=atol), actual, expected)


@functools.cache
def random_grads(groups, seed=0):
    params = make_params()
    keys = jax.random.split(jax.random.key(seed), len(jax.tree.leaves(params)))
    flat = [jax.random.normal(k, (groups, *p.shape)) for k, p in zip(keys, jax.tree.leaves(params))]
    return jax.tree.unflatten(jax.tree.structure(params), flat)


MODEL_SPECS = {"layer": {"kernel": P(None, "model"), "bias": P("model")}, "out": P("model", None), "shift": P()}
