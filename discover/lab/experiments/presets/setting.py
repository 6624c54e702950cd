"""What a word on the command line stands for: a preset, a source of data, or the path of one's own data."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from discover.lab.data import CLUSTERINGS, SOURCES, Dataset
from discover.lab.experiments.config.config import Config, ConfigError
from discover.lab.experiments.presets.preset import Preset
from discover.lab.experiments.presets.presets import PRESETS, get_preset
from discover.registry import UnknownName, nearest


class Setting(NamedTuple):
    """What a word stands for."""

    preset: Preset
    loaded: Dataset | None = None  # one's own data, as its source gives it
    notes: tuple[str, ...] = ()  # what was chosen for it, in one line; and what is odd about it, a line each


def setting_of(what: str, overrides: Sequence[str] = ()) -> Setting:
    """The setting that a preset's name, a source's name or a path stands for.

    ``overrides`` are heeded when one's own data is read and described.
    """
    path = Path(what)
    own = [text for text in overrides if not text.startswith("optimizer.")]  # one optimizer's are not all others'
    if what not in PRESETS and what in SOURCES:
        return _own(Config(name=what).with_values({"data.source": what}), own)
    if what in PRESETS or (":" in what and not path.exists()):
        return Setting(get_preset(what))
    if not path.exists():
        if "/" in what or path.suffix:
            raise ConfigError(f"there is no folder or file {what}")
        raise UnknownName(f"there is no folder or file {what}; {nearest('preset', what, PRESETS)}")
    from discover.lab.data.sources.kinds import name_of, source_of

    values = {"data.source": source_of(path), "data.path": str(path)}
    return _own(Config(name=name_of(path)).with_values(values), own)


def _own(config: Config, overrides: Sequence[str]) -> Setting:
    from discover.lab.experiments.presets.own_data import choose_setting

    return Setting(*choose_setting(config, overrides))


def data_overrides(
    layout: str | None, label: str | None, clusters: str | None, image_size: int | None, on_bad_image: str | None
) -> list[str]:
    """What the options about one's own data stand for, as ``--set`` would say it.

    >>> data_overrides("domain/class", None, "domain", None, None)
    ['data.layout=domain/class', 'clusters.by=column', 'clusters.column=domain']
    """
    said = {"layout": layout, "label": label, "size": image_size, "on_bad_image": on_bad_image}
    result = [f"data.{key}={value}" for key, value in said.items() if value is not None]
    if clusters is None:
        return result
    if clusters in (label, "class"):
        return [*result, "clusters.by=classes"]
    if clusters in CLUSTERINGS or ":" in clusters:
        return [*result, f"clusters.by={clusters}"]
    return [*result, "clusters.by=column", f"clusters.column={clusters}"]
