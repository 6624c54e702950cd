"""Options that several commands share, one type each, and what they stand for."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from discover.lab.cli.errors import CommandError

if TYPE_CHECKING:
    from discover.lab.experiments.presets.preset import Preset
    from discover.lab.experiments.presets.setting import Setting


def check_writable(target: str | None) -> str | None:
    """Refuses a file that could not be written, before hours are spent on what goes into it."""
    if target is not None and target != "-":
        path = Path(target)
        if path.is_dir():
            raise CommandError(f"cannot write {target}: it is a folder")
        if not path.parent.is_dir():
            raise CommandError(f"cannot write {target}: there is no folder {path.parent}")
    return target


def at_least(least: int) -> Callable[[typer.CallbackParam, Any], Any]:
    """The check of an option that is a number."""

    def check(param: typer.CallbackParam, value: Any) -> Any:
        if value is not None and value < least:
            raise CommandError(f"{param.opts[0]} must be at least {least}, got {value:g}")
        return value

    return check


def _above_zero(param: typer.CallbackParam, value: float | None) -> float | None:
    if value is not None and not value > 0:
        raise CommandError(f"{param.opts[0]} must be above 0, got {value:g}")
    return value


PresetArgument = Annotated[
    str | None, typer.Argument(metavar="[PRESET]", help="See `discover presets`; or give --config.", show_default=False)
]
WhatArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="[PRESET|PATH]",
        help="A preset (see `discover presets`), or your data: a folder or tar of pictures or text, .npz, .csv, "
        ".parquet; or give --config.",
        show_default=False,
    ),
]
ConfigOption = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", help="A setting of your own, .toml or .json, in place of a preset."),
]
OptimizerOption = Annotated[
    str | None,
    typer.Option("--optimizer", metavar="NAME", help="Which optimizer; default: discover, or the file's."),
]
OptimizersOption = Annotated[
    str | None, typer.Option("--optimizers", metavar="A,B", help="Which optimizers; default: the preset's.")
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Change any field of the configuration, e.g. --set training.steps=500. May be repeated; "
        "`discover presets NAME` lists the keys.",
    ),
]
JsonOption = Annotated[
    str | None,
    typer.Option(
        "--json", metavar="FILE", help="Also write the result as JSON (- for stdout).", callback=check_writable
    ),
]
SeedsOption = Annotated[
    int | None,
    typer.Option("--seeds", metavar="N", help="Train seeds 0 to N-1 instead of the preset's.", callback=at_least(1)),
]
DataOption = Annotated[
    str | None, typer.Option("--data", metavar="PATH", help="Where the data set is, for those read from disk.")
]
_YOURS = "Your own data"
OwnData = tuple[str | None, str | None, str | None, int | None, str | None]
"""Layout, label, clusters, image size and what to do about bad images."""
LayoutOption = Annotated[
    str | None,
    typer.Option(
        "--layout",
        metavar="A/B",
        help="Names of the levels of nested folders, e.g. domain/class; `class` is the label, the others are columns.",
        rich_help_panel=_YOURS,
    ),
]
LabelOption = Annotated[
    str | None,
    typer.Option("--label", metavar="NAME", help="The level or column that is the label.", rich_help_panel=_YOURS),
]
ClustersOption = Annotated[
    str | None,
    typer.Option(
        "--clusters",
        metavar="NAME",
        help="The level or column that makes the clusters; or classes, random, kmeans, none.",
        rich_help_panel=_YOURS,
    ),
]
ImageSizeOption = Annotated[
    int | None,
    typer.Option(
        "--image-size",
        metavar="PIXELS",
        help="Cut pictures square and resize them to this side.",
        callback=at_least(1),
        rich_help_panel=_YOURS,
    ),
]
OnBadImageOption = Annotated[
    str | None,
    typer.Option(
        "--on-bad-image",
        metavar="error|skip",
        help="What to do about a picture that cannot be read; default: error.",
        rich_help_panel=_YOURS,
    ),
]
MinutesOption = Annotated[
    float | None,
    typer.Option(
        "--minutes",
        metavar="M",
        help="Stop after the training in progress when M minutes have passed.",
        callback=_above_zero,
    ),
]
TrackVarianceOption = Annotated[
    str | None,
    typer.Option(
        "--track-variance", metavar="every=N", help="Measure the between-cluster variance every N steps (docs: 100)."
    ),
]


def chosen_preset(name: str | None, file: Path | None, default: str | None = None) -> Preset:
    """The preset of a name, or the one that a ``--config`` file describes."""
    if name is not None and file is not None:
        raise CommandError(
            f"give a preset or --config, not both: got {name!r} and {file} (which may say preset = {name!r})"
        )
    if file is not None:
        from discover.lab.experiments.presets.file import read_preset

        return read_preset(file)
    from discover.lab.experiments.presets.presets import get_preset

    if name is None and default is None:
        raise CommandError("say what to train on: the path of your data, a preset (see `discover presets`) or --config")
    return get_preset(name or default or "")


def chosen_setting(
    what: str | None, file: Path | None, overrides: Sequence[str], default: str | None = None
) -> Setting:
    """The setting of a preset, of a path, or of a ``--config`` file; what was chosen for one's own data is said."""
    from discover.lab.cli.console import say
    from discover.lab.experiments.presets.setting import Setting, setting_of

    if what is None or file is not None:
        return Setting(chosen_preset(what, file, default))
    setting = setting_of(what, overrides)
    for line in setting.notes:
        say(line)
    return setting


def run_folder(*parts: str) -> Path:
    """Where a command puts its results unless told otherwise.

    >>> str(run_folder("digits", "mine:my_optimizer"))
    'runs/digits-mine.my_optimizer'
    """
    return Path("runs") / re.sub(r"[:/\\\0]", ".", "-".join(parts))


def as_overrides(
    settings: list[str] | None,
    data: str | None,
    seeds: int | None = None,
    track_variance: str | None = None,
    own: OwnData = (None, None, None, None, None),
) -> list[str]:
    """The ``--set`` texts, preceded by what ``--data``, ``--seeds``, ``--track-variance`` and ``own`` stand for."""
    from discover.lab.experiments.presets.setting import data_overrides

    result = data_overrides(*own)
    if track_variance is not None:
        number = track_variance.removeprefix("every=")
        if not number.isdigit() or int(number) < 1:
            raise CommandError(f"--track-variance must be every=N with N at least 1, got {track_variance!r}")
        result.append(f"training.track_variance={number}")
    if seeds is not None:
        result.append("training.seeds=" + ",".join(str(seed) for seed in range(seeds)))
    if data is not None:
        result.append(f"data.path={data}")
    return [*result, *(settings or [])]


TYPED = {"layout": "data.layout", "label": "data.label", "image-size": "data.size"}
TYPED |= {"on-bad-image": "data.on_bad_image", "clusters": "clusters.by"}
"""Options that have a shorter name than ``--set KEY``."""


def typed(overrides: Sequence[str]) -> str:
    """What is set, as one would type it.

    >>> typed(["data.label=ill", "clusters.by=column", "clusters.column=site", "training.steps=9"])
    '--label ill --clusters site --set training.steps=9'
    """
    short, words = {key: option for option, key in TYPED.items()}, []
    for text in overrides:
        key, _, value = text.partition("=")
        if key == "clusters.column" and "clusters.by=column" in overrides:
            words.append(f"--clusters {shlex.quote(value)}")
        elif text != "clusters.by=column":
            words.append(f"--{short[key]} {shlex.quote(value)}" if key in short else f"--set {shlex.quote(text)}")
    return " ".join(words)


def split_list(text: str | None) -> list[str] | None:
    """``a,b`` as a list; None stays None."""
    return None if text is None else [part.strip() for part in text.split(",") if part.strip()]


def split_numbers(option: str, text: str | None) -> list[float] | None:
    """``0.1,0.3`` as numbers."""
    try:
        parts = split_list(text)
        return None if parts is None else [float(part) for part in parts]
    except ValueError:
        raise CommandError(f"{option} must be numbers separated by commas, got {text!r}") from None


def write_result(target: str | None, value: Any) -> None:
    """Writes ``value`` for ``--json``; numbers that JSON does not know become null."""
    if target is None:
        return
    from discover.lab.records import finite, write_text

    text = json.dumps(finite(value), indent=2, allow_nan=False) + "\n"
    path = Path(target)
    try:
        if target == "-":
            sys.stdout.write(text)
        elif path.exists() and not path.is_file():  # a pipe or a device is written to, never replaced
            path.write_text(text, encoding="utf-8")
        else:
            write_text(path, text)
    except OSError as error:
        raise CommandError(f"cannot write {target}: {error.strerror or error}") from None
