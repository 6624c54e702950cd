r"""How much of the gradient's noise lies between clusters: the one number that says whether Discover can help.

For example gradients $x$ of a mixture of clusters with probabilities $p_n$ and means $g_n$, $g = Σ p_n g_n$:

    total = Σ p_n E‖x − g‖²  =  Σ p_n E‖x − g_n‖²  +  Σ p_n‖g_n − g‖²  =  in-cluster + between-cluster

`decompose` is this identity on a sample, exactly. `estimate` gives unbiased estimates of the population's parts with
bootstrap intervals. What remains of each part in a batch is in `discover.lab.diagnostics.batches`.

Everything but `decompose` works on the *Gram matrix* of the sample's gradients: inner products are all that variances
need, so one pass over the model serves every clustering, every bootstrap resample and every batch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = [
    "Decomposition",
    "Estimate",
    "Interval",
    "decompose",
    "estimate",
    "gram_matrix",
]

Floats = NDArray[np.float64]
ENDS = (0.025, 0.975)  # of every interval: 95%


class Decomposition(NamedTuple):
    """The parts of the variance of one sample; `total` = `in_cluster` + `between_cluster`."""

    total: float
    in_cluster: float
    between_cluster: float
    mean_square: float  # ‖g‖², the signal


def check_ids(ids: ArrayLike, num_examples: int, num_clusters: int) -> NDArray[np.intp]:
    array = np.asarray(ids)
    if array.shape != (num_examples,):
        raise ValueError(f"cluster_ids must have one entry per example ({num_examples}), got shape {array.shape}")
    if array.min(initial=0) < 0 or array.max(initial=0) >= num_clusters:
        raise ValueError(f"cluster_ids must lie in 0..{num_clusters - 1}, got {array.min()} to {array.max()}")
    return array.astype(np.intp)


def check_probs(probs: ArrayLike | None, ids: ArrayLike) -> Floats:
    if probs is None:
        counts = np.bincount(np.asarray(ids, dtype=np.intp)).astype(np.float64)
        return counts / counts.sum()
    p = np.asarray(probs, np.float64)
    if p.ndim != 1 or np.any(p < 0) or abs(p.sum() - 1.0) > 1e-6:
        raise ValueError(f"probs must be a vector that is not negative and sums to 1, got sum {p.sum():.6g}")
    return p


def count_members(ids: NDArray[np.intp], probs: Floats, minimum: int) -> NDArray[np.intp]:
    counts = np.bincount(ids, minlength=len(probs))
    short = np.flatnonzero((counts < minimum) & (probs > 0))
    if len(short):
        n = int(short[0])
        raise ValueError(f"cluster {n} has {counts[n]} examples in the sample; at least {minimum} are needed")
    return counts


def finite_factors(counts: NDArray[np.intp], cluster_sizes: ArrayLike | None) -> tuple[Floats, Floats]:
    """What a sample without replacement from clusters of these sizes leaves to chance; ones for endless clusters.

    Returns:
      `[N]` 1 − counts/size, the factor of a sample mean's variance; and (size − 1)/size, from the unbiased sample
      variance to that of the whole cluster.
    """
    if cluster_sizes is None:
        return np.ones(len(counts)), np.ones(len(counts))
    sizes = np.asarray(cluster_sizes, np.float64)
    if sizes.shape != counts.shape or np.any(sizes < counts):
        raise ValueError(f"cluster_sizes must be at least the sample's counts {counts.tolist()}, got {sizes.tolist()}")
    return 1.0 - np.maximum(counts, 1) / np.maximum(sizes, 1), (sizes - 1.0) / np.maximum(sizes, 1)


def decompose(gradients: ArrayLike, cluster_ids: ArrayLike, probs: ArrayLike | None = None) -> Decomposition:
    """Splits the variance of a sample into in-cluster and between-cluster parts; they add up exactly.

    Args:
      gradients: `[S, P]`, one flattened gradient per example.
      cluster_ids: `[S]`, the example's cluster.
      probs: the clusters' probabilities; their shares of the sample if None.

    Returns:
      The parts, every example of cluster n weighing p_n / (examples of n in the sample).

    Example:
      >>> parts = decompose([[0.0], [2.0], [10.0], [12.0]], [0, 0, 1, 1])
      >>> parts.in_cluster, parts.between_cluster, parts.total
      (1.0, 25.0, 26.0)
    """
    x = np.asarray(gradients, np.float64)
    if x.ndim != 2:
        raise ValueError(f"gradients must be [examples, parameters], got shape {x.shape}")
    p = check_probs(probs, cluster_ids)
    ids = check_ids(cluster_ids, x.shape[0], len(p))
    counts = count_members(ids, p, 1)
    weight = (p / np.maximum(counts, 1))[ids]
    means = np.zeros((len(p), x.shape[1]))
    np.add.at(means, ids, x)
    means /= np.maximum(counts, 1)[:, None]
    mean = p @ means
    return Decomposition(
        total=float(weight @ np.sum((x - mean) ** 2, axis=1)),
        in_cluster=float(weight @ np.sum((x - means[ids]) ** 2, axis=1)),
        between_cluster=float(p @ np.sum((means - mean) ** 2, axis=1)),
        mean_square=float(mean @ mean),
    )


def gram_matrix(gradients: ArrayLike) -> Floats:
    """The inner products of all pairs of rows of `[S, P]` gradients, in float64."""
    x = np.asarray(gradients)
    if x.ndim != 2:
        raise ValueError(f"gradients must be [examples, parameters], got shape {x.shape}")
    # Products in the gradients' own precision, with the mean taken out first: what remains is what varies, so
    # float32 keeps its digits; the mean's own products are added back in float64.
    wide = x.astype(np.float64)
    mean = wide.mean(axis=0)
    centred = wide - mean
    cross = centred @ mean
    return centred @ centred.T + cross[:, None] + cross[None, :] + mean @ mean


@dataclass(frozen=True)
class Interval:
    """An estimate and its 95% bootstrap interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Estimate:
    """Unbiased estimates of the variance's parts; `parts` of one draw can be negative where the truth is near 0.

    Attributes:
      in_cluster: Σ p_n E‖x − g_n‖².
      between_cluster: Σ p_n‖g_n − g‖².
      total: their sum.
      mean_square: ‖g‖², the signal that the noise hides.
      resamples: `[2, R]`, the bootstrap's in-cluster and between-cluster parts, around the estimates.
    """

    in_cluster: Interval
    between_cluster: Interval
    total: Interval
    mean_square: Interval
    resamples: Floats = field(default_factory=lambda: np.zeros((2, 0)), repr=False, compare=False)

    @property
    def between_share(self) -> float:
        """The part of the variance that lies between clusters, in [0, 1]."""
        between = max(self.between_cluster.value, 0.0)
        whole = max(self.in_cluster.value, 0.0) + between
        return between / whole if whole > 0 else 0.0


def _cluster_moments(gram: Floats, weights: Floats, ids: NDArray[np.intp], num: int) -> tuple[Floats, Floats]:
    """Mean squares `[R, N]` and inner products of means `[R, N, N]` for example weights `[R, S]`."""
    member = np.zeros((num, len(ids)))
    member[ids, np.arange(len(ids))] = 1.0
    rows = weights[:, None, :] * member[None]  # [R, N, S], rows sum to 1
    products = (rows.reshape(-1, len(ids)) @ gram).reshape(rows.shape)
    inner = np.einsum("rns,rms->rnm", products, rows)
    squares = rows @ np.diagonal(gram)
    return squares, inner


def estimate(
    gram: ArrayLike,
    cluster_ids: ArrayLike,
    probs: ArrayLike | None = None,
    *,
    cluster_sizes: ArrayLike | None = None,
    bootstrap: int = 200,
    seed: int = 0,
) -> Estimate:
    r"""Unbiased estimates of the population's in-cluster and between-cluster variance.

    With $m_n$ examples, sample means $\bar x_n$ and unbiased sample variances $s_n²$,

    $$\hat V_{in} = Σ p_n s_n², \qquad
      \hat V_{bet} = Σ p_n‖\bar x_n − \bar x‖² − Σ p_n(1 − p_n)\, s_n²/m_n$$

    Args:
      gram: `[S, S]`, see `gram_matrix`.
      cluster_ids: `[S]`.
      probs: the clusters' probabilities; their shares of the sample if None.
      cluster_sizes: `[N]` sizes of the whole clusters, where the sample was taken from them without replacement;
        None treats the clusters as endless.
      bootstrap: resamples (within clusters) behind the intervals; 0 leaves them empty (low = high = value).
      seed: of the resampling.

    Raises:
      ValueError: shapes do not fit, or a cluster has fewer than 2 examples (1 where that is all of it).
    """
    k = np.asarray(gram, np.float64)
    if k.ndim != 2 or k.shape[0] != k.shape[1]:
        raise ValueError(f"gram must be square, got shape {k.shape}")
    p = check_probs(probs, cluster_ids)
    ids = check_ids(cluster_ids, k.shape[0], len(p))
    sizes = None if cluster_sizes is None else np.asarray(cluster_sizes, np.float64)
    counts = count_members(ids, p, 1)
    lone = np.flatnonzero((counts == 1) & (p > 0) & (True if sizes is None else sizes > 1))
    if len(lone):
        raise ValueError(f"cluster {int(lone[0])} has 1 example in the sample; at least 2 are needed")
    second = np.diag(p) - np.outer(p, p)  # of the shares of one draw
    values, around = unbiased_parts(k, ids, p, counts, second, p, sizes, bootstrap, seed)
    values = [*values[:2], values[0] + values[1], values[2]]
    tails = np.zeros((2, 4))
    if bootstrap:
        tails = np.quantile([around[0], around[1], around[0] + around[1], around[2]], ENDS, 1)
    intervals = [Interval(float(v), float(v + low), float(v + high)) for v, low, high in zip(values, *tails)]
    return Estimate(*intervals, resamples=np.asarray(values)[:2, None] + around[:2])


def unbiased_parts(
    gram: Floats,
    ids: NDArray[np.intp],
    probs: Floats,
    counts: NDArray[np.intp],
    second: Floats,
    share: Floats,
    cluster_sizes: ArrayLike | None,
    bootstrap: int,
    seed: int,
) -> tuple[Floats, Floats]:
    r"""In-cluster variance, between-cluster variance and ‖g‖² `[3]`, unbiased; and how resamples lie around them.

    Args:
      gram: `[S, S]`.
      ids: `[S]`.
      probs: `[N]`.
      counts: `[N]` examples of each cluster in the sample.
      second: `[N, N]`, the mean of $(w − p)(w − p)^T$ over batches, w their shares of the clusters.
      share: `[N]`, the mean share, which weighs the in-cluster part.
      cluster_sizes: see `estimate`.
      bootstrap: R.
      seed: of the resampling.

    Returns:
      The values, and deviations `[3, R]`.
    """
    m = np.maximum(counts, 1).astype(np.float64)
    unseen, shrink = finite_factors(counts, cluster_sizes)

    def statistics(weights: Floats) -> Floats:
        squares, inner = _cluster_moments(gram, weights, ids, len(probs))
        spread = (squares - np.einsum("rnn->rn", inner)) * m / np.maximum(m - 1, 1)  # unbiased
        scatter = spread * unseen / m  # of the sample means around g_n: what a plug-in value contains of only that
        between = np.einsum("nm,rnm->r", second, inner) - scatter @ np.diagonal(second)
        mean_square = np.einsum("n,rnm,m->r", probs, inner, probs) - scatter @ probs**2
        return np.stack([(spread * shrink) @ share, between, mean_square])

    values = statistics((1.0 / m)[ids][None])[:, 0]
    if not bootstrap:
        return values, np.zeros((3, 0))
    draws = _resampled_weights(np.random.default_rng(seed), ids, counts, bootstrap)
    again = np.concatenate([statistics(part) for part in np.array_split(draws, max(1, bootstrap // 25))], axis=1)
    # Resampling adds the scatter of the means once more, and what was taken from a finite cluster without
    # replacement scatters less: only the resamples' spread around their own mean is used.
    finite = float(np.sqrt(np.clip(probs @ unseen, 0.0, 1.0)))
    return values, finite * (again - again.mean(axis=1, keepdims=True))


def _resampled_weights(rng: np.random.Generator, ids: NDArray[np.intp], counts: NDArray[np.intp], num: int) -> Floats:
    """`[num, S]` weights of bootstrap resamples drawn within each cluster; each cluster's weights sum to 1."""
    weights = np.zeros((num, len(ids)))
    for n, m in enumerate(counts):
        if m:
            members = np.flatnonzero(ids == n)
            weights[:, members] = rng.multinomial(m, np.full(m, 1.0 / m), size=num) / m
    return weights
