"""An optimizer, a model, a clustering and a preset of one's own, each a few lines; `mine.toml` beside it uses them.

    discover compare --config examples/own_everything/mine.toml

Nothing is registered: a name such as `mine:my_optimizer` is found since the folder of the file is on the import path.
The arguments of the functions are keys of the configuration: `--set optimizer.beta=0.9`, `--set model.hidden=32`.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax

import discover
from discover.lab.data import Dataset
from discover.lab.experiments.config.config import BatchConfig, Config, TrainingConfig
from discover.lab.experiments.presets.preset import Preset
from discover.lab.models import Network


def my_optimizer(learning_rate: optax.ScalarOrSchedule, clusters: discover.Clusters, *, beta: float = 0.9):
    """One momentum per cluster, and a step of length one in every direction. (It has clusters since it takes them.)"""
    return optax.chain(
        discover.scale_by_discover(clusters, beta=beta),
        optax.scale_by_sign(),
        optax.scale_by_learning_rate(learning_rate),
    )


def my_model(example_shape: tuple[int, ...], num_classes: int, *, hidden: int = 64) -> Network:
    """One hidden layer, as two functions: `init(key)`, and `apply(params, x, key)` with logits [b, num_classes]."""
    size = int(np.prod(example_shape))

    def init(key: jax.Array):
        first, second = jax.random.split(key)
        return {
            "in": jax.random.normal(first, (size, hidden)) / np.sqrt(size),
            "out": jax.random.normal(second, (hidden, num_classes)) / np.sqrt(hidden),
        }

    def apply(params, x: jax.Array, key: jax.Array | None = None) -> jax.Array:
        return jnp.tanh(x.reshape(len(x), -1) @ params["in"]) @ params["out"]

    return Network(init, apply, size * hidden + hidden * num_classes)


def my_clusters(dataset: Dataset) -> np.ndarray:
    """A cluster id for each training example: five clusters, by how dark the image is."""
    ink = np.asarray(dataset.train.images).reshape(len(dataset.train), -1).mean(axis=1)
    return np.searchsorted(np.quantile(ink, [0.2, 0.4, 0.6, 0.8]), ink)


def my_preset() -> Preset:
    """The embedded digits in batches of two groups."""
    return Preset(
        name="my-digits",
        summary="Digits by how dark they are.",
        config=Config(
            batches=BatchConfig(groups=2, group_size=16),
            training=TrainingConfig(steps=200, seeds=(0, 1, 2), on_nonfinite="drop"),
        ),
        optimizers={"momentum": {"beta": 0.9}, "discover": {"beta": 0.95, "nu": 0.95}},
        compare=("momentum", "discover"),
        learning_rates=(0.03, 0.1, 0.3),
        target_accuracy=0.8,
        source="this example",
    )
