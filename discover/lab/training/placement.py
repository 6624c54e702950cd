"""Where arrays go: the one place that knows about devices."""

from __future__ import annotations

from typing import Any

import jax


class Placement:
    """Puts everything on one device.

    Args:
        device: default: jax's first.
    """

    def __init__(self, device: Any = None):
        self.device = device if device is not None else jax.devices()[0]

    def data(self, array: Any) -> jax.Array:
        """The data set, or what else is the same at every step."""
        return jax.device_put(array, self.device)

    def split(self, images: Any, labels: Any) -> tuple[jax.Array, jax.Array]:
        """A split to evaluate on."""
        return self.data(images), self.data(labels)

    def batches(self, batches: Any) -> Any:
        """The batches of one dispatch: leaves [steps, S, G, ...]."""
        return jax.device_put(batches, self.device)

    def members(self, members: Any) -> Any:
        """The members' arguments: leaves [M]."""
        return jax.device_put(members, self.device)

    def like(self, abstract: Any) -> Any:
        """Says where each array of a state goes when it is restored: shapes with shardings."""
        sharding = jax.sharding.SingleDeviceSharding(self.device)
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), abstract)

    def lengths(self, state: Any) -> Any:
        """What of each leaf a checkpoint's fingerprint is of; None: all of everything."""
        del state
