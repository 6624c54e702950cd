"""8-bit buffers on a GPU: whether the kernel computes what the plain version does. ::

    python benchmarks/int8_buffers.py

On small arrays, and on one of more than 2³¹ codes. The tests run the kernel in an interpreter; its time is that of
`discover bench cifar10-classes --optimizers discover+buffer_dtype=int8`.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from discover import quantized, rule
from discover.context import Move
from discover.gpu import device, update_kernel
from discover.gpu.parameters import Parameter
from discover.gpu.stacked import update_stacked

LARGE = (3, 3, 640, 640)  # 700 times that is more than 2³¹


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


def main() -> None:
    if not device.runs_kernels():
        sys.exit("int8_buffers.py: needs an NVIDIA GPU of 2020 or newer")
    print(f"{jax.devices()[0]}, jax {jax.__version__}")
    for groups, clusters, shape in ((1, 3, (37, 11)), (8, 10, (3, 3, 160, 160)), (5, 100, (7,)), (2, 700, LARGE)):
        print(f"G = {groups}, N = {clusters}, {shape}: {differences(groups, clusters, shape)}", flush=True)


if __name__ == "__main__":
    main()
