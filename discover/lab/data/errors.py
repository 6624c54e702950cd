"""The errors of the data package, and the checks that raise them early with one line."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable

from discover.lab.text import printable

_LISTED = 12
"""Columns that are named in a message, which may be one of hundreds."""


class DataError(ValueError):
    """Something about the data, its files or its clusters is not as it must be; one line, whatever names are in it.

    Args:
        message: what, in one line.
        remedy: an option of `load` that would put it right, and a value for it; the message ends with it.
    """

    exit_code = 2

    def __init__(self, message: str, **remedy: object):
        given = ", ".join(f"{name}={value!r}" for name, value in remedy.items())
        typed = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in remedy.items())
        super().__init__(printable(f"{message}: give {given}" if remedy else message))
        self.on_command_line = printable(f"{message}: give {typed}" if remedy else message)
        """The same in the words of the command line, where options are spelt differently."""

    def about(self, path: str | os.PathLike[str]) -> None:
        """Makes it say what file it is about, if it did not yet."""
        name = printable(os.fspath(path))
        if name not in str(self):
            self.args = (f"{name}: {self}",)
            self.on_command_line = f"{name}: {self.on_command_line}"


class DatasetNotFoundError(DataError):
    """A data set's files are not where they were looked for."""


class ArchiveError(DataError):
    """An archive or a data file is damaged, or holds something that it must not hold."""


class BadImageError(DataError):
    """An image file cannot be read."""


def no_column(name: str, columns: Iterable[str], where: str = "there is") -> DataError:
    """The error for a column that is not there: the nearest, and what there is.

    >>> str(no_column("sites", ["site", "age"], "a.csv has"))
    "a.csv has no column 'sites': did you mean 'site'? the columns are site, age"
    """
    columns = list(columns)
    if not columns:
        return DataError(f"{where} no column {name!r}, and no other")
    near = difflib.get_close_matches(name, columns, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return DataError(f"{where} no column {name!r}: {hint}the columns are {listed(columns)}")


def listed(names: Iterable[str]) -> str:
    """The names, or the first and how many there are.

    >>> listed("abcdefghijklmn")
    'a, b, c, d, e, f, g, h, i, j, k, l, … (14 in all)'
    """
    names = list(names)
    more = f", … ({len(names)} in all)" if len(names) > _LISTED else ""
    return ", ".join(names[:_LISTED]) + more


def one_line(error: BaseException) -> str:
    """Why something failed, in one short line, whoever raised it."""
    return (str(error).strip().splitlines() or [""])[0][:160] or type(error).__name__


def check_at_least(what: str, value: int, least: int) -> int:
    """Return `value` as an int if it is an integer of at least `least`, else raise."""
    try:
        whole = not isinstance(value, bool) and int(value) == value
    except (TypeError, ValueError, OverflowError):  # None, "four", infinity
        whole = False
    if not whole or value < least:
        raise DataError(f"{what} must be an integer of at least {least}, got {value!r}")
    return int(value)
