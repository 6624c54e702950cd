"""Augmentation of one group on the device: what is done to images, in what order, as one small object.

An `Augmentation` is a pure function of (key, images, labels, cluster id), made to be used inside `jit` and under `vmap`
over the groups of a batch:

    images, labels = jax.vmap(augmentation)(jax.random.split(key, G), images, labels, cluster_ids)
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from discover.lab.data.errors import DataError
from discover.lab.data.images.crops import center_crop, flip, inception_crop, pad_and_crop
from discover.lab.data.images.mixing import cutmix, mixup, ratio_table
from discover.registry import choose

SCALES = ("unit", "signed")
MIXES = ("none", "mixup", "cutmix", "cluster")
_INVERSE = 1.0 / 255.0


def scale_pixels(images: jax.Array, scale: str) -> jax.Array:
    """Pixels 0…255 as float32 in [0, 1] ("unit") or [−1, 1] ("signed").

    One multiplication by a constant, after exact steps, so that every backend rounds the same way.
    """
    values = images.astype(jnp.float32)
    if scale == "signed":
        values = 2.0 * values - 255.0
    return values * jnp.float32(_INVERSE)


@dataclass(frozen=True)
class Augmentation:
    """What happens to the images of a group, in this order: crop, flip, mix, scale.

    Attributes:
        padding: zeros around the image before a random crop of its own size; 0 for none.
        crop_size: the side of an Inception-style crop; None for none. Not together with padding.
        flip: whether images are mirrored with probability ½. With mix="cluster" it is the first cluster's augmentation,
            whatever is said here.
        mix: "none", "mixup", "cutmix", or "cluster": the group's cluster id says which: 0 a flip, 1 Mixup, 2 CutMix
            (`Clustering.augmentations`).
        alpha: α of the mixing ratio's Beta(α, α).
        scale: "unit" for pixels in [0, 1], "signed" for [−1, 1].
        num_classes: the number of classes; needed where labels are mixed.

    >>> import jax, jax.numpy as jnp
    >>> augmentation = Augmentation(padding=1, flip=True)
    >>> images, labels = augmentation(jax.random.key(0), jnp.zeros((4, 8, 8, 1), jnp.uint8), jnp.arange(4))
    >>> images.shape, images.dtype.name, labels.shape
    ((4, 8, 8, 1), 'float32', (4,))
    """

    padding: int = 0
    crop_size: int | None = None
    flip: bool = False
    mix: str = "none"
    alpha: float = 1.0
    scale: str = "unit"
    num_classes: int | None = None

    def __post_init__(self):
        choose("mix", self.mix, MIXES)
        choose("scale", self.scale, SCALES)
        if self.padding < 0:
            raise DataError(f"padding must not be negative, got {self.padding}")
        if self.crop_size is not None and self.crop_size < 1:
            raise DataError(f"crop_size must be at least 1, got {self.crop_size}")
        if self.crop_size is not None and self.padding:
            raise DataError(f"crop_size and padding are two ways to crop: choose one, got {self.padding} for padding")
        ratio_table(float(self.alpha))  # an alpha that cannot be is told here
        if self.mix != "none" and not self.num_classes:
            raise DataError(f"mix {self.mix!r} needs num_classes=…, to make soft labels")

    @property
    def soft_labels(self) -> bool:
        """Whether labels come out as probabilities [b, C] rather than as classes [b]."""
        return self.mix != "none"

    def __call__(
        self, key: jax.Array, images: jax.Array, labels: jax.Array, cluster_id: jax.Array | int | None = None
    ) -> tuple[jax.Array, jax.Array]:
        """Augment one group.

        Args:
            key: a `jax.random` key of the group's own.
            images: uint8 [b, H, W, C] (or features [b, d], if no step of this augmentation needs images).
            labels: int [b].
            cluster_id: the group's cluster; needed with mix="cluster".

        Returns:
            Images, float32, and labels: int [b], or float32 [b, C] where `soft_labels`.
        """
        crop_key, flip_key, mix_key = jax.random.split(key, 3)
        if self.crop_size is not None:
            images = inception_crop(crop_key, images, self.crop_size)
        elif self.padding:
            images = pad_and_crop(crop_key, images, self.padding)
        if self.flip and self.mix != "cluster":
            images = flip(flip_key, images)
        if self.mix != "none":
            assert self.num_classes is not None
            labels = jax.nn.one_hot(labels, self.num_classes, dtype=jnp.float32)
            images, labels = self._mixed(flip_key, mix_key, images, labels, cluster_id)
        return self._scaled(images), labels

    def _mixed(self, flip_key, mix_key, images, labels, cluster_id) -> tuple[jax.Array, jax.Array]:
        if self.mix == "mixup":
            return mixup(mix_key, images, labels, self.alpha)
        if self.mix == "cutmix":
            return cutmix(mix_key, images, labels, self.alpha)
        if cluster_id is None:
            raise DataError("mix 'cluster' needs the group's cluster_id")

        def flipped(images, labels):
            return flip(flip_key, images).astype(jnp.float32), labels

        def mixed(images, labels):
            return mixup(mix_key, images, labels, self.alpha)

        def cut(images, labels):
            images, labels = cutmix(mix_key, images, labels, self.alpha)
            return images.astype(jnp.float32), labels

        return jax.lax.switch(cluster_id, [flipped, mixed, cut], images, labels)

    def evaluate(self, images: jax.Array) -> jax.Array:
        """Images as evaluation sees them: a central crop where there is a crop size, the same scale, nothing random."""
        if self.crop_size is not None:
            images = center_crop(images, self.crop_size)
        return self._scaled(images)

    def _scaled(self, images: jax.Array) -> jax.Array:
        return images if images.ndim == 2 else scale_pixels(images, self.scale)  # features have no pixels
