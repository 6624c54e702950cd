"""What a word on the command line stands for: a preset, a source of data, or a path."""

from __future__ import annotations

from pathlib import Path

from discover.lab.data import CLUSTERINGS, SOURCES
from discover.lab.experiments.config.config import Config, ConfigError
from discover.lab.experiments.presets.presets import PRESETS, get_preset


def configuration_of(what: str) -> tuple[Config, str]:
    """The configuration that a preset's name, a source's name or a path stands for, and a name for its folder."""
    path = Path(what)
    if what not in PRESETS and what in SOURCES:
        return Config(name=what).with_values({"data.source": what}), what
    if what in PRESETS or not (path.exists() or path.suffix == ".npz" or len(path.parts) > 1):
        return get_preset(what).config, what  # where there is none, it says what is nearest
    if not path.exists():
        raise ConfigError(f"there is no folder or file {what}")
    if path.suffix == ".npz":
        source, model = "npz", "mlp"
    elif path.is_dir():
        source, model = "folder", "cnn"
    else:
        raise ConfigError(f"{what} is neither an image folder nor an .npz file")
    values = {"data.source": source, "data.path": str(path), "model.name": model}
    return Config(name=path.stem).with_values(values), path.stem


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
    if clusters in (label or "class", "class"):
        return [*result, "clusters.by=classes"]
    if clusters in CLUSTERINGS or ":" in clusters:
        return [*result, f"clusters.by={clusters}"]
    return [*result, "clusters.by=column", f"clusters.column={clusters}"]
