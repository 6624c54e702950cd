"""What the alternatives share: the start of their chains, and the learning rate."""

from __future__ import annotations

from typing import Any

import optax

import discover


def gradient_with(l2: Any) -> optax.GradientTransformationExtraArgs:
    """The mean over the groups, with the penalty λ/2·‖θ‖² of all our trainings."""
    return optax.chain(discover.mean_over_groups(), optax.add_decayed_weights(l2))


def rate_at(learning_rate: optax.ScalarOrSchedule, step: Any) -> Any:
    return learning_rate(step) if callable(learning_rate) else learning_rate
