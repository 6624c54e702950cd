"""How long a diagnosis will take: each kind of its work is timed on a little of it, and counted."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from discover.lab.diagnostics.embeddings import StreamingKMeans
from discover.lab.experiments.diagnose.gradient_sample import GradientSample

__all__ = ["seconds_needed"]

AT_ONCE = 64
"""Examples whose gradients are computed, and handed to k-means, at once."""


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
    again = _seconds(lambda: work.gradients(work.start, few), times=3)
    examples = 3 * sample + options.warmup_steps * batches.groups * batches.group_size + images * 2 * sample
    programs = 2 + 2 * images  # the warm-up, gradients by layer; the augmentations, and gradients of what they make
    found = 0.0
    if numbers:
        passes = 2 * streamed + sample
        examples, programs = examples + 2 * passes, programs + 2  # gradients of the last layer, and projected
        start, piece = _seconds_of_kmeans(max(numbers))
        embeddings = 2 if work.dataset.train.text else 3
        found = embeddings * len(numbers) * (start + passes / AT_ONCE * piece)
    clusterings = 3 + images + 3 * len(numbers)
    kinds = max(numbers, default=2)
    ids, probs = np.arange(sample) % kinds, np.full(kinds, 1 / kinds)
    variance = _seconds(lambda: work.estimate(np.eye(sample), ids, probs), times=2)
    return examples * again / len(few) + programs * max(0.0, first - again) + found + 2 * clusterings * variance


def _seconds_of_kmeans(number: int) -> tuple[float, float]:
    """Of its start, and of one more piece."""
    rows = np.random.default_rng(0).normal(size=(AT_ONCE + 1024, 256)).astype(np.float32)
    StreamingKMeans(2).partial_fit(rows[AT_ONCE:])  # what happens only the first time is not timed
    model = StreamingKMeans(number)
    start = _seconds(lambda: model.partial_fit(rows[AT_ONCE:]))
    return start, _seconds(lambda: model.partial_fit(rows[:AT_ONCE]), times=5)


def _seconds(call: Callable[[], Any], times: int = 1) -> float:
    began = time.perf_counter()
    for _ in range(times):
        call()
    return (time.perf_counter() - began) / times
