"""How probable each cluster is: the p_n of the paper."""

import math
import operator
from collections.abc import Iterable
from dataclasses import dataclass


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

    def __init__(self, probs: Iterable[float]):
        values = tuple(_numbers("probs", probs))
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
        try:
            number = operator.index(num_clusters)
        except TypeError:
            number = 0
        if number < 1 or isinstance(num_clusters, bool):
            raise ValueError(f"num_clusters must be a whole number of at least 1, got {num_clusters!r}")
        return cls((1.0 / number,) * number)

    @classmethod
    def from_counts(cls, counts: Iterable[float]) -> "Clusters":
        """Clusters as probable as they are large: `counts` examples in each."""
        values = _numbers("counts", counts)
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


def _numbers(name: str, values: Iterable[float]) -> list[float]:
    try:
        return [float(value) for value in values]
    except (TypeError, ValueError):
        shown = " ".join(repr(values).split())
        shown = shown if len(shown) <= 60 else f"{shown[:57]}..."
        raise ValueError(f"{name} must be a sequence of numbers, one per cluster, got {shown}") from None
