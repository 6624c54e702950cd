"""8-bit buffers on a GPU: whether the kernel computes what the plain version does, and how long the update takes. ::

    python benchmarks/int8_buffers.py [RESULTS.json]

The update alone is that of a WideResNet-26-10 with bfloat16 gradients, in float32, bfloat16 and int8, N = 10. The
kernel is compared with the plain version on small arrays, and on one of more than 2³¹ codes.
"""

from __future__ import annotations

import functools
import json
import sys
import time
from statistics import median
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import discover
from discover import quantized, rule
from discover.context import Move
from discover.gpu import device, update_kernel
from discover.gpu.parameters import Parameter
from discover.gpu.stacked import update_stacked
from discover.lab.experiments.bench.candidates import random_images
from discover.lab.experiments.presets.presets import get_preset
from discover.lab.experiments.run.build import build_network_for

TIMES = 100
CLUSTERS = 10


def differences(groups: int, clusters: int, shape: tuple[int, ...]) -> dict[str, float]:
    """How far the kernel's results are from the plain version's, one update of one parameter."""
    keys = jax.random.split(jax.random.key(groups), 4)
    size = int(np.prod(shape))
    codes = jax.random.randint(keys[0], (clusters, -(-size // quantized.WORD)), -(2**31), 2**31 - 1, jnp.int32)
    scales = jax.random.uniform(keys[1], (clusters, -(-size // quantized.BLOCK))) / quantized.LARGEST**2
    mean, grads = jax.random.normal(keys[2], shape), jax.random.normal(keys[3], (groups, *shape), jnp.bfloat16)
    ids = jnp.arange(clusters - groups, clusters, dtype=jnp.int32)
    probs = jnp.full(clusters, 1 / clusters)
    weights, _ = rule.batch_weights(
        ids, None, probs, None, jnp.int32(7), correction=0.2, rate=rule.proportional_rate(0.9)
    )

    def of(one: Parameter, kernel: bool) -> Any:
        if kernel:
            first, mean, buffers = update_kernel.update_in_kernels(update_kernel.pack(weights), [one])[0]
        else:
            first, mean, buffers = update_stacked(weights, one, on_cpu=False)
        return first, mean, jax.tree.map(lambda b: b[ids], buffers)

    def parameter() -> Parameter:
        return Parameter(None, grads, mean, quantized.Quantized(codes, scales), None, Move(mean, 0.1, 0.2))

    found, expected = (jax.jit(functools.partial(of, parameter(), kernel))() for kernel in (True, False))
    found_values, expected_values = (quantized.values_of(each[2], mean) for each in (found, expected))
    quantum = jnp.max(expected[2].scales) * 2 * quantized.LARGEST
    return {
        "parameter": float(jnp.max(jnp.abs(found[0] - expected[0]))),
        "mean": float(jnp.max(jnp.abs(found[1] - expected[1]))),
        "scales": float(jnp.max(jnp.abs(found[2].scales - expected[2].scales))),
        "buffers, in the largest quanta": float(jnp.max(jnp.abs(found_values - expected_values)) / quantum),
        "share of numbers that differ": float(jnp.mean(found_values != expected_values)),
    }


def milliseconds(shapes: Any, dtype: str, groups: int, clusters: int) -> float:
    """Of one update of all the parameters, the median of 5 times `TIMES` in one program."""
    tx = discover.discover(0.1, discover.Clusters.uniform(clusters), buffer_dtype=dtype, l2=1e-4)
    params = jax.tree.map(lambda p: jnp.ones(p.shape, p.dtype), shapes)
    key, ids = jax.random.key(1), jnp.arange(groups, dtype=jnp.int32)
    grads = jax.tree.map(
        lambda p: jax.random.normal(key, (groups, *p.shape), jnp.bfloat16 if p.ndim > 1 else p.dtype), params
    )

    def loop(held: Any, grads: Any) -> Any:
        return jax.lax.fori_loop(
            0, TIMES, lambda _, now: discover.take_step(tx, grads, now[1], now[0], cluster_ids=ids), held
        )

    held, seconds = (params, jax.jit(tx.init)(params)), []
    compiled = jax.jit(loop, donate_argnums=0).lower(held, grads).compile()
    for _ in range(6):
        began = time.perf_counter()
        held = jax.block_until_ready(compiled(held, grads))
        seconds.append((time.perf_counter() - began) / TIMES)
    return 1e3 * median(seconds[1:])


def main(path: str | None) -> None:
    results: dict[str, Any] = {"device": str(jax.devices()[0]), "jax": jax.__version__}

    def say(name: str, value: Any) -> None:
        results[name] = value
        print(f"{time.perf_counter() - began:6.1f} s  {name}: {value}", flush=True)
        if path is not None:
            with open(path, "w") as file:
                json.dump(results, file, indent=1)

    began = time.perf_counter()
    if not device.runs_kernels():
        sys.exit("int8_buffers.py: needs an NVIDIA GPU of 2020 or newer")
    for groups, clusters, shape in ((1, 3, (37, 11)), (8, 10, (3, 3, 160, 160)), (5, 100, (7,))):
        say(f"kernel and plain, G = {groups}, {shape}", differences(groups, clusters, shape))
    config = get_preset("cifar10-classes").config_for("discover")
    network = build_network_for(config, random_images(config, CLUSTERS))
    shapes = jax.eval_shape(network.init, jax.random.key(0))
    for groups in (8, 1):
        for dtype in ("float32", "bfloat16", "int8"):
            say(f"update, G = {groups}, {dtype}, ms", milliseconds(shapes, dtype, groups, CLUSTERS))
    usual, largest = update_kernel.update_in_kernels, [p for p in jax.tree.leaves(shapes) if p.size > 2**20]
    for block, warps in ((512, 4), (512, 8), (256, 4), (1024, 8)):
        update_kernel.update_in_kernels = functools.partial(usual, block=block, warps=warps)
        name = f"the largest matrices, G = 8, int8, blocks of {block}, {warps} warps, ms"
        say(name, milliseconds(largest, "int8", 8, CLUSTERS))
    update_kernel.update_in_kernels = usual
    say("kernel and plain, more than 2³¹ codes", differences(2, 700, (3, 3, 640, 640)))
    say("update, G = 8, int8, N = 1,000, ms", milliseconds(shapes, "int8", 8, 1000))


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else None)
