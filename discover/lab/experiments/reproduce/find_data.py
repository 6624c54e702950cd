"""Where the data sets of our results are."""

from __future__ import annotations

import os
from pathlib import Path

from discover.lab.data import SOURCES
from discover.lab.experiments.config.config import DataConfig

CIFAR = "cifar10-jpeg.tar.xz"


def find_data(wanted: DataConfig, given: str | None) -> str | None:
    """The path of a row's data set, which need not be there; None where the source finds it by itself.

    Args:
        wanted: CIFAR-10 has no path yet, other data sets have the name of their archive.
        given: what ``--data`` says: CIFAR-10 in any of its forms, or a folder that holds every archive under its name.
            The others are also looked for beside CIFAR-10. Without it, the folder is `$DISCOVER_DATA`, else `.data`.
    """
    if "path" not in SOURCES.find(wanted.source).arguments:
        return None
    place = Path(given or os.environ.get("DISCOVER_DATA") or ".data")
    if wanted.path is None:
        return str(place / CIFAR) if (place / CIFAR).is_file() else given
    return str((place.parent if place.is_file() else place) / wanted.path)
