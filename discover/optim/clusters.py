"""How probable each cluster is: the p_n of the paper."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Clusters:
    """The clusters of a data set and their probabilities p_n (equation 2 of the paper).

    Hashable and immutable, so it can be a static argument of `jax.jit`.

    Args:
      probs: one probability per cluster; they sum to 1.

    Raises:
      ValueError: if a probability is negative, not finite or above 1, if they do not sum to 1, or
        if there are none.

    Example:
      >>> Clusters((0.5, 0.3, 0.2)).num_clusters
      3
      >>> Clusters.uniform(4).probs
      (0.25, 0.25, 0.25, 0.25)
      >>> Clusters.from_counts([30, 10]).probs
      (0.75, 0.25)
    """

    probs: tuple[float, ...]

    def __init__(self, probs: Sequence[float] | Any):
        try:
            values = tuple(float(p) for p in probs)
        except TypeError:
            raise ValueError(f"probs must be a sequence of numbers, one per cluster, got {probs!r}") from None
        if not values:
            raise ValueError("probs must name at least one cluster, got none")
        for n, p in enumerate(values):
            if not (math.isfinite(p) and 0.0 <= p <= 1.0):
                raise ValueError(f"probs must lie in [0, 1], got {p} for cluster {n}")
        total = math.fsum(values)
        if abs(total - 1.0) > 1e-6:
            raise ValueError(
                f"probs must sum to 1, got a sum of {total:.9g}; Clusters.from_counts(counts) normalises for you"
            )
        object.__setattr__(self, "probs", tuple(p / total for p in values) if total != 1.0 else values)

    @classmethod
    def uniform(cls, num_clusters: int) -> "Clusters":
        """`num_clusters` equally probable clusters."""
        if not isinstance(num_clusters, int) or isinstance(num_clusters, bool) or num_clusters < 1:
            raise ValueError(f"num_clusters must be a whole number of at least 1, got {num_clusters!r}")
        return cls((1.0 / num_clusters,) * num_clusters)

    @classmethod
    def from_counts(cls, counts: Sequence[float] | Any) -> "Clusters":
        """Clusters as probable as they are large: `counts` examples in each."""
        values = [float(c) for c in counts]
        for n, c in enumerate(values):
            if not (math.isfinite(c) and c >= 0.0):
                raise ValueError(f"counts must be finite and not negative, got {c} for cluster {n}")
        total = math.fsum(values)
        if total <= 0.0:
            raise ValueError(f"counts must have a positive sum, got {total:g} over {len(values)} clusters")
        return cls(tuple(c / total for c in values))

    @property
    def num_clusters(self) -> int:
        """N: how many clusters there are."""
        return len(self.probs)
