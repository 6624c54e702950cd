"""The optimizer's update alone, against the time that its memory traffic needs at the least."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from discover import take_step
from discover.gpu import device
from discover.lab.data import Dataset
from discover.lab.experiments.config.config import Config
from discover.lab.experiments.run.build import (
    Member,
    build_members,
    build_network_for,
    build_plan,
    optimizer_factory,
)


def time_update(config: Config, dataset: Dataset, bandwidth: float, repeats: int) -> dict[str, Any]:
    """The optimizer's update on given gradients, against the time its memory traffic needs at the least."""
    network = build_network_for(config, dataset)
    plan = build_plan(config, dataset, 0)
    arguments, _ = build_members(config, [Member(0)], 1_000_000)
    hyper = jax.tree.map(lambda value: jnp.asarray(value[0]), arguments.hyper)
    make = optimizer_factory(config, plan.probs)
    hyper.pop("l2", None)
    clustered = config.optimizer.entry.clustered
    groups = config.batches.groups if clustered else 1
    half = config.model.dtype != "float32"
    params = jax.jit(network.init)(jax.random.key(0))
    key = jax.random.key(1)
    grads = jax.tree.map(
        lambda p: jax.random.normal(key, (groups, *p.shape), config.model.dtype if half and p.ndim > 1 else p.dtype),
        params,
    )
    ids = jax.device_put(plan.batch(0).cluster_ids[:groups])

    def update(_, held, grads, ids):
        params, state = held
        return take_step(make(hyper), grads, state, params, cluster_ids=ids)

    held = params, jax.jit(lambda p: make(hyper).init(p))(params)
    seconds = _seconds_in_a_loop(update, held, grads, ids, repeats=repeats)
    touched = len(np.unique(plan.batch(0).cluster_ids))
    state_bytes = _touched_bytes(config, hyper, params, len(plan.probs), touched)
    floor_bytes = sum(g.nbytes for g in jax.tree.leaves(grads)) + 2 * sum(p.nbytes for p in jax.tree.leaves(params))
    floor_bytes += 2 * state_bytes
    return {
        "optimizer": config.optimizer.name,
        "groups": groups,
        "clusters": len(plan.probs),
        "milliseconds": 1e3 * median(seconds),
        "floor_bytes": floor_bytes,
        "floor_milliseconds": 1e3 * floor_bytes / bandwidth,
        "times_floor": median(seconds) * bandwidth / floor_bytes,
        "bytes_per_second": floor_bytes / median(seconds),
    }


def _touched_bytes(config: Config, hyper: Any, params: Any, num_clusters: int, touched: int) -> int:
    """Bytes of the optimizer's state that a step reads: what there is once, and that of the clusters in the batch."""

    def state_bytes(number: int) -> int:
        tx = optimizer_factory(config, [1 / number] * number)(hyper)
        leaves = jax.tree.leaves(jax.eval_shape(tx.init, params))
        return sum(leaf.size * leaf.dtype.itemsize for leaf in leaves if leaf.ndim)

    each = (state_bytes(2 * num_clusters) - state_bytes(num_clusters)) // num_clusters
    return state_bytes(num_clusters) - (num_clusters - touched) * each


def _seconds_in_a_loop(body: Callable[..., Any], held: Any, *others: Any, repeats: int) -> list[float]:
    """Seconds of one `held = body(i, held, *others)`, each from many in one program: a call has a price too."""
    times = 10 if device.is_cpu() else 300  # on a GPU an update is over within a millisecond

    def loop(held, *others):
        return jax.lax.fori_loop(0, times, lambda i, now: body(i, now, *others), held)

    compiled = jax.jit(loop, donate_argnums=0).lower(held, *others).compile()
    seconds = []
    for number in range(repeats + 1):
        began = time.perf_counter()
        held = jax.block_until_ready(compiled(held, *others))
        if number:  # the first one warms up
            seconds.append((time.perf_counter() - began) / times)
    return seconds


def copy_bandwidth() -> float:
    """Bytes read and written per second by a large copy on the device."""
    source = jnp.zeros(2**25 if device.is_cpu() else 2**28, jnp.float32)
    moved = 2 * source.nbytes
    return moved / min(_seconds_in_a_loop(lambda i, x: x + i, source, repeats=7))
