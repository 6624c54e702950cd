"""Decoded images kept on disk, under a key that is a digest of everything that they were made from."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from discover.lab.data.errors import ArchiveError, DataError
from discover.lab.data.sources.arrays import read_npz


def default_cache_dir() -> Path:
    """`$DISCOVER_CACHE`, else `discover` in the user's cache folder."""
    if chosen := os.environ.get("DISCOVER_CACHE"):
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "discover"


def content_key(options: Mapping[str, object], files: Iterable[tuple[str, Path]]) -> str:
    """A digest of options and of files, names and contents both; of a file that cannot be read, that it cannot.

    Args:
        options: whatever else the result depends on; must be JSON.
        files: (name, where it is), in a fixed order.
    """
    digest = hashlib.sha256(json.dumps(options, sort_keys=True).encode())
    for name, path in files:
        try:
            with open(path, "rb") as file:
                contents = hashlib.file_digest(file, "sha256").digest()
        except OSError:  # a dangling link, say: whoever decodes it reports it, and mending it must change the key
            contents = bytes(hashlib.sha256().digest_size)
        digest.update(len(name.encode()).to_bytes(8, "little") + name.encode() + contents)
    return digest.hexdigest()[:40]


def read_cache(folder: Path, key: str) -> dict[str, NDArray] | None:
    """What `write_cache` kept under this key; None if there is nothing, or it is damaged."""
    try:
        return read_npz(folder / f"{key}.npz")
    except (ArchiveError, DataError):
        return None


def write_cache(folder: Path, key: str, arrays: Mapping[str, NDArray]) -> None:
    """Keep arrays under a key. A reader never sees half a file; a folder that cannot be written to costs a warning."""
    temporary = None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, suffix=".part", delete=False) as file:
            temporary = file.name
            np.savez(file, **arrays)  # pyright: ignore[reportArgumentType]
        os.replace(temporary, folder / f"{key}.npz")
    except OSError as error:
        if temporary is not None:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
        warnings.warn(f"decoded images are not kept for the next time: {error}", stacklevel=2)
