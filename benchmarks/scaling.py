"""What a step sends, holds and takes, against the number of devices and of clusters.

    python benchmarks/scaling.py                # 1 to 8 simulated devices, 10 to 1,000 clusters: numbers and figure
    python benchmarks/scaling.py --large        # the two large settings of docs/scaling.md, compiled for 64 and 256
                                                # simulated devices and not run

Bytes sent are read from the compiled program (`traffic.py`), memory is what one device holds of the
state. Step times are of simulated devices that share the cores of one CPU: they show that a step's work does not grow
with the clusters, not how fast real devices are.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from traffic import bytes_sent

DEVICES, CLUSTERS, WIDTH, BATCH = (1, 2, 4, 8), (10, 100, 1000), 128, 128
SEVERAL = {"two clusters a device": None, "the same, sent as bfloat16": "bfloat16"}


def measure(devices: int, clusters: int, steps: int, repeats: int) -> dict[str, Any]:
    """One step of Discover on a small network, one group a device: bytes, memory and time."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    import optax
    from jax.sharding import Mesh, NamedSharding
    from jax.sharding import PartitionSpec as P

    import discover
    from discover.sharding import shard_by_parameter, sharded_group_value_and_grad

    mesh = Mesh(np.array(jax.devices()[:devices]), ("data",))
    whole, spread = NamedSharding(mesh, P()), NamedSharding(mesh, P("data"))
    keys = jax.random.split(jax.random.key(0), 4)
    shapes = {"first": (64, WIDTH), "second": (WIDTH, WIDTH), "last": (WIDTH, 10)}
    params = {n: jax.random.normal(k, s) / s[0] ** 0.5 for (n, s), k in zip(shapes.items(), keys)}

    def loss(params, group):
        hidden = jax.nn.relu(jax.nn.relu(group[0] @ params["first"]) @ params["second"])
        return optax.softmax_cross_entropy_with_integer_labels(hidden @ params["last"], group[1]).mean()

    def compiled(groups, **options):
        gradients = sharded_group_value_and_grad(loss, mesh)
        tx = shard_by_parameter(discover.discover(0.1, discover.Clusters.uniform(clusters)), mesh, **options)
        x, y = jax.random.normal(keys[3], (groups, BATCH // groups, 64)), jnp.zeros((groups, BATCH // groups), int)

        def step(params, state, batch, ids):
            _, grads = gradients(params, batch)
            updates, state = tx.update(grads, state, params, cluster_ids=ids)
            return optax.apply_updates(params, updates), state

        place = jax.device_put(params, whole)
        state = tx.init(place)
        batch, ids = jax.device_put((x, y), spread), jax.device_put(jnp.arange(groups) % clusters, whole)
        return jax.jit(step, donate_argnums=(0, 1)).lower(place, state, batch, ids).compile(), place, state, batch, ids

    step, place, state, batch, ids = compiled(max(devices, 2))
    several = {name: bytes_sent(compiled(2 * devices, exchange_dtype=dtype)[0]) for name, dtype in SEVERAL.items()}

    everything = optax.sgd(0.1, momentum=0.9)

    def momentum(params, state, batch):
        grads = jax.grad(lambda p: loss(p, jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:]), batch)))(params)
        updates, state = everything.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    plain = jax.jit(momentum, out_shardings=whole).lower(place, everything.init(place), batch).compile()
    held = sum(leaf.addressable_shards[0].data.nbytes for leaf in jax.tree.leaves(state))

    times = []
    place, state = step(place, state, batch, ids)
    jax.block_until_ready((place, state))
    for _ in range(repeats):
        began = time.perf_counter()
        for _ in range(steps):
            place, state = step(place, state, batch, ids)
        jax.block_until_ready((place, state))
        times.append(1e3 * (time.perf_counter() - began) / steps)
    return {
        "devices": devices,
        "clusters": clusters,
        "parameters": sum(p.size for p in params.values()),
        "sent": bytes_sent(step),
        "sent_momentum": bytes_sent(plain),
        "sent_two": several,
        "ratio": bytes_sent(step) / bytes_sent(plain) if devices > 1 else 1.0,
        "state_bytes": held,
        "step_ms": statistics.median(times),
        "step_ms_low": min(times),
        "step_ms_high": max(times),
        "repeats": repeats,
    }


def resnet50() -> Any:
    """Shapes of ResNet-50 for 1,000 classes."""
    import jax
    import jax.numpy as jnp

    from discover.lab.models import build_network

    network = build_network("resnet", (224, 224, 3), 1000, depth=50, dtype=jnp.dtype("float32"))
    return jax.eval_shape(network.init, jax.random.key(0))


def decoder_1b() -> Any:
    """Shapes of a decoder of 1.0 billion parameters: 18 layers of width 2,048, 50,304 tokens."""
    import jax

    layers, width, tokens = 18, 2048, 50_304
    shapes = {
        "embedding": (tokens, width),
        "attention_in": (layers, width, 3 * width),
        "attention_out": (layers, width, width),
        "mlp_in": (layers, width, 4 * width),
        "mlp_out": (layers, 4 * width, width),
        "norms": (layers, 2, width),
    }
    return {name: jax.ShapeDtypeStruct(shape, "float32") for name, shape in shapes.items()}


LARGE = {
    "ResNet-50, 1,000 classes": (resnet50, 1000, 64),
    "1B decoder, 32 domains": (decoder_1b, 32, 256),
}


def _peak(memory: Any) -> float:
    """Bytes of arguments, results and temporaries of a compiled program on one device; donated ones count once."""
    held = memory.argument_size_in_bytes + memory.output_size_in_bytes - memory.alias_size_in_bytes
    return float(held + memory.temp_size_in_bytes)


def compile_large(name: str, dtype: str) -> dict[str, Any]:
    """Compiles the optimizer's part of a step (exchange, rule, gather) for a large setting, without running it."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    import optax
    from jax.sharding import Mesh, NamedSharding
    from jax.sharding import PartitionSpec as P

    import discover
    from discover.sharding import shard_by_parameter, state_shardings

    make, clusters, devices = LARGE[name]
    mesh = Mesh(np.array(jax.devices()[:devices]), ("data",))
    whole, spread = NamedSharding(mesh, P()), NamedSharding(mesh, P("data"))
    params = jax.tree.map(lambda p: jax.ShapeDtypeStruct(p.shape, p.dtype, sharding=whole), make())
    grads = jax.tree.map(lambda p: jax.ShapeDtypeStruct((devices, *p.shape), p.dtype, sharding=spread), params)
    inner = discover.discover(0.1, discover.Clusters.uniform(clusters), buffer_dtype=jnp.dtype(dtype))
    tx = shard_by_parameter(inner, mesh)
    state = state_shardings(inner, params, mesh)
    ids = jax.ShapeDtypeStruct((devices,), jnp.int32, sharding=whole)

    def update(grads, state, params, ids):
        updates, state = tx.update(grads, state, params, cluster_ids=ids)
        return optax.apply_updates(params, updates), state

    replicated = optax.sgd(0.1, momentum=0.9)  # its state whole on every device, as in most training loops

    def momentum_update(grads, state, params):
        mean = jax.tree.map(lambda g: jnp.mean(g, axis=0), grads)  # the all-reduce
        updates, state = replicated.update(mean, state, params)
        return optax.apply_updates(params, updates), state

    compiled = jax.jit(update, donate_argnums=(1, 2)).lower(grads, state, params, ids).compile()
    velocity = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=whole), jax.eval_shape(replicated.init, params)
    )
    lowered = jax.jit(momentum_update, donate_argnums=(1, 2), out_shardings=whole).lower(grads, velocity, params)
    momentum = lowered.compile()
    memory: Any = compiled.memory_analysis()
    memory_momentum: Any = momentum.memory_analysis()
    count = sum(p.size for p in jax.tree.leaves(params))
    held = sum(np.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize for x in jax.tree.leaves(state))
    size = jnp.dtype(dtype).itemsize
    share = (devices - 1) / devices
    return {
        "setting": name,
        "buffers": dtype,
        "parameters": count,
        "clusters": clusters,
        "devices": devices,
        "state_arithmetic": (clusters * size + 4) * count / devices,
        "state_compiled": float(held),
        "params_bytes": 4.0 * count,
        "grads_bytes": 4.0 * count,  # of the device's one group
        "temporaries": float(memory.temp_size_in_bytes),
        "peak": _peak(memory),
        "state_momentum": float(memory_momentum.argument_size_in_bytes - 8 * count),
        "temporaries_momentum": float(memory_momentum.temp_size_in_bytes),
        "peak_momentum": _peak(memory_momentum),
        "sent_arithmetic": 2 * 4 * count * share,
        "sent_compiled": bytes_sent(compiled),
        "sent_momentum": bytes_sent(momentum),
    }


def draw(rows: list[dict[str, Any]], path: Path, caption: str) -> None:
    """Bytes against devices, memory against clusters, time against both."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 3, figsize=(11, 3.4), layout="constrained")
    one = [row for row in rows if row["clusters"] == CLUSTERS[0] and row["devices"] > 1]
    many = [row["devices"] for row in one]
    axes[0].plot(many, [r["sent_momentum"] / 1e3 for r in one], "-", label="momentum", c="lightgray", lw=9)
    for clusters, marker in zip(CLUSTERS, "ov^"):
        own = [row for row in rows if row["clusters"] == clusters]
        label = f"{clusters:,} clusters"
        size = {"o": 11, "v": 8, "^": 4}[marker]  # on top of each other, all to be seen
        axes[0].plot(many, [r["sent"] / 1e3 for r in own if r["devices"] > 1], marker, label=label, ms=size)
        axes[1].plot([r["devices"] for r in own], [r["state_bytes"] / 1e6 for r in own], marker + "-", label=label)
        middle = [r["step_ms"] for r in own]
        low = [m - r["step_ms_low"] for m, r in zip(middle, own)]
        high = [r["step_ms_high"] - m for m, r in zip(middle, own)]
        axes[2].errorbar([r["devices"] for r in own], middle, (low, high), fmt=marker + "-", label=label, capsize=3)
    for name, style in zip(SEVERAL, ("k:", "kx")):
        axes[0].plot(many, [r["sent_two"][name] / 1e3 for r in one], style, label=name)
    for axis, title, unit in zip(
        axes, ("sent by a device in a step", "state on a device", "step (simulated devices)"), ("kB", "MB", "ms")
    ):
        axis.set(title=title, xlabel="devices", ylabel=unit, xscale="log", xticks=DEVICES, xticklabels=DEVICES)
        axis.minorticks_off()
    axes[0].set_ylim(bottom=0)
    axes[2].set_ylim(bottom=0)
    axes[1].set_yscale("log")
    axes[0].legend(fontsize=7)
    figure.supxlabel(caption, fontsize=7)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--large", action="store_true", help="compile the large settings instead")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--json", type=Path, help="also write the numbers to this file")
    parser.add_argument("--figure", type=Path, default=Path("docs/figures/scaling.svg"))
    options = parser.parse_args()
    count = 256 if options.large else max(DEVICES)
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={count}"
    os.environ["JAX_PLATFORMS"] = "cpu"
    import jax

    where = f"jax {jax.__version__}, Python {platform.python_version()}, {os.cpu_count()} CPU cores"
    rows = []
    if options.large:
        work = ((compile_large, name, dtype) for name in LARGE for dtype in ("float32", "bfloat16"))
    else:
        work = ((measure, d, n, options.steps, options.repeats) for n in CLUSTERS for d in DEVICES)
    for function, *arguments in work:
        rows.append(function(*arguments))
        print(json.dumps(rows[-1]), flush=True)
    if not options.large:
        caption = (
            f"{rows[0]['parameters']:,} parameters, one group a device (two on one), batch {BATCH}; times: median and "
            f"range of n={options.repeats} rounds of {options.steps} steps; {where}; python benchmarks/scaling.py"
        )
        draw(rows, options.figure, caption)
    print(where)
    if options.json:
        record = {"command": " ".join(sys.argv), "where": where, "rows": rows}
        options.json.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
