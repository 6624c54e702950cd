"""Rows in the host's pinned memory: whether a GPU fetches and returns them while it computes. ::

    python benchmarks/host_buffers.py [RESULTS.json]

A row is all the numbers of a network for one cluster: 37.6 MB in 8 bits for a WideResNet-26-10. A step multiplies
matrices for about 20 ms, and meanwhile fetches the rows of 8 clusters; what it made of them goes back. Everything is
one program with a loop, and only the rows of the step leave the host's memory. XLA makes asynchronous copies of
`dynamic_slice` and `dynamic_update_slice` there (seen in programs compiled for an H200).
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

WORDS = 9_404_500  # int32 of codes and scales
GROUPS, CLUSTERS, STEPS = 8, 200, 20
SIDE, PRODUCTS = 8192, 14


def step(
    held: Any, number: Any, ids: jax.Array, matrix: jax.Array, *, compute: bool, fetch: bool, give_back: bool
) -> Any:
    """One step: the rows of `ids[number]` come, matrices are multiplied, new rows go back."""
    rows, product, device_rows = held
    for k in range(GROUPS if fetch else 0):
        row = jax.lax.dynamic_slice(rows, (ids[number, k], 0), (1, rows.shape[1]))
        device_rows = device_rows.at[k].set(jax.device_put(row, jax.memory.Space.Device)[0])
    for _ in range(PRODUCTS if compute else 0):
        product = (product @ matrix) * jnp.bfloat16(SIDE**-0.5)
    changed = device_rows + 1 + jnp.isnan(product[0, 0]).astype(jnp.int32)  # waits for the products, as an update does
    for k in range(GROUPS if give_back else 0):
        row = jax.device_put(changed[k : k + 1], jax.memory.Space.Host)
        rows = jax.lax.dynamic_update_slice(rows, row, (ids[number, k], 0))
    return rows, product, changed


def milliseconds(rows: jax.Array, what: dict[str, bool]) -> tuple[float, jax.Array]:
    """Of a step, the median of 5 programs of `STEPS`; and the rows, which were given to the programs."""
    rng = np.random.default_rng(0)
    ids = jnp.asarray([rng.choice(CLUSTERS, GROUPS, replace=False) for _ in range(STEPS)], jnp.int32)
    body = functools.partial(step, **what)

    def loop(held: Any, ids: jax.Array, matrix: jax.Array) -> Any:
        return jax.lax.fori_loop(0, STEPS, lambda i, held: body(held, i, ids, matrix), held)

    matrix = jax.random.normal(jax.random.key(0), (SIDE, SIDE), jnp.bfloat16)
    held, seconds = (rows, matrix + 1, jnp.zeros((GROUPS, WORDS), jnp.int32)), []
    compiled = jax.jit(loop, donate_argnums=0).lower(held, ids, matrix).compile()
    for _ in range(6):
        began = time.perf_counter()
        held = jax.block_until_ready(compiled(held, ids, matrix))
        seconds.append((time.perf_counter() - began) / STEPS)
    return 1e3 * median(seconds[1:]), held[0]


def main(path: str | None) -> None:
    began, results = time.perf_counter(), {}

    def say(name: str, value: Any) -> None:
        results[name] = value
        print(f"{time.perf_counter() - began:6.1f} s  {name}: {value}", flush=True)
        if path is not None:
            with open(path, "w") as file:
                json.dump(results, file, indent=1)

    where = jax.sharding.SingleDeviceSharding(jax.devices()[0], memory_kind="pinned_host")
    say("device", f"{jax.devices()[0]}, jax {jax.__version__}")
    rows = jax.block_until_ready(jax.device_put(np.zeros((CLUSTERS, WORDS), np.int32), where))
    say("GB in pinned memory", rows.nbytes / 1e9)
    for name, what in (
        ("compute", {"compute": True, "fetch": False, "give_back": False}),
        ("fetch", {"compute": False, "fetch": True, "give_back": False}),
        ("fetch and give back", {"compute": False, "fetch": True, "give_back": True}),
        ("compute and fetch", {"compute": True, "fetch": True, "give_back": False}),
        ("compute, fetch and give back", {"compute": True, "fetch": True, "give_back": True}),
    ):
        try:
            found, rows = milliseconds(rows, what)
        except jax.errors.JaxRuntimeError as error:
            say(name, str(error)[:500])
            rows = jax.device_put(np.zeros((CLUSTERS, WORDS), np.int32), where)
        else:
            say(f"{name}, ms a step", found)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else None)
