"""What happens to examples on the device, between the data set and the network."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from discover.data import Dataset
from discover.experiments.config import Config
from discover.training.step import Prepare


def build_prepare(config: Config, dataset: Dataset) -> tuple[Prepare, Callable[[jax.Array], jax.Array]]:
    """Returns the preparation of a training group, and the scaling of evaluation examples."""

    def scale(images: jax.Array) -> jax.Array:
        if images.dtype != jnp.uint8:
            return images.astype(jnp.float32)
        unit = images.astype(jnp.float32) / 255
        return unit if config.data.scale == "unit" else 2 * unit - 1

    def prepare(key: jax.Array, images: jax.Array, labels: jax.Array, cluster_id: Any) -> Any:
        del key, cluster_id
        return scale(images), jax.nn.one_hot(labels, dataset.num_classes)

    return prepare, scale
