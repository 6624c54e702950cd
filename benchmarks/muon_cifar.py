"""Trains many settings on CIFAR-10 (JPEG) with class-pure batches, one after the other, each as one program on a GPU.

    python benchmarks/muon_cifar.py settings.json --out $OUT              # WideResNet-16-2, 1,758 steps of 256
    python benchmarks/muon_cifar.py --smoke --out /tmp/smoke              # a minute on a CPU, made-up pictures

A setting is an object, and the list is worked through in its order:

    {"optimizer": "discover_muon", "groups": 1, "batches": "random", "learning_rate": [0.001, 0.002], "seeds": [0, 1],
     "options": {"beta": 0.95, "nu": 0.95}}

`optimizer` is a name of the registry or `module:function`. `batches`: classes drawn at "random", in "turn", or
"shuffled". Fractions in `options` are arguments of the compiled program, so that settings that differ only in them
share one. Lists of learning rates and seeds are trained one after the other. Each training is printed when it ends,
and appended to `OUT/muon_cifar.jsonl`. No training starts that would not end within `LIMIT` seconds (an environment
variable, 540 unless told).
"""

from __future__ import annotations

import argparse
import json
import math
import os
import time
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax

import discover
from discover.gpu import device
from discover.lab.data import load
from discover.lab.data.images.augment import Augmentation
from discover.lab.models import build_network, conv_as_matmul
from discover.lab.training.learning_rate import schedule
from discover.registry import OPTIMIZERS

L2, WARMUP, CHUNKS = 5e-4, 50, 5
BATCHES = ("random", "turn", "shuffled")
SMOKE = [
    {"optimizer": "muon", "batches": "shuffled", "learning_rate": 0.003, "seeds": [0, 1]},
    {"optimizer": "discover_muon", "learning_rate": [0.001, 0.002], "options": {"beta": 0.9}},
    {"optimizer": "discover_muon", "groups": 2, "batches": "turn", "learning_rate": 0.002},
]


class Task:
    """The data on the device, the network, and how batches are drawn."""

    def __init__(self, images: Any, labels: Any, test_images: Any, test_labels: Any, *, size: int, width: int):
        self.images, self.labels = jnp.asarray(images), jnp.asarray(labels)
        self.test_images, self.test_labels = jnp.asarray(test_images), jnp.asarray(test_labels)
        self.num_classes, self.size = int(labels.max()) + 1, size
        members = [np.flatnonzero(labels == c) for c in range(self.num_classes)]
        self.members = jnp.asarray(np.stack([rows[: min(map(len, members))] for rows in members]))
        self.augment = Augmentation(padding=4, flip=True, scale="signed")
        self.on_cpu = device.is_cpu()
        self.width = width

    def network(self, by_group: bool) -> Any:
        conv = conv_as_matmul if self.on_cpu else discover.grouped_conv_general_dilated if by_group else None
        return build_network(
            "wide_resnet", self.images.shape[1:], self.num_classes, depth=16, width=self.width, dropout=0.0,
            dtype=jnp.float32 if self.on_cpu else jnp.bfloat16, conv_general_dilated=conv,
        )  # fmt: skip

    def batch(self, key: Any, step: Any, groups: int, batches: str) -> tuple[Any, Any, Any]:
        """Images [G, b, ...], labels [G, b], cluster ids [G] of a step."""
        ids_key, rows_key, augment_key = jax.random.split(jax.random.fold_in(key, step), 3)
        shape = (groups, self.size // groups)
        if batches == "turn":
            turns = self.num_classes // groups
            order = jax.random.permutation(jax.random.fold_in(key, -1 - step // turns), self.num_classes)
            ids = lax.dynamic_slice(order, ((step % turns) * groups,), (groups,))
        else:
            ids = jax.random.randint(ids_key, (groups,), 0, self.num_classes)
        if batches == "shuffled":
            rows = jax.random.randint(rows_key, shape, 0, len(self.labels))
        else:
            rows = self.members[ids[:, None], jax.random.randint(rows_key, shape, 0, self.members.shape[1])]
        images, labels = jax.vmap(self.augment)(
            jax.random.split(augment_key, groups), self.images[rows], self.labels[rows]
        )
        return images, labels, ids


def trainer(task: Task, setting: dict[str, Any], steps: int) -> Callable[..., Iterator[Any]]:
    """`train(hyper, seed)`: yields the loss of each fifth, then the accuracy in %."""
    entry, groups = OPTIMIZERS.find(setting["optimizer"]), setting["groups"]
    fixed = {name: value for name, value in setting["options"].items() if not _is_number(value)}
    clusters = discover.Clusters.uniform(task.num_classes)
    network = task.network(by_group=entry.clustered and groups > 1)

    def loss(params: Any, group: Any) -> Any:
        images, labels = group
        return optax.softmax_cross_entropy_with_integer_labels(network.apply(params, images), labels).mean()

    def optimizer(hyper: dict[str, Any]) -> Any:
        numbers = {name: value for name, value in hyper.items() if name != "learning_rate"}
        rate = schedule("cosine", hyper["learning_rate"], min(WARMUP, steps // 4), steps)
        first = (rate, clusters) if entry.clustered else (rate,)
        return entry.make(*first, **fixed, **numbers, l2=L2, mask=lambda p: jax.tree.map(lambda x: x.ndim > 1, p))

    def step(carry: Any, number: Any, hyper: Any, key: Any) -> Any:
        params, state = carry
        images, labels, ids = task.batch(key, number, groups, setting["batches"])
        if not entry.clustered:  # they average the groups anyway
            images, labels, ids = images.reshape(1, -1, *images.shape[2:]), labels.reshape(1, -1), ids[:1]
        losses, grads = discover.group_value_and_grad(loss)(params, (images, labels))
        return discover.take_step(optimizer(hyper), grads, state, params, cluster_ids=ids), losses.mean()

    def start(hyper: Any, seed: Any) -> Any:
        params = network.init(jax.random.key(seed))
        return params, optimizer(hyper).init(params)

    def some_steps(carry: Any, hyper: Any, seed: Any, first: Any) -> Any:
        key = jax.random.key(1000 + seed)
        numbers = first + jnp.arange(steps // CHUNKS)
        carry, losses = lax.scan(lambda c, t: step(c, t, hyper, key), carry, numbers)
        return carry, losses.mean()

    def accuracy(params: Any) -> Any:
        images = task.test_images.reshape(-1, min(500, len(task.test_images)), *task.test_images.shape[1:])
        guess = lax.map(lambda x: network.apply(params, task.augment.evaluate(x)).argmax(-1), images)
        return 100 * (guess.reshape(-1) == task.test_labels).mean()

    begin, go_on, test = jax.jit(start), jax.jit(some_steps, donate_argnums=0), jax.jit(accuracy)

    def train(hyper: dict[str, Any], seed: int) -> Iterator[Any]:
        carry = begin(hyper, seed)
        for chunk in range(CHUNKS):
            carry, loss = go_on(carry, hyper, seed, jnp.int32(chunk * (steps // CHUNKS)))
            yield loss
        yield test(carry[0])

    return train


def _is_number(value: Any) -> bool:
    return isinstance(value, float)


def expanded(settings: list[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], float, int]]:
    """Each setting with everything in it, a learning rate and a seed."""
    for given in settings:
        setting = {"groups": 1, "batches": "random", "seeds": [0], "options": {}} | given
        unknown = set(setting) - {"optimizer", "groups", "batches", "learning_rate", "seeds", "options"}
        if unknown or setting["batches"] not in BATCHES:
            raise ValueError(f"unknown {', '.join(sorted(unknown)) or setting['batches']!r} in {given}")
        rates, seeds = setting.pop("learning_rate"), setting.pop("seeds")
        for rate, seed in product(rates if isinstance(rates, list) else [rates], seeds):
            yield setting, rate, seed


def read_data(smoke: bool) -> Task:
    """CIFAR-10 from `.data`, kept as arrays for the next run on the machine; or a few made-up pictures."""
    if smoke:
        rng = np.random.default_rng(0)
        labels = np.arange(200) % 4
        images = (40 * labels[:, None, None, None] + rng.integers(0, 60, (200, 32, 32, 3))).astype(np.uint8)
        return Task(images, labels, images[:100], labels[:100], size=8, width=1)
    kept = Path(".data/cifar10.npz")
    if not kept.exists():
        data = load("cifar10", ".data/cifar10-jpeg.tar.xz")
        arrays = (data.train.images, data.train.labels, data.test.images, data.test.labels)
        np.savez(kept, *map(np.asarray, arrays))
    with np.load(kept) as file:
        return Task(*(file[f"arr_{n}"] for n in range(4)), size=256, width=2)


class Runs:
    """Trains settings, compiling each program once, and tells about each training when it ends."""

    def __init__(self, task: Task, steps: int, out: Path):
        self.task, self.steps, self.out = task, steps, out
        self.trainers: dict[str, Callable[..., Iterator[Any]]] = {}
        self.longest = 0.0  # seconds of a training, compiling not counted
        out.mkdir(parents=True, exist_ok=True)

    def run(self, setting: dict[str, Any], rate: float, seed: int) -> None:
        options = setting["options"]
        hyper = {name: value for name, value in options.items() if _is_number(value)} | {"learning_rate": float(rate)}
        fixed = {name: value for name, value in options.items() if name not in hyper}
        key = json.dumps([{**setting, "options": fixed}, sorted(hyper)])
        started, known = time.monotonic(), key in self.trainers
        if not known:
            self.trainers[key] = trainer(self.task, setting, self.steps)
        history: list[float] = []
        for number in self.trainers[key](hyper, seed):
            history.append(float(number))
            if not math.isfinite(history[-1]):
                break
        seconds = time.monotonic() - started
        self.longest = max(self.longest, seconds) if known else self.longest
        self.tell(setting, rate, seed, seconds, history)

    def tell(self, setting: dict[str, Any], rate: float, seed: int, seconds: float, history: list[float]) -> None:
        losses, accuracy = history[:CHUNKS], history[-1] if len(history) > CHUNKS else math.nan
        finished = all(map(math.isfinite, [*losses, accuracy]))
        record = setting | {"learning_rate": rate, "seed": seed, "steps": self.steps, "seconds": round(seconds, 1)}
        record |= {"losses": [round(x, 4) for x in losses], "accuracy": round(accuracy, 2) if finished else None}
        with (self.out / "muon_cifar.jsonl").open("a") as file:
            file.write(json.dumps(record) + "\n")
        options = " ".join(f"{name}={value}" for name, value in setting["options"].items())
        what = f"{setting['optimizer']:14s} G={setting['groups']} {setting['batches']:8s} lr={rate:<7g} seed={seed}"
        end = f"accuracy {accuracy:.2f}" if finished else "diverged"
        print(f"{what} {options:36s} {seconds:5.1f} s  loss {losses[-1]:.3f}  {end}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("settings", type=Path, nargs="?", help="a JSON list")
    parser.add_argument("--out", type=Path, required=True, help="a folder; results are appended")
    parser.add_argument("--steps", type=int, default=1758)
    parser.add_argument("--skip", type=int, default=0, help="begin after this many settings of the list")
    parser.add_argument("--smoke", action="store_true", help="made-up pictures, a small network, ten steps")
    arguments = parser.parse_args()
    began, limit = time.monotonic(), float(os.environ.get("LIMIT", "540"))
    settings = json.loads(arguments.settings.read_text()) if arguments.settings else SMOKE
    work = list(expanded(settings[arguments.skip :]))
    runs = Runs(read_data(arguments.smoke), 10 if arguments.smoke else arguments.steps, arguments.out)
    print(f"{jax.devices()[0].device_kind}: {len(work)} runs, data after {time.monotonic() - began:.0f} s", flush=True)
    for setting, rate, seed in work:
        if time.monotonic() - began + runs.longest > limit:
            print(f"out of time before {json.dumps(setting)}, learning rate {rate}, seed {seed}", flush=True)
            return
        runs.run(setting, rate, seed)


if __name__ == "__main__":
    main()
