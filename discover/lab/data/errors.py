"""The errors of the data package, and the checks that raise them early with one line."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class DataError(ValueError):
    """Something about the data, its files or its clusters is not as it must be."""

    exit_code = 2


class DatasetNotFoundError(DataError):
    """A data set's files are not where they were looked for."""


class ArchiveError(DataError):
    """An archive or a data file is damaged, or holds something that it must not hold."""


class BadImageError(DataError):
    """An image file cannot be read."""


def check_choice(what: str, value: str, choices: Iterable[str]) -> str:
    """Return `value` if it is one of `choices`, else raise an error that lists them and the nearest one.

    >>> check_choice("composition", "random", ("random", "balanced"))
    'random'
    """
    choices = tuple(choices)
    if value in choices:
        return value
    near = difflib.get_close_matches(str(value), choices, n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise DataError(f"unknown {what} {value!r}: choose from {', '.join(choices)}{hint}")


def check_at_least(what: str, value: int, least: int) -> int:
    """Return `value` as an int if it is an integer of at least `least`, else raise."""
    try:
        whole = not isinstance(value, bool) and int(value) == value
    except (TypeError, ValueError, OverflowError):  # None, "four", infinity
        whole = False
    if not whole or value < least:
        raise DataError(f"{what} must be an integer of at least {least}, got {value!r}")
    return int(value)


def check_probability(what: str, value: float) -> float:
    """Return `value` as a float if it lies in [0, 1], else raise."""
    value = float(value)
    if not 0.0 <= value <= 1.0:
        raise DataError(f"{what} must be between 0 and 1, got {value!r}")
    return value
