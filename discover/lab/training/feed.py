"""From the sampler to the devices: the batches of the steps of one dispatch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from discover.lab.data import BatchPlan
from discover.lab.training.step import StepBatch


def draw_batches(plans: Sequence[BatchPlan], first: int, count: int, length: int) -> StepBatch:
    """The batches of ``count`` steps, those of the plans side by side: NumPy arrays [length, S, ...].

    Args:
        plans: one for each seed.
        first: number of the first step, from 0.
        count: how many steps.
        length: the last step's batch is repeated up to so many steps, which nobody uses: one shape, one program.
    """
    drawn = [plan.batches(first, count) for plan in plans]
    repeated = np.minimum(np.arange(length), count - 1)
    return StepBatch(*(np.stack(arrays, axis=1)[repeated] for arrays in zip(*drawn)))
