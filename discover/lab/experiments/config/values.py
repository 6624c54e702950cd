"""Typed values of a configuration: reading them from text, checking them, and naming what would be right."""

from __future__ import annotations

import difflib
import types
from collections.abc import Iterable
from typing import Any, Literal, Union, get_args, get_origin


class ConfigError(ValueError):
    """A configuration that cannot be; the message is one line and says what would be right."""

    exit_code = 2


def choose(kind: str, name: object, choices: Iterable[str]) -> str:
    """Returns ``name`` if it is one of ``choices``, else raises naming the choices and the nearest one."""
    names = list(choices)
    if isinstance(name, str) and name in names:
        return name
    near = difflib.get_close_matches(str(name), names, n=1, cutoff=0.4)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise ConfigError(f"unknown {kind} {name!r}: {hint}choose from {', '.join(names)}")


def _options(hint: Any) -> tuple[Any, ...]:
    """The alternatives of a union, or the hint itself."""
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


def _describe(hint: Any) -> str:
    words = []
    for option in _options(hint):
        if option is type(None):
            words.append("none")
        elif get_origin(option) is Literal:
            words.append(" | ".join(get_args(option)))
        elif get_origin(option) is tuple:
            words.append("whole numbers separated by commas")
        else:
            words.append({int: "a whole number", float: "a number", bool: "true or false", str: "text"}[option])
    return " or ".join(words)


def parse_value(key: str, text: str, hint: Any) -> Any:
    """Reads a value of the hinted type from the text after ``key=``; raises :class:`ConfigError`."""
    for option in _options(hint):
        if option is type(None) and text.lower() in ("none", "null"):
            return None
        if get_origin(option) is Literal or option is str:
            continue
        if option is bool and text.lower() in ("true", "false", "yes", "no", "1", "0"):
            return text.lower() in ("true", "yes", "1")
        try:
            if get_origin(option) is tuple:
                return tuple(int(part) for part in text.strip("[]()").split(",") if part.strip())
            if option is int:
                return int(text)
            if option is float:
                return float(text)
        except ValueError:
            continue
    return check_value(key, text, hint)


def check_value(key: str, value: Any, hint: Any) -> Any:
    """Returns ``value`` if it has the type (lists become tuples, whole numbers floats), else raises."""
    literals: tuple[str, ...] = ()
    for option in _options(hint):
        if option is type(None):
            if value is None:
                return None
        elif get_origin(option) is Literal:
            literals += get_args(option)
            if isinstance(value, str) and value in get_args(option):
                return value
        elif get_origin(option) is tuple:
            if isinstance(value, list | tuple) and all(type(v) is int for v in value):
                return tuple(value)
        elif option is float:
            if isinstance(value, int | float) and not isinstance(value, bool):
                return float(value)
        elif type(value) is option:
            return value
    if literals and isinstance(value, str):
        choose(key, value, literals)
    raise ConfigError(f"{key} must be {_describe(hint)}, got {value!r}")


def at_least(key: str, value: float, least: float) -> None:
    """Raises :class:`ConfigError` unless ``value >= least``."""
    if value < least:
        raise ConfigError(f"{key} must be at least {least}, got {value}")


def in_range(key: str, value: float, low: float, high: float, *, upper_open: bool = False) -> None:
    """Raises :class:`ConfigError` unless the value lies in the interval."""
    if not (low <= value < high if upper_open else low <= value <= high):
        raise ConfigError(f"{key} must be in [{low}, {high}{')' if upper_open else ']'}, got {value}")
