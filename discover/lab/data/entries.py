"""What the tables of sources and clusterings have in common: a name, a function, and what its signature takes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

from discover.lab.data.errors import DataError
from discover.registry import Table, UnknownName, load_object


@dataclass(frozen=True)
class Made:
    """An entry that is made by a function, whose arguments are what it can be told.

    Attributes:
        name: as it is typed.
        factory: `module:function`, imported when it is first needed.
        description: one line.
    """

    name: str
    factory: str
    description: str

    @cached_property
    def make(self) -> Callable[..., Any]:
        """The function itself."""
        return load_object("function", self.factory)

    @cached_property
    def arguments(self) -> Mapping[str, inspect.Parameter]:
        """What can be told to it, by name."""
        found = inspect.signature(self.make).parameters
        return {name: one for name, one in found.items() if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)}

    @cached_property
    def required(self) -> tuple[str, ...]:
        """Those of the arguments that have no default."""
        return tuple(name for name, one in self.arguments.items() if one.default is one.empty)


Entry = TypeVar("Entry", bound=Made)


def find(table: Table[Entry], name: str) -> Entry:
    """The entry of a name, or of a user's `module:function`, whose function is there.

    Raises:
        DataError: there is none; the message names the nearest.
    """
    try:
        entry = table.find(name)
        entry.make  # noqa: B018  # a module that is not there is told here
    except UnknownName as error:
        raise DataError(str(error)) from None
    return entry
