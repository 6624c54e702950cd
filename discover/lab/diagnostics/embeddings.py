"""Clusters found, not given: k-means on gradients, in a streaming pass over data that may not fit in memory.

Two examples belong together, for a variance-reduced optimizer, when their gradients are alike. So the embedding is the
gradient itself: of the last layer (`last_layer`), or of everything after a random projection (`GradientRows`).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["StreamingKMeans", "cluster_stream"]


class StreamingKMeans:
    """Mini-batch k-means (scikit-learn's `partial_fit`) that starts from the first rows it is given.

    Args:
      num_clusters: k.
      seed: of the start.
    """

    def __init__(self, num_clusters: int, *, seed: int = 0):
        if num_clusters < 1:
            raise ValueError(f"num_clusters must be at least 1, got {num_clusters}")
        self.num_clusters, self.seed = num_clusters, seed
        self.warmup = max(1024, 20 * num_clusters)  # rows from which k-means chooses the start
        self._waiting: list[NDArray[np.float32]] = []
        self._model: Any = None

    def partial_fit(self, rows: NDArray[np.float32]) -> None:
        """Takes some more rows `[r, features]`."""
        if not np.all(np.isfinite(rows)):
            raise ValueError("embeddings must be finite, got NaN or infinity")
        if self._model is not None:
            self._model.partial_fit(rows)
            return
        self._waiting.append(rows)
        if sum(map(len, self._waiting)) >= self.warmup:
            self._begin()

    def _begin(self) -> None:
        from sklearn.cluster import KMeans, MiniBatchKMeans

        rows = np.concatenate(self._waiting) if self._waiting else np.zeros((0, 1), np.float32)
        self._waiting = []
        if len(rows) < self.num_clusters:
            raise ValueError(f"{self.num_clusters} clusters need as many rows at least, got {len(rows)}")
        with warnings.catch_warnings():
            # Fewer distinct rows than clusters: the surplus centres stay empty and are never assigned.
            warnings.filterwarnings("ignore", message="Number of distinct clusters")
            options: dict[str, Any] = {"n_clusters": self.num_clusters, "random_state": self.seed}
            start: dict[str, Any] = {"n_init": 3}
            centres: Any = KMeans(**options, **start).fit(rows).cluster_centers_
            start = {"init": centres, "n_init": 1}
            self._model = MiniBatchKMeans(**options, **start)
            self._model.partial_fit(rows)

    def assign(self, rows: NDArray[np.float32]) -> NDArray[np.int32]:
        """The nearest centre of each row."""
        if self._model is None:
            self._begin()
        model: Any = self._model
        return model.predict(rows).astype(np.int32)


def cluster_stream(
    rows: Callable[[], Iterable[NDArray[np.float32]]], num_clusters: int, *, seed: int = 0
) -> NDArray[np.int32]:
    """Clusters a stream of embeddings: a pass to find the centres, one more to assign.

    Args:
      rows: `rows()` starts a pass: pieces `[r, features]` of the embeddings, in the examples' order.
      num_clusters: k; clusters that come out empty are dropped, so fewer may be found.
      seed: of k-means.

    Example:
      >>> import numpy as np
      >>> points = np.array([[0.0], [0.1], [5.0], [5.1]], np.float32)
      >>> ids = cluster_stream(lambda: [points[:2], points[2:]], 2)
      >>> bool(ids[0] == ids[1] != ids[2] == ids[3])
      True
    """
    model = StreamingKMeans(num_clusters, seed=seed)
    for piece in rows():
        model.partial_fit(piece)
    ids = np.concatenate([model.assign(piece) for piece in rows()])
    return np.unique(ids, return_inverse=True)[1].astype(np.int32)
