"""How long a diagnosis will take: each kind of its work is timed on a little of it, and counted."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from discover.lab.diagnostics.embeddings import StreamingKMeans
from discover.lab.experiments.diagnose.gradient_sample import LARGEST_ROW, GradientSample

__all__ = ["seconds_needed"]

AT_ONCE = 64
"""Examples whose gradients are computed, and handed to k-means, at once."""
GRADIENT = 256
"""Numbers of a gradient that is projected for k-means."""
LOOK = 0.5
"""Seconds for which what is short is repeated: on a busy machine one of five calls may take as long as all others."""


def seconds_needed(work: GradientSample, numbers: Sequence[int]) -> float:
    """The seconds that a diagnosis will take, about: gradients, programs to compile, k-means, variances.

    Args:
      work: the sample, and what it is measured with.
      numbers: the k of k-means.
    """
    options, batches, images = work.options, work.config.batches, work.can_be_augmented
    sample, streamed = len(work.chosen), min(options.stream, work.size)
    few = np.resize(work.chosen, 2 * AT_ONCE)
    first = _seconds(lambda: work.gradients(work.start, few))
    again = _seconds(lambda: work.gradients(work.start, few), LOOK)
    examples = 3 * sample + options.warmup_steps * batches.groups * batches.group_size + images * 2 * sample
    programs = 2 + 2 * images  # the warm-up, gradients by layer; the augmentations, and gradients of what they make
    found = 0.0
    if numbers:
        passes = 2 * streamed + sample
        examples, programs = examples + 2 * passes, programs + 2  # gradients of the last layer, and projected
        shape = work.dataset.train.images.shape[1:]
        widths = [GRADIENT] * 2 + ([] if work.dataset.train.text else [min(math.prod(shape), LARGEST_ROW)])
        start, piece = _seconds_of_kmeans(max(numbers), sum(widths) // len(widths))
        # Both take longer the more clusters there are, and were timed with the most. Pixels come in large pieces.
        most = sum(numbers) / max(numbers)
        found = most * (len(widths) * start + 2 * passes / AT_ONCE * piece)
    clusterings = 3 + images + 3 * len(numbers)
    kinds = max(numbers, default=2)
    ids, probs = np.arange(sample) % kinds, np.full(kinds, 1 / kinds)
    variance = _seconds(lambda: work.estimate(np.eye(sample), ids, probs), LOOK)
    return examples * again / len(few) + programs * max(0.0, first - again) + found + 2 * clusterings * variance


def _seconds_of_kmeans(number: int, width: int) -> tuple[float, float]:
    """Of its start, of rows of so many numbers, and of one more piece of gradients."""
    rows = np.random.default_rng(0).normal(size=(1024, max(width, GRADIENT))).astype(np.float32)
    StreamingKMeans(2).partial_fit(rows)  # what happens only the first time is not timed
    start = _seconds(lambda: StreamingKMeans(number).partial_fit(rows[:, :width]))
    model = StreamingKMeans(number)
    model.partial_fit(rows[:, :GRADIENT])
    return start, _seconds(lambda: model.partial_fit(rows[:AT_ONCE, :GRADIENT]), LOOK)


def _seconds(call: Callable[[], Any], at_least: float = 0.0) -> float:
    """Of one call, over as many as take so many seconds."""
    began, times, passed = time.perf_counter(), 0, 0.0
    while not times or passed < at_least:
        call()
        times, passed = times + 1, time.perf_counter() - began
    return passed / times
