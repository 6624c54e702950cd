"""The JAX part of `torch_speed.py`: milliseconds of our momentum step for the same network and batch, as JSON.

    echo measure | python benchmarks/torch_speed_jax.py 10 1 8             # depth, width, batch

It compiles, waits for a line of input, and measures: whoever started it may use the GPU until then.
"""

from __future__ import annotations

import json
import sys
import time
from statistics import median
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import lax

import discover
from discover.gpu import device
from discover.lab.models import build_network, conv_as_matmul

STEPS, TURNS = 20, 7


def main() -> None:
    depth, width, batch = map(int, sys.argv[1:])
    on_cpu = device.is_cpu()
    network = build_network(
        "wide_resnet", (32, 32, 3), 10, depth=depth, width=width, dropout=0.0,
        dtype=jnp.float32 if on_cpu else jnp.bfloat16, conv_general_dilated=conv_as_matmul if on_cpu else None,
    )  # fmt: skip
    tx = discover.momentum(1e-6)
    images = jax.random.normal(jax.random.key(0), (1, batch, 32, 32, 3))
    labels = jax.random.randint(jax.random.key(1), (1, batch), 0, 10)

    def loss(params: Any, group: Any) -> Any:
        return optax.softmax_cross_entropy_with_integer_labels(network.apply(params, group[0]), group[1]).mean()

    def step(carry: Any, _: Any) -> Any:
        params, state = carry
        losses, grads = discover.group_value_and_grad(loss)(params, (images, labels))
        return discover.take_step(tx, grads, state, params, cluster_ids=jnp.zeros(1, jnp.int32)), losses.mean()

    go = jax.jit(lambda carry: lax.scan(step, carry, None, length=STEPS), donate_argnums=0)  # a loop on the device
    params = network.init(jax.random.key(2))
    carry, _ = jax.block_until_ready(go((params, tx.init(params))))
    sys.stdin.readline()
    times = []
    for _ in range(TURNS):
        began = time.perf_counter()
        carry, _ = jax.block_until_ready(go(carry))
        times.append((time.perf_counter() - began) / STEPS)
    found = {"momentum, milliseconds": round(1000 * median(times), 3), "device": jax.devices()[0].device_kind}
    found |= {"parameters": sum(x.size for x in jax.tree.leaves(carry[0])), "jax": jax.__version__}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
