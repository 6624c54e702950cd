"""What the tables of sources and clusterings have in common: a name, a function, and what its signature takes."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

from discover.lab.data.errors import DataError
from discover.registry import Table, UnknownName, load_object


@dataclass(frozen=True)
class Maker:
    """One entry of a table of functions.

    Attributes:
        name: as it is typed.
        maker: `module:function`, imported when it is first needed.
        description: one line.
    """

    name: str
    maker: str
    description: str

    @cached_property
    def make(self) -> Callable[..., Any]:
        """The function itself."""
        return load_object("function", self.maker)

    @cached_property
    def _parameters(self) -> tuple[inspect.Parameter, ...]:
        return tuple(inspect.signature(self.make).parameters.values())

    @cached_property
    def options(self) -> tuple[str, ...]:
        """What can be told to it, by name."""
        return tuple(one.name for one in self._parameters if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY))

    @cached_property
    def required(self) -> tuple[str, ...]:
        """Those of the options that have no default."""
        return tuple(one.name for one in self._parameters if one.name in self.options and one.default is one.empty)

    def takes(self, option: str) -> bool:
        """Whether an option can be told to it."""
        return option in self.options or any(one.kind is one.VAR_KEYWORD for one in self._parameters)


Entry = TypeVar("Entry", bound=Maker)


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
