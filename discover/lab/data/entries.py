"""What the tables of sources and clusterings have in common: a line of description, and errors of the data's kind."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from discover import registry
from discover.lab.data.errors import DataError


@dataclass(frozen=True)
class DescribedEntry(registry.Made):
    """An entry that is made by a function, whose arguments are what it can be told."""

    description: str


Entry = TypeVar("Entry", bound=DescribedEntry)


def find(table: registry.Table[Entry], name: str) -> Entry:
    """The entry of a name, or of a user's `module:function`, whose function is there.

    Raises:
        DataError: there is none; the message names the nearest.
    """
    try:
        entry = table.find(name)
        entry.make  # noqa: B018  # a module that is not there is told here
    except registry.UnknownName as error:
        raise DataError(str(error)) from None
    return entry
