"""What happens to examples on the device, between the data set and the network."""

from __future__ import annotations

from collections.abc import Callable

import jax

from discover.lab.data import Augmentation, DataError, Dataset
from discover.lab.experiments.config.config import Config
from discover.lab.training.step import Prepare


def build_prepare(config: Config, dataset: Dataset) -> tuple[Prepare, Callable[[jax.Array], jax.Array]]:
    """Returns the preparation of a training group, and that of evaluation examples."""
    data = config.data
    mix = "cluster" if config.clusters.entry.augments else data.mix
    if len(dataset.example_shape) != 3 and (
        data.padding or data.crop_size or data.flip or mix in ("cutmix", "cluster")
    ):
        shape = dataset.example_shape
        raise DataError(f"cropping, flipping and mixing need images (H, W, C), got examples of shape {shape}")
    augmentation = Augmentation(
        padding=data.padding,
        crop_size=data.crop_size,
        flip=data.flip,
        mix=mix,
        alpha=data.mix_alpha,
        scale=data.scale,
        num_classes=dataset.num_classes,
    )

    def prepare(
        key: jax.Array, images: jax.Array, labels: jax.Array, cluster_id: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        if dataset.next_byte:
            return images, jax.nn.one_hot(images, dataset.num_classes)
        x, targets = augmentation(key, images, labels, cluster_id)
        if not augmentation.soft_labels:
            targets = jax.nn.one_hot(targets, dataset.num_classes)
        return x, targets

    return prepare, augmentation.evaluate
