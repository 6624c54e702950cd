"""The keys of a configuration, `section.name`, and the type of each one's value."""

from __future__ import annotations

import difflib
import functools
import types
from collections.abc import Iterable, Mapping
from dataclasses import is_dataclass
from typing import TYPE_CHECKING, Any, get_type_hints

from discover.lab.experiments.config.values import ConfigError
from discover.registry import OPTIMIZERS, Made, Table

if TYPE_CHECKING:
    from discover.lab.experiments.config.config import Config

ARGUMENTS = "arguments"
"""The field of a section that holds the keys of what its `name` chooses."""


@functools.cache
def key_types() -> Mapping[str, Any]:
    """``{dotted key: type hint}`` of the keys that every configuration has."""
    from discover.lab.experiments.config.config import Config

    result: dict[str, Any] = {}
    for name, hint in get_type_hints(Config).items():
        own = get_type_hints(hint) if is_dataclass(hint) else {}
        result |= {f"{name}.{sub}": sub_hint for sub, sub_hint in own.items() if sub != ARGUMENTS} or {name: hint}
    return types.MappingProxyType(result)


def table_of(section: str) -> Table[Any] | None:
    """The table from which the section's `name` is chosen, whose entry says which further keys there are."""
    if section == "optimizer":
        return OPTIMIZERS
    if section == "model":
        from discover.lab.models import MODELS

        return MODELS
    return None


def entry_of(config: Config, section: str) -> Made | None:
    """The entry that the section's `name` chooses; None for a section without one."""
    table = table_of(section)
    return None if table is None else table.find(getattr(config, section).name)


def type_of(config: Config, key: str) -> Any:
    """The type of a key's value.

    A key that another entry of the table has is known too: whether the chosen one has it is checked when the
    configuration is whole.
    """
    fixed = key_types()
    if key in fixed:
        return fixed[key]
    section, _, name = key.partition(".")
    for entry in _entries(config, section):
        if name in entry.types:
            return entry.types[name] | None
    raise unknown_key(key, [*fixed, *(argument_keys(config) if table_of(section) else ())])


def argument_keys(config: Config) -> list[str]:
    """The keys that its model, its optimizer or another one of the table has besides."""
    return list(
        dict.fromkeys(
            f"{section}.{name}"
            for section in ("model", "optimizer")
            for entry in _entries(config, section)
            for name in entry.types
        )
    )


def _entries(config: Config, section: str) -> list[Made]:
    """The chosen entry first, then the others of its table."""
    table = table_of(section)
    return [] if table is None else [table.find(getattr(config, section).name), *table.values()]


def unknown_key(key: str, known: Iterable[str]) -> ConfigError:
    """The error for a key that is none of the known ones."""
    keys = list(dict.fromkeys(known))
    if key in ("lr", "optimizer.lr"):
        return ConfigError(f"unknown key {key!r}: did you mean 'optimizer.learning_rate'?")
    tails = [k for k in keys if k.rpartition(".")[2] == key.rpartition(".")[2]]
    near = tails[:1] or difflib.get_close_matches(key, keys, n=1, cutoff=0.5)
    if not near:
        by_tail = {k.rpartition(".")[2]: k for k in reversed(keys)}
        near = [by_tail[t] for t in difflib.get_close_matches(key.rpartition(".")[2], by_tail, n=1, cutoff=0.6)]
    hint = f"did you mean {near[0]!r}?" if near else f"keys look like {keys[1]!r}; there are {len(keys)}"
    return ConfigError(f"unknown key {key!r}: {hint}")
