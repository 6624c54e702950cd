"""A user's own setting, read from a TOML or JSON file: what `--config FILE` means.

The file may start from a preset, has any keys of the configuration in sections, and says what to compare:

    preset = "digits"                          # or "module:function"; without it, the defaults of every key
    compare = ["momentum", "mine:my_optimizer"]
    learning_rates = [0.03, 0.1, 0.3]
    target_accuracy = 0.9

    [clusters]
    by = "mine:my_clusters"

    [optimizer]                                # for every optimizer that has such an argument
    weight_decay = 0.001

    [optimizers."mine:my_optimizer"]           # for this one
    beta = 0.95

The folder of the file is on the import path, so that `mine` is a file beside it.
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from discover.lab.data.errors import DataError
from discover.lab.data.limits import read_ordinary
from discover.lab.experiments.config.config import Config, ConfigError, OptimizerConfig, flatten
from discover.lab.experiments.config.keys import ARGUMENTS, key_types, unknown_key
from discover.lab.experiments.config.values import check_value
from discover.lab.experiments.presets.preset import Hyperparameters, Preset
from discover.lab.experiments.presets.presets import get_preset
from discover.lab.text import printable
from discover.registry import OPTIMIZERS, REFERENCE, UnknownName

MOST_TOML, MOST_DOTS = 100_000, 100
_OWN_KEYS: Mapping[str, Any] = {
    "preset": str,
    "name": str,
    "summary": str,
    "target_accuracy": float,
    "compare": tuple[str, ...],
    "learning_rates": tuple[float, ...],
    "optimizers": dict,
}
"""What a file may say besides the sections of a configuration."""
_FOR_ALL = tuple(one.name for one in fields(OptimizerConfig) if one.name not in ("learning_rate", ARGUMENTS))
"""Keys of the optimizer section that every optimizer has."""


def read_preset(path: Path) -> Preset:
    """The preset that a file describes; it is named after the file unless the file says otherwise."""
    tree = _read_tree(path)
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        return _make(printable(path.stem), tree)
    except (ConfigError, UnknownName) as error:
        raise ConfigError(f"{path}: {error}") from None


def _read_tree(path: Path) -> dict[str, Any]:
    kind = path.suffix.lower()
    if kind not in (".toml", ".json"):
        raise ConfigError(f"a configuration is a .toml or .json file, got {path}")
    try:
        text = read_ordinary(path).decode()
        if kind == ".toml":
            _check_size(path, text)
        tree = tomllib.loads(text) if kind == ".toml" else json.loads(text)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}") from None
    except (DataError, ConfigError):
        raise
    except (ValueError, RecursionError) as error:  # also what is not UTF-8, or nested a thousand times
        raise ConfigError(f"{path} is not {kind[1:].upper()}: {' '.join(str(error).split())}") from None
    if not isinstance(tree, dict):
        raise ConfigError(f"{path} must have keys and values, got {type(tree).__name__}")
    return tree


def _check_size(path: Path, text: str) -> None:
    """Raises where the parser would take hours: its time grows with the square of the tables, and of the dots."""
    dots = max(part.count(".") for part in re.split(r"[\n,={\[]", text))
    if len(text) > MOST_TOML or dots > MOST_DOTS:
        what = f"{len(text):,} letters and a key of {dots} dots"
        raise ConfigError(f"{path} has {what}; TOML is read up to {MOST_TOML:,} and {MOST_DOTS}")


def _make(stem: str, tree: Mapping[str, Any]) -> Preset:
    for key, value in tree.items():
        if key not in _OWN_KEYS and not isinstance(value, Mapping):
            raise unknown_key(key, [*_OWN_KEYS, *key_types()])
    own = {key: check_value(key, tree[key], hint) for key, hint in _OWN_KEYS.items() if key in tree}
    base = get_preset(own["preset"]) if "preset" in own else _defaults(stem)
    config = base.config.with_values(flatten({key: value for key, value in tree.items() if key not in _OWN_KEYS}))
    shared = {name: config.optimizer.get(name) for name in tree.get("optimizer", {}) if name not in _FOR_ALL}
    named = {name: check_value(f"optimizers.{name}", one, dict) for name, one in own.pop("optimizers", {}).items()}
    compare = own.pop("compare", base.compare) or _default_comparison(config)
    names = dict.fromkeys((*OPTIMIZERS, *base.optimizers, *compare, *named, config.optimizer.name))
    own.pop("preset", None)
    preset = replace(
        base,
        **{"name": stem, **own},
        config=config,
        optimizers={name: partial(_hyperparameters, base, name, shared, named.get(name, {})) for name in names},
        compare=compare,
        source="a file",
        reported={},
        cost="",
    )
    for name in dict.fromkeys((*compare, *named)):  # says now what cannot be
        preset.config_for(name)
    return preset


def _hyperparameters(base: Preset, name: str, shared: Hyperparameters, named: Hyperparameters) -> Hyperparameters:
    """The base's values of an optimizer; then what the file says for all that have it, and for this one."""
    has = ("learning_rate", *OPTIMIZERS.find(name).types)
    return {**base.hyperparameters(name), **{key: value for key, value in shared.items() if key in has}, **named}


def _defaults(stem: str) -> Preset:
    """What a file starts from that names no preset."""
    rates = OPTIMIZERS[REFERENCE].search["learning_rate"].values
    return Preset(stem, f"{stem}, from a file", Config(), {}, (), rates, 0.9, "a file")


def _default_comparison(config: Config) -> tuple[str, ...]:
    entry = config.optimizer.entry
    return tuple(dict.fromkeys((entry.baseline or REFERENCE, entry.name)))
