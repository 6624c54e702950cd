"""What `clusters=` may be: a number, names, counts, or names with their counts."""

import operator
from collections.abc import Collection, Mapping, Sequence, Set
from typing import Any

from discover.clusters import Clusters

Name = str | int
"""What a cluster is called: its name, or its number where none were given."""
ClustersLike = int | Sequence[str] | Sequence[float] | Mapping[Name, float] | Clusters


def names_and_probs(clusters: ClustersLike) -> tuple[tuple[Name, ...], tuple[float, ...]]:
    """The names of the clusters and their probabilities p_n.

    Raises:
      TypeError: if it is none of what it may be.
      ValueError: if there are no clusters, two have one name, or counts are no counts or look like clusters' numbers.
    """
    if isinstance(clusters, Mapping):
        return _plain(clusters), Clusters.from_counts(list(clusters.values())).probs
    if isinstance(clusters, Clusters):
        return tuple(range(clusters.num_clusters)), clusters.probs
    try:
        no_list = isinstance(clusters, str | bytes | Set)  # a set has another order in every process
        given: Any = None if no_list else list(clusters)  # pyright: ignore[reportArgumentType]
    except TypeError:
        given = _index(clusters)
    if given is None:
        raise TypeError(
            "clusters must be a number, a list of names, a list of counts, or a dictionary of names and counts, "
            f"got {clusters!r}"
        )
    if isinstance(given, int):
        return tuple(range(given)), Clusters.uniform(given).probs
    if given and all(isinstance(name, str) for name in given):
        return _plain(given), Clusters.uniform(len(given)).probs
    if len(given) > 1 and [_index(number) for number in given] == list(range(len(given))):
        raise ValueError(
            f"a list of numbers is how many examples each cluster has, and these look like the clusters' own numbers: "
            f"say clusters={len(given)}, got {clusters!r}"
        )
    return tuple(range(len(given))), Clusters.from_counts(given).probs


def known(cluster: Any, names: Sequence[Name]) -> Name:
    """The name of a cluster, or an error that lists the choices; whole numbers of any kind are numbers."""
    name = _name(cluster)
    if name is None or name not in names:
        shown = [repr(name) for name in names]
        listed = shown if len(shown) <= 12 else [*shown[:10], "…", shown[-1]]
        raise ValueError(f"there is no cluster {cluster!r}; the clusters are {', '.join(listed)}")
    return name


def _plain(names: Collection[Any]) -> tuple[Name, ...]:
    """Names as Python's own text and numbers, which a checkpoint can hold and a safe reader of it takes."""
    plain, given = [name for each in names if (name := _name(each)) is not None], ", ".join(map(repr, names))
    if len(plain) < len(names):
        raise TypeError(f"names of clusters must be text or whole numbers, got {given}")
    if len(set(map(str, plain))) < len(plain):  # they name the buffers, too, as text
        raise ValueError(f"clusters must have names of their own, got {given}")
    return tuple(plain)


def _name(value: Any) -> Name | None:
    return str(value) if isinstance(value, str) else _index(value)


def _index(value: Any) -> int | None:
    """A whole number, also one in a tensor or an array; None for anything else, truth values among them."""
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None
