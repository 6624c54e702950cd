"""Loss and accuracy on a whole split, and at which parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import optax

from discover import igt_eval_params
from discover.lab.training.devices import Devices
from discover.lab.training.step import StepMetrics, by_example

Evaluate = Callable[[Any, jax.Array, jax.Array], StepMetrics]
"""``evaluate(params, images, labels)``."""


@runtime_checkable
class JudgedElsewhere(Protocol):
    """A part of an optimizer's state, anywhere in it, that knows where to evaluate: at an average, for one."""

    def eval_params(self, params: Any) -> Any:
        """The parameters to evaluate, from those in training."""
        ...


def judged_elsewhere(opt_state: Any) -> list[JudgedElsewhere]:
    """The parts of the state that know better than the parameters in training; IGT's is not among them."""
    nodes = jax.tree.leaves(opt_state, is_leaf=lambda part: isinstance(part, JudgedElsewhere))
    return [node for node in nodes if isinstance(node, JudgedElsewhere)]


def eval_params(opt_state: Any, params: Any) -> Any:
    """The parameters by which one member is to be judged: as its optimizer's state says, or those in training."""
    own = judged_elsewhere(opt_state)
    return own[0].eval_params(params) if own else igt_eval_params(opt_state, params)


def make_evaluate(
    apply: Callable[..., jax.Array],
    scale: Callable[[jax.Array], jax.Array],
    *,
    batch_size: int,
    devices: Devices | None = None,
) -> Evaluate:
    """Builds ``evaluate(params, images, labels)``: mean loss and accuracy, without dropout or augmentation."""
    devices = Devices() if devices is None else devices

    def sums(params: Any, images: jax.Array, labels: jax.Array) -> tuple[jax.Array, jax.Array]:
        logits = apply(params, scale(images))
        # A network that answers for every byte of a text is asked for these bytes.
        targets = jnp.maximum(labels, 0) if logits.ndim == 2 else images.astype(jnp.int32)
        losses = by_example(optax.softmax_cross_entropy_with_integer_labels(logits, targets))
        right = by_example(jnp.argmax(logits, axis=-1) == targets)
        return jnp.sum(jnp.where(labels >= 0, losses, 0)), jnp.sum(jnp.where(labels >= 0, right, 0))

    @devices.sum_of_parts
    def totals(params: Any, images: jax.Array, labels: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array | int]:
        whole = len(labels) // batch_size * batch_size
        loss, right = jnp.zeros(()), jnp.zeros(())
        if whole:
            batches = (
                images[:whole].reshape(-1, batch_size, *images.shape[1:]),
                labels[:whole].reshape(-1, batch_size),
            )
            losses, rights = jax.lax.map(lambda batch: sums(params, *batch), batches)
            loss, right = jnp.sum(losses), jnp.sum(rights)
        if whole < len(labels):
            last_loss, last_right = sums(params, images[whole:], labels[whole:])
            loss, right = loss + last_loss, right + last_right
        return loss, right, jnp.sum(labels >= 0) if devices.several else len(labels)

    def evaluate(params: Any, images: jax.Array, labels: jax.Array) -> StepMetrics:
        loss, right, count = totals(params, images, labels)
        return StepMetrics(loss / count, right / count)

    return evaluate
