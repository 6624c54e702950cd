"""Typed values of a configuration: reading them from text, checking them, and naming what would be right."""

from __future__ import annotations

import types
from typing import Any, Literal, Union, get_args, get_origin

from discover.registry import nearest


class ConfigError(ValueError):
    """A configuration that cannot be; the message is one line and says what would be right."""

    exit_code = 2


_WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text", dict: "a section"}
_MANY_WORDS = {int: "whole numbers", float: "numbers", str: "names"}


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
            words.append(f"{_MANY_WORDS[get_args(option)[0]]} separated by commas")
        else:
            words.append(_WORDS[option])
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
            if value is None or value == "none":  # as TOML, which has no null, says it
                return None
        elif get_origin(option) is Literal:
            literals += get_args(option)
            if isinstance(value, str) and value in get_args(option):
                return value
        elif get_origin(option) is tuple:
            if isinstance(value, list | tuple) and all(_is_a(get_args(option)[0], one) for one in value):
                return tuple(get_args(option)[0](one) for one in value)
        elif _is_a(option, value):
            return option(value)
    if literals and isinstance(value, str):
        raise nearest(key, value, literals)
    raise ConfigError(f"{key} must be {_describe(hint)}, got {value!r}")


def _is_a(kind: type, value: Any) -> bool:
    """Whether a value is of a type; a whole number is a number too."""
    return type(value) is kind or (kind is float and type(value) is int)


def at_least(key: str, value: float, least: float) -> None:
    """Raises :class:`ConfigError` unless ``value >= least``."""
    if value < least:
        raise ConfigError(f"{key} must be at least {least}, got {value}")


def in_range(key: str, value: float, low: float, high: float, *, upper_open: bool = False) -> None:
    """Raises :class:`ConfigError` unless the value lies in the interval."""
    if not (low <= value < high if upper_open else low <= value <= high):
        raise ConfigError(f"{key} must be in [{low}, {high}{')' if upper_open else ']'}, got {value}")
