"""How fast batches are drawn, images decoded and a device fed, on data of the size of CIFAR-10.

    python benchmarks/data.py              # sampler and decoding, on one core of the CPU
    python benchmarks/data.py --device     # also what feeding costs beside a WideResNet-16-4 step on the default device

Aims: more than 1,000 batches of 256 per second from the sampler on one core, and feeding below 2% of a WideResNet-16-4
training step on a GPU. Prints one line for each measurement and, with --json, writes them to a file.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import platform
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

GROUPS, GROUP_SIZE, EXAMPLES, CLASSES = 8, 32, 50_000, 10


def report(results: list[dict], name: str, value: float, unit: str, note: str = "") -> None:
    """Print a measurement, and keep it."""
    results.append({"name": name, "value": value, "unit": unit, "note": note})
    print(f"{name:58s} {value:12,.1f} {unit:12s} {note}", flush=True)


def spread(values: list[float]) -> str:
    return f"median of n={len(values)}, {min(values):,.1f} to {max(values):,.1f}"


def bench_sampler(results: list[dict], steps: int, repeats: int) -> None:
    """Batches of 256 per second, one after the other, and the wait for a batch far into a run that was just resumed."""
    from discover.lab.data import BatchPlan, Clustering, LabelNoise

    labels = np.repeat(np.arange(CLASSES), EXAMPLES // CLASSES)
    skewed = Clustering.from_assignments(np.minimum(np.arange(EXAMPLES) // 50, 20))  # a thousandfold skew
    noise = LabelNoise(0.8, CLASSES)
    classes = Clustering.classes(labels)
    cases = {
        "random, classes": {"clustering": classes},
        "balanced, classes": {"clustering": classes, "composition": "balanced"},
        "shuffled": {"clustering": classes, "composition": "shuffled"},
        "given, classes": {
            "clustering": classes,
            "composition": "given",
            "given": np.arange(5 * GROUPS).reshape(5, GROUPS) % CLASSES,
        },
        "random, 20 clusters of 50 and one of 49,000": {"clustering": skewed},
        "random, 1,000 random clusters": {"clustering": Clustering.random(EXAMPLES, 1000)},
        "random, classes, label noise 0.8": {"clustering": classes, "noise": noise},
        "random, observed labels, noise 0.8": {"clustering": Clustering.observed_labels(labels, noise)},
    }
    for name, options in cases.items():
        rates, waits = [], []
        for repeat in range(repeats):
            plan = BatchPlan(labels, groups=GROUPS, group_size=GROUP_SIZE, seed=repeat, **options)
            start = time.perf_counter()
            for step in range(steps):
                plan.batch(step)
            rates.append(steps / (time.perf_counter() - start))
            resumed = BatchPlan(labels, groups=GROUPS, group_size=GROUP_SIZE, seed=repeat, **options)
            start = time.perf_counter()
            resumed.batch(1_000_000)
            waits.append(1e3 * (time.perf_counter() - start))
        report(results, f"sampler: {name}", float(np.median(rates)), "batches/s", spread(rates))
        report(results, f"sampler: {name}, first batch at step 10⁶", float(np.median(waits)), "ms", spread(waits))


def bench_decoding(results: list[dict], seconds: float, repeats: int) -> None:
    """JPEG images decoded per second by one core."""
    from PIL import Image

    from discover.lab.data.images.decoding import decode

    rng = np.random.default_rng(0)
    for height, width, size, name in ((32, 32, None, "32×32"), (375, 500, 256, "500×375 to 256×256")):
        # Smooth noise: as hard to decode as photographs of the same number of bytes, roughly.
        small = Image.fromarray(rng.integers(0, 256, (height // 4, width // 4, 3), dtype=np.uint8))
        file = io.BytesIO()
        small.resize((width, height), Image.Resampling.BICUBIC).save(file, "JPEG", quality=90)
        contents = file.getvalue()
        rates = []
        for _ in range(repeats):
            count, start = 0, time.perf_counter()
            while time.perf_counter() - start < seconds:
                decode(contents, size, 3)
                count += 1
            rates.append(count / (time.perf_counter() - start))
        note = f"{len(contents):,} bytes each; {spread(rates)}"
        report(results, f"decoding: JPEG {name}", float(np.median(rates)), "images/s", note)


def seconds_per_step(step: Callable[[int], object], steps: int, repeats: int) -> list[float]:
    """Seconds per call of a step whose results are only waited for at the end, as a training loop does."""
    import jax

    jax.block_until_ready(step(0))
    times = []
    for repeat in range(repeats):
        start = time.perf_counter()
        for k in range(steps):
            last = step(repeat * steps + k)
        jax.block_until_ready(last)
        times.append((time.perf_counter() - start) / steps)
    return times


def bench_device(results: list[dict], steps: int, repeats: int, dtype: str) -> None:
    """A WideResNet-16-4 step of momentum on a batch that lies ready, and what it costs to feed it instead."""
    import jax
    import jax.numpy as jnp
    import optax

    from discover.lab.data import Augmentation, BatchPlan, Clustering
    from discover.lab.models import build_network

    labels = np.repeat(np.arange(CLASSES), EXAMPLES // CLASSES)
    images = jnp.asarray(np.random.default_rng(0).integers(0, 256, (EXAMPLES, 32, 32, 3), dtype=np.uint8))
    plan = BatchPlan(labels, Clustering.classes(labels), groups=GROUPS, group_size=GROUP_SIZE)
    augment = Augmentation(padding=4, flip=True)
    network = build_network(
        "wide_resnet", (32, 32, 3), CLASSES, depth=16, width=4, dropout=0.0, dtype=getattr(jnp, dtype)
    )
    optimizer = optax.sgd(1e-3, momentum=0.9)
    params = network.init(jax.random.key(0))
    state = {"now": (params, optimizer.init(params))}

    def loss_of(params, x, y):
        return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(network.apply(params, x), y))

    def learn(carry, x, y):
        params, opt_state = carry
        gradients = jax.grad(loss_of)(params, x, y)
        updates, opt_state = optimizer.update(gradients, opt_state, params)
        return optax.apply_updates(params, updates), opt_state

    @partial(jax.jit, donate_argnums=0)
    def ready_step(carry, x, y):
        return learn(carry, x, y)

    @partial(jax.jit, donate_argnums=0)
    def fed_step(carry, number, images, indices, y, ids):
        keys = jax.random.split(jax.random.fold_in(jax.random.key(0), number), GROUPS)
        x, y = jax.vmap(augment)(keys, images[indices], y, ids)
        return learn(carry, x.reshape(-1, 32, 32, 3), y.reshape(-1))

    x = jnp.asarray(np.asarray(images[: GROUPS * GROUP_SIZE]), jnp.float32) / 255
    y = jnp.asarray(plan.batch(0).labels.reshape(-1))

    def ready(_):
        state["now"] = ready_step(state["now"], x, y)
        return state["now"]

    def fed(k):
        batch = plan.batch(k)
        state["now"] = fed_step(state["now"], k, images, batch.indices, batch.labels, batch.cluster_ids)
        return state["now"]

    gather = jax.jit(lambda images, indices: images[indices])
    timed = {
        "WideResNet-16-4 step, batch lies ready": ready,
        "WideResNet-16-4 step, drawn, gathered and augmented": fed,
        "draw, send and gather": lambda k: gather(images, plan.batch(k).indices),
    }
    device = jax.devices()[0]
    print(
        f"device: {device.device_kind} ({device.platform}), jax {jax.__version__}, batch {GROUPS * GROUP_SIZE}, {dtype}"
    )
    medians = {}
    for name, step in timed.items():
        times = [1e6 * t for t in seconds_per_step(step, steps, repeats)]
        medians[name] = float(np.median(times))
        report(results, f"device: {name}", medians[name], "µs", spread(times))
    whole = medians["WideResNet-16-4 step, batch lies ready"]
    feeding = 100 * (medians["WideResNet-16-4 step, drawn, gathered and augmented"] - whole) / whole
    # Drawing overlaps with the device's work, so the difference of the two steps is what a run pays.
    report(results, "device: feeding and augmenting, share of a step", feeding, "%", "difference of the two steps")
    alone = 100 * medians["draw, send and gather"] / whole
    report(results, "device: feeding alone, were nothing overlapped", alone, "%", "draw, send and gather over the step")


def check_equal(results: list[dict]) -> None:
    """The same keys on the CPU and on the default device: are images and labels equal, bit for bit?"""
    import jax
    import jax.numpy as jnp

    from discover.lab.data import Augmentation

    specs = {
        "pad, crop, flip": Augmentation(padding=4, flip=True, scale="signed"),
        "Inception-style crop": Augmentation(crop_size=24, flip=True),
        "Mixup": Augmentation(mix="mixup", alpha=0.3, num_classes=CLASSES),
        "CutMix": Augmentation(mix="cutmix", num_classes=CLASSES, scale="signed"),
        "augmentations as clusters": Augmentation(padding=4, mix="cluster", num_classes=CLASSES),
    }
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (64, GROUP_SIZE, 32, 32, 3), dtype=np.uint8)
    labels, ids = rng.integers(0, CLASSES, (64, GROUP_SIZE)), np.arange(64) % 3
    for name, spec in specs.items():
        outcomes = []
        for device in (jax.devices("cpu")[0], jax.devices()[0]):
            with jax.default_device(device):
                keys = jax.random.split(jax.random.key(5), 64)
                outcomes.append(
                    jax.tree.map(np.asarray, jax.jit(jax.vmap(spec))(keys, images, labels, jnp.asarray(ids)))
                )
        unequal = sum(int(np.sum(a != b)) for a, b in zip(*outcomes))
        report(results, f"equality: {name}, cpu and {jax.devices()[0].platform}", unequal, "differences")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", action="store_true", help="also measure feeding the default jax device")
    parser.add_argument("--dtype", default="bfloat16", help="of the network's computation (default: bfloat16)")
    parser.add_argument("--steps", type=int, default=200, help="steps per repeat on the device (default: 200)")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path, help="write the measurements to this file")
    arguments = parser.parse_args()
    cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
    if cores:
        os.sched_setaffinity(0, {min(cores)})  # what one core does
    print(f"one core of {platform.processor() or platform.machine()}, numpy {np.__version__}")
    results: list[dict] = []
    bench_sampler(results, steps=2000, repeats=arguments.repeats)
    bench_decoding(results, seconds=1.0, repeats=arguments.repeats)
    if cores:
        os.sched_setaffinity(0, cores)
    if arguments.device:
        bench_device(results, arguments.steps, arguments.repeats, arguments.dtype)
        check_equal(results)
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
