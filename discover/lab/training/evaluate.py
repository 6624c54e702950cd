"""Loss and accuracy on a whole split."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from discover.lab.training.step import StepMetrics


def make_evaluate(
    apply: Callable[..., jax.Array], scale: Callable[[jax.Array], jax.Array], *, batch_size: int
) -> Callable[[Any, jax.Array, jax.Array], StepMetrics]:
    """Builds ``evaluate(params, images, labels)``: mean loss and accuracy, without dropout or augmentation.

    Args:
        apply: ``apply(params, x) -> logits``.
        scale: turns stored examples into the network's input.
        batch_size: examples computed at once; the last batch may be smaller.
    """

    def sums(params: Any, images: jax.Array, labels: jax.Array) -> tuple[jax.Array, jax.Array]:
        logits = apply(params, scale(images))
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
        return jnp.sum(losses), jnp.sum(jnp.argmax(logits, axis=-1) == labels)

    def evaluate(params: Any, images: jax.Array, labels: jax.Array) -> StepMetrics:
        count = labels.shape[0]
        whole = count // batch_size * batch_size
        loss, right = jnp.zeros(()), jnp.zeros((), jnp.int32)
        if whole:
            batches = (
                images[:whole].reshape(-1, batch_size, *images.shape[1:]),
                labels[:whole].reshape(-1, batch_size),
            )
            losses, rights = jax.lax.map(lambda batch: sums(params, *batch), batches)
            loss, right = jnp.sum(losses), jnp.sum(rights)
        if whole < count:
            last_loss, last_right = sums(params, images[whole:], labels[whole:])
            loss, right = loss + last_loss, right + last_right
        return StepMetrics(loss / count, right / count)

    return evaluate
