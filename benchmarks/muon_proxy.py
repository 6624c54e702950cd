"""A proxy of CIFAR-10 that trains in a second on a CPU: digits, a deep perceptron, one class a batch.

    python benchmarks/muon_proxy.py                           # the table
    python benchmarks/muon_proxy.py '[{"optimizer": "discover_muon", "learning_rate": [0.005, 0.01], "beta": 0.97}]'

Six hidden layers of 64, batches of 32, 150 steps, cosine after 5 steps of warm-up, means and standard deviations over
five seeds. A setting is an object: `optimizer` (a name of the registry, or `module:function`), `learning_rate`,
`batches` ("random": one class each; "turn"; "shuffled"), `seeds` (a list), `buffered_layers` (so many of the last
layers have buffers, the others one momentum), and the optimizer's own arguments. A list in place of a number stands for
each of its values; all of them, and the seeds, train side by side in one program.
"""

from __future__ import annotations

import argparse
import functools
import json
import time
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import discover
from discover.lab.data import load
from discover.lab.models import build_network
from discover.lab.training.learning_rate import schedule
from discover.registry import OPTIMIZERS

STEPS, SIZE, WARMUP = 150, 32, 5
TABLE = [
    {"optimizer": "muon", "learning_rate": 0.01, "beta": 0.9, "nu": 0.9},
    {"optimizer": "discover_muon", "learning_rate": 0.01},
    {"optimizer": "discover_muon", "learning_rate": 0.01, "damping": 0.3},
    {"optimizer": "muon", "learning_rate": 0.01, "beta": 0.9, "nu": 0.9, "batches": "shuffled"},
]


@functools.cache
def data() -> tuple[Any, ...]:
    """Training images and labels, the rows of each class [N, n], test images and labels."""
    digits = load("digits", test_fraction=0.36)
    rows = [np.flatnonzero(digits.train.labels == c) for c in range(digits.num_classes)]
    members = np.stack([one[: min(map(len, rows))] for one in rows])

    def pixels(split: Any) -> Any:
        return jnp.asarray(split.images.reshape(len(split), -1), jnp.float32) / split.images.max()

    train, test = digits.train, digits.test
    return pixels(train), jnp.asarray(train.labels), jnp.asarray(members), pixels(test), jnp.asarray(test.labels)


def last_layers(params: Any, number: int) -> Any:
    """A mask of the last layers, the head among them."""
    hidden = len(params["layers"])
    layers = {k: jax.tree.map(lambda _, on=hidden - k < number: on, layer) for k, layer in params["layers"].items()}
    return {"layers": layers, "head": jax.tree.map(lambda _: number > 0, params["head"])}


def accuracies(setting: dict[str, Any], hidden: int = 6, steps: int = STEPS) -> dict[str, np.ndarray]:
    """Test accuracies in %, one a seed, by the numbers of the setting."""
    fixed = {"batches": "random", "seeds": [0, 1, 2, 3, 4]} | setting
    entry, batches, seeds = OPTIMIZERS.find(fixed.pop("optimizer")), fixed.pop("batches"), fixed.pop("seeds")
    if "buffered_layers" in fixed:
        fixed["buffered"] = functools.partial(last_layers, number=fixed.pop("buffered_layers"))
    lists = {
        name: np.atleast_1d(fixed.pop(name)) for name in setting if name in ("learning_rate", *entry.hyperparameters)
    }
    images, labels, members, test_images, test_labels = data()
    clusters = discover.Clusters.uniform(len(members))
    network = build_network("mlp", images.shape[1:], len(members), depth=hidden, width=64)

    def loss(params: Any, rows: Any) -> Any:
        logits = network.apply(params, images[rows])
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels[rows]).mean()

    def train(numbers: dict[str, Any], seed: Any) -> Any:
        numbers = dict(numbers)
        rate = schedule("cosine", numbers.pop("learning_rate"), WARMUP, steps)
        tx = entry.make(*([rate, clusters] if entry.clustered else [rate]), **fixed, **numbers)
        key = jax.random.key(1000 + seed)

        def step(carry: Any, number: Any) -> Any:
            class_key, row_key = jax.random.split(jax.random.fold_in(key, number))
            one = jax.random.randint(class_key, (), 0, len(members))
            if batches == "turn":
                turn = jax.random.fold_in(key, -1 - number // len(members))
                one = jax.random.permutation(turn, len(members))[number % len(members)]
            rows = members[one, jax.random.randint(row_key, (1, SIZE), 0, members.shape[1])]
            if batches == "shuffled":
                rows = jax.random.randint(row_key, (1, SIZE), 0, len(images))
            _, grads = discover.group_value_and_grad(loss)(carry[0], rows)
            return discover.take_step(tx, grads, carry[1], carry[0], cluster_ids=one[None]), None

        # He's start: with the smaller one of dense layers six of them learn late, and the seeds differ more.
        params = jax.tree.map(lambda p: 2**0.5 * p if p.ndim > 1 else p, network.init(jax.random.key(seed)))
        (params, _), _ = jax.lax.scan(step, (params, tx.init(params)), jnp.arange(steps))
        return 100 * jnp.mean(network.apply(params, test_images).argmax(-1) == test_labels)

    rows = [dict(zip(lists, values)) for values in product(*lists.values())]
    numbers = {name: jnp.array([row[name] for row in rows], jnp.float32) for name in lists}
    over_seeds = jax.vmap(train, (None, 0))
    result = jax.jit(jax.vmap(over_seeds, (0, None)))(numbers, jnp.asarray(seeds))
    return {
        " ".join(f"{name}={value:g}" for name, value in row.items()): one for row, one in zip(rows, np.asarray(result))
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("settings", nargs="?", help="a JSON list; without it the table")
    parser.add_argument("--hidden", type=int, default=6, help="hidden layers")
    parser.add_argument("--steps", type=int, default=STEPS)
    arguments = parser.parse_args()
    for setting in TABLE if arguments.settings is None else json.loads(arguments.settings):
        began = time.monotonic()
        result = accuracies(setting, arguments.hidden, arguments.steps)
        rest = " ".join(f"{name}={value}" for name, value in setting.items() if name in ("batches", "damping_clusters"))
        print(f"{setting['optimizer']} {rest}  ({time.monotonic() - began:.0f} s)")
        for numbers, row in sorted(result.items(), key=lambda item: -item[1].mean()):
            print(f"  {row.mean():.1f} ± {row.std(ddof=1):.1f}  {numbers}", flush=True)


if __name__ == "__main__":
    main()
