r"""What remains of the gradient's variance in a batch, by how the batch is drawn: as a formula, and measured.

The between-cluster part falls with the number of cluster-pure *groups*, not of examples. That is why purity hurts
Momentum so much, and what the advisor predicts from.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from discover.diagnostics.variance import Floats, check_ids, check_probs, count_members

__all__ = ["BatchNoise", "MeasuredNoise", "batch_noise", "composed_batch_noise", "measured_batch_noise"]

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


def composed_batch_noise(
    gram: ArrayLike, cluster_ids: ArrayLike, drawn: ArrayLike, group_size: int, probs: ArrayLike | None = None
) -> BatchNoise:
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

    Raises:
      ValueError: shapes or ids do not fit, or a cluster has fewer than 2 examples in the sample.
    """
    k = np.asarray(gram, np.float64)
    p = check_probs(probs, cluster_ids)
    ids = check_ids(cluster_ids, k.shape[0], len(p))
    counts = np.maximum(count_members(ids, p, 2), 1)
    clusters = np.asarray(drawn)
    if clusters.ndim != 2 or clusters.min(initial=0) < 0 or clusters.max(initial=0) >= len(p):
        raise ValueError(f"drawn must be [batches, groups] with entries below {len(p)}, got shape {clusters.shape}")
    share = np.stack([np.mean(clusters == n, axis=1) for n in range(len(p))], axis=1)
    even = np.zeros((len(p), len(ids)))
    even[ids, np.arange(len(ids))] = (1.0 / counts)[ids]
    inner = even @ k @ even.T
    spread = (even @ np.diagonal(k) - np.diagonal(inner)) * counts / np.maximum(counts - 1, 1)
    apart = share - p
    second = apart.T @ apart / len(apart)
    between = float(np.sum(second * inner) - np.diagonal(second) @ (spread / counts))
    inside = float(share.mean(axis=0) @ spread) / (clusters.shape[1] * group_size)
    return BatchNoise(max(inside, 0.0), max(between, 0.0))


@dataclass(frozen=True)
class MeasuredNoise:
    """The noise of batches that were drawn; `error` is the standard error of `total`."""

    in_cluster: float
    between_cluster: float
    total: float
    error: float


def measured_batch_noise(
    gram: ArrayLike, cluster_ids: ArrayLike, batches: ArrayLike, probs: ArrayLike | None = None
) -> MeasuredNoise:
    r"""Measures E‖batch mean − g‖² over batches as they were really drawn, whatever drew them.

    The between-cluster part of a batch is $‖Σ_n (w_n − p_n) g_n‖²$, w_n its share of cluster n; the in-cluster part is
    what the batch's examples deviate from their clusters' means. Over many batches the parts add up to the total
    (in each single one a cross term of mean zero is left).

    Args:
      gram: `[S, S]` of the whole population, or of a sample that stands for it.
      cluster_ids: `[S]`.
      batches: int `[T, B]`, rows of the Gram matrix; −1 is padding.
      probs: the clusters' probabilities; their shares of the sample if None.

    Returns:
      Means over the T batches.
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
    total = squared(weights - expected)
    return MeasuredNoise(
        in_cluster=float(squared(weights - composed).mean()),
        between_cluster=float(squared(composed - expected).mean()),
        total=float(total.mean()),
        error=float(total.std(ddof=1) / np.sqrt(len(total))) if len(total) > 1 else float("nan"),
    )
