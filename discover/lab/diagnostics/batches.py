r"""What remains of the gradient's variance in a batch, by how the batch is drawn: as a formula, and measured.

The between-cluster part falls with the number of cluster-pure *groups*, not of examples. That is why purity hurts
Momentum so much, and what the advisor predicts from.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from discover.lab.diagnostics.variance import (
    ENDS,
    Estimate,
    Floats,
    Interval,
    check_ids,
    check_probs,
    count_members,
    unbiased_parts,
)

__all__ = [
    "BatchNoise",
    "NoiseEstimate",
    "batch_noise",
    "composed_batch_noise",
    "composition_factor",
    "estimated_batch_noise",
    "measured_batch_noise",
]

Composition = Literal["random", "shuffled"]


class BatchNoise(NamedTuple):
    """What remains of the variance in the mean gradient of a batch."""

    in_cluster: float
    between_cluster: float

    @property
    def total(self) -> float:
        return self.in_cluster + self.between_cluster

    @property
    def between_share(self) -> float:
        """The part of the batch's noise that lies between clusters: what Discover can remove."""
        return self.between_cluster / self.total if self.total > 0 else 0.0


def batch_noise(
    in_cluster: float,
    between_cluster: float,
    *,
    num_groups: int,
    group_size: int,
    composition: Composition = "random",
) -> BatchNoise:
    r"""The variance of a batch's mean gradient, by how the batch is drawn.

    For `random` batches, G groups of b examples, each group from one cluster picked by its probability,
    $V_{in}/(Gb) + V_{bet}/G$: the between-cluster part shrinks with the number of *groups*. For `shuffled` batches of
    G·b examples, $(V_{in} + V_{bet})/(Gb)$.

    Example:
      >>> round(batch_noise(8.0, 1.0, num_groups=2, group_size=32).between_share, 2)
      0.8
      >>> round(batch_noise(8.0, 1.0, num_groups=2, group_size=32, composition="shuffled").between_share, 2)
      0.11
    """
    if num_groups < 1 or group_size < 1:
        raise ValueError(f"num_groups and group_size must be at least 1, got {num_groups} and {group_size}")
    if composition not in ("random", "shuffled"):
        raise ValueError(f"composition must be random or shuffled, got {composition!r}")
    size = num_groups * group_size
    draws = num_groups if composition == "random" else size
    return BatchNoise(max(in_cluster, 0.0) / size, max(between_cluster, 0.0) / draws)


@dataclass(frozen=True)
class NoiseEstimate:
    """The noise of a batch's mean gradient with bootstrap confidence intervals."""

    in_cluster: Interval
    between_cluster: Interval
    total: Interval
    between_share: Interval

    @property
    def noise(self) -> BatchNoise:
        """The estimates without their intervals, none below 0."""
        return BatchNoise(max(self.in_cluster.value, 0.0), max(self.between_cluster.value, 0.0))


def _with_intervals(values: Sequence[float], resampled: Sequence[Floats]) -> NoiseEstimate:
    """From in-cluster part, between-cluster part and total to intervals: as the resamples lie around their own mean."""
    (inside, between, total), (inside_again, between_again, total_again) = values, resampled

    def interval(value: float, again: Floats) -> Interval:
        if not len(again):
            return Interval(value, value, value)
        low, high = np.quantile(again - again.mean(), ENDS)
        return Interval(value, float(value + low), float(value + high))

    def share(part: Floats, rest: Floats) -> Floats:
        part, rest = np.maximum(part, 0.0), np.maximum(rest, 0.0)
        return part / np.maximum(part + rest, 1e-300)

    # A share is no linear function of the parts: it is taken of parts that lie around the estimates, not the resamples.
    moved = [v + (a - a.mean() if len(a) else a) for v, a in ((between, between_again), (inside, inside_again))]
    shares = share(*moved)
    value = float(share(np.asarray(between), np.asarray(inside)))
    low, high = np.quantile(shares, ENDS) if len(shares) else (value, value)
    return NoiseEstimate(
        interval(inside, inside_again),
        interval(between, between_again),
        interval(total, total_again),
        Interval(value, float(min(low, value)), float(max(high, value))),
    )


def estimated_batch_noise(
    estimate: Estimate, *, num_groups: int, group_size: int, composition: Composition = "random"
) -> NoiseEstimate:
    """`batch_noise` of estimated variances, with the intervals of the same bootstrap.

    Args:
      estimate: of the variance's parts; its resamples are the bootstrap.
      num_groups: G.
      group_size: b.
      composition: how batches are drawn, see `batch_noise`.

    Example:
      >>> rng = np.random.default_rng(0)
      >>> from discover.lab.diagnostics.variance import estimate, gram_matrix
      >>> ids = np.repeat([0, 1], 40)
      >>> found = estimate(gram_matrix(ids[:, None] + rng.normal(size=(80, 3))), ids)
      >>> noise = estimated_batch_noise(found, num_groups=2, group_size=16)
      >>> noise.total.low < noise.total.value < noise.total.high
      True
    """
    batch_noise(0.0, 0.0, num_groups=num_groups, group_size=group_size, composition=composition)  # checks
    size = num_groups * group_size
    draws = num_groups if composition == "random" else size
    inside, between = estimate.in_cluster.value / size, estimate.between_cluster.value / draws
    again = np.asarray(estimate.resamples, np.float64).reshape(2, -1)
    parts = again[0] / size, again[1] / draws
    return _with_intervals((inside, between, inside + between), (*parts, parts[0] + parts[1]))


def _shares(drawn: ArrayLike, num_clusters: int) -> Floats:
    """`[T, N]`, every batch's share of each cluster, from the clusters `[T, G]` of its groups."""
    clusters = np.asarray(drawn)
    if clusters.ndim != 2 or clusters.min(initial=0) < 0 or clusters.max(initial=0) >= num_clusters:
        raise ValueError(f"drawn must be [batches, groups] with entries below {num_clusters}, got {clusters.shape}")
    return np.stack([np.mean(clusters == n, axis=1) for n in range(num_clusters)], axis=1)


def composition_factor(drawn: ArrayLike, probs: ArrayLike) -> Floats:
    r"""A matrix A `[R, N]` whose $A^T A$ is the mean of $(w − p)(w − p)^T$ over batches, w their shares of clusters.

    The between-cluster variance of such batches is $Σ_r ‖Σ_n A_{rn} g_n‖²$. For clusters drawn independently that mean
    is $(diag(p) − pp^T)/G$.

    Args:
      drawn: int `[T, G]`, the clusters of the groups of T batches.
      probs: `[N]`, p_n.

    Returns:
      A, with as few rows as its rank, at least one.
    """
    p = np.asarray(probs, np.float64)
    apart = _shares(drawn, len(p)) - p
    values, vectors = np.linalg.eigh(apart.T @ apart / len(apart))
    keep = values > 1e-9 * max(float(values[-1]), 1e-30)
    keep[-1] = True
    return np.sqrt(np.maximum(values[keep], 0.0))[:, None] * vectors[:, keep].T


def composed_batch_noise(
    gram: ArrayLike,
    cluster_ids: ArrayLike,
    drawn: ArrayLike,
    group_size: int,
    probs: ArrayLike | None = None,
    *,
    cluster_sizes: ArrayLike | None = None,
    memory: float = 0.0,
    bootstrap: int = 200,
    seed: int = 0,
) -> NoiseEstimate:
    r"""The noise of batches whose groups have the clusters `drawn`, however these were picked.

    With $w_n$ a batch's share of cluster n and $d = w − p$, the between-cluster part is the mean over the batches of
    $‖Σ d_n g_n‖²$, from which the scatter of the sample means, $Σ d_n² s_n²/m_n$, is subtracted: like `estimate`,
    unbiased. The in-cluster part is that of independent examples, $Σ w_n s_n²/|B|$. Where clusters are drawn
    independently both are `batch_noise`, in expectation.

    Args:
      gram: `[S, S]` of a sample of gradients.
      cluster_ids: `[S]`.
      drawn: int `[T, G]`, the clusters of the groups of T batches.
      group_size: b.
      probs: the clusters' probabilities; their shares of the sample if None.
      cluster_sizes: `[N]` sizes of the whole clusters, where the sample was taken from them without replacement;
        None treats the clusters as endless.
      memory: β of a momentum over the batches, in this order: the between-cluster part is then that of the momentum, in
        units of a batch, $(1 + β)/(1 − β)$ times as much. So it is what it was where clusters are drawn independently,
        and less where they take turns, since a momentum holds them all.
      bootstrap: resamples (within clusters) behind the intervals; 0 leaves them empty (low = high = value).
      seed: of the resampling.
    """
    k = np.asarray(gram, np.float64)
    p = check_probs(probs, cluster_ids)
    ids = check_ids(cluster_ids, k.shape[0], len(p))
    members = count_members(ids, p, 2)
    share = _shares(drawn, len(p))
    apart = _remembered(share - p, memory)
    second, mean = apart.T @ apart / len(apart), share.mean(axis=0)
    values, around = unbiased_parts(k, ids, p, members, second, mean, cluster_sizes, bootstrap, seed)
    size = np.asarray(drawn).shape[1] * group_size
    inside, between = float(values[0]) / size, float(values[1])
    again = around[0] / size, around[1]
    return _with_intervals((inside, between, inside + between), (*again, again[0] + again[1]))


def _remembered(apart: Floats, memory: float) -> Floats:
    """A momentum of rows [T, N] with β = `memory`, scaled so that independent rows keep their variance."""
    if not 0 <= memory < 1:
        raise ValueError(f"memory must be in [0, 1), got {memory}")
    averages, average = [], np.zeros(apart.shape[1])
    for row in apart:
        average = memory * average + (1 - memory) * row
        averages.append(average)
    begun = min(len(apart) // 2, math.ceil(3 / (1 - memory))) if memory else 0  # until the zeros are forgotten
    return np.array(averages[begun:]) * math.sqrt((1 + memory) / (1 - memory))


def measured_batch_noise(
    gram: ArrayLike,
    cluster_ids: ArrayLike,
    batches: ArrayLike,
    probs: ArrayLike | None = None,
    *,
    bootstrap: int = 1000,
    seed: int = 0,
) -> NoiseEstimate:
    r"""Measures E‖batch mean − g‖² over batches as they were really drawn, whatever drew them.

    The between-cluster part of a batch is $‖Σ_n (w_n − p_n) g_n‖²$, w_n its share of cluster n; the in-cluster part is
    what the batch's examples deviate from their clusters' means. Over many batches the parts add up to the total
    (in each single one a cross term of mean zero is left).

    Args:
      gram: `[S, S]` of the whole population, or of a sample that stands for it.
      cluster_ids: `[S]`.
      batches: int `[T, B]`, rows of the Gram matrix; −1 is padding.
      probs: the clusters' probabilities; their shares of the sample if None.
      bootstrap: resamples (of batches) behind the intervals, which are about these batches' chance, not that of the
        sample; 0 leaves them empty (low = high = value).
      seed: of the resampling.
    """
    k = np.asarray(gram, np.float64)
    p = check_probs(probs, cluster_ids)
    ids = check_ids(cluster_ids, k.shape[0], len(p))
    index = np.asarray(batches)
    if index.ndim != 2 or index.max(initial=-1) >= len(ids):
        raise ValueError(f"batches must be [batches, examples] with entries below {len(ids)}, got {index.shape}")
    counts = np.maximum(count_members(ids, p, 1), 1)
    even = (1.0 / counts)[ids]
    weights = np.zeros((index.shape[0], len(ids)))
    row, column = np.nonzero(index >= 0)
    np.add.at(weights, (row, index[row, column]), 1.0)
    weights /= np.maximum(weights.sum(axis=1, keepdims=True), 1.0)
    share = np.zeros((len(weights), len(p)))
    for n in range(len(p)):
        share[:, n] = weights[:, ids == n].sum(axis=1)

    def squared(w: Floats) -> Floats:
        return np.einsum("ts,ts->t", w @ k, w)

    expected = (p[ids] * even)[None]
    composed = share[:, ids] * even
    inside, between = squared(weights - composed), squared(composed - expected)
    total = squared(weights - expected)
    draws = np.random.default_rng(seed).integers(0, len(total), (bootstrap, len(total)))
    again = [values[draws].mean(axis=1) if bootstrap else np.zeros(0) for values in (inside, between, total)]
    return _with_intervals([float(values.mean()) for values in (inside, between, total)], again)
