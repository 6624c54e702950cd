"""What a word on the command line stands for: a preset, a source of data, or a path."""

from __future__ import annotations

from pathlib import Path

from discover.lab.data import SOURCES
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
