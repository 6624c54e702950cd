"""Decoded images kept on disk, under a key that is a digest of everything that they were made from."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from discover.lab.data.errors import DataError
from discover.lab.data.limits import check_ordinary, free_memory
from discover.lab.data.sources.npz import read_npz


def default_cache_dir() -> Path:
    """`$DISCOVER_CACHE`, else `discover` in the user's cache folder."""
    if chosen := os.environ.get("DISCOVER_CACHE"):
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "discover"


def kept(
    folder: Path | None,
    options: Mapping[str, object],
    files: Iterable[tuple[str, Path]],
    make: Callable[[], dict[str, NDArray]],
) -> dict[str, NDArray]:
    """What `make` gives, or gave before for the same options and the same files.

    Args:
        folder: where it is kept; None: nowhere.
        options: whatever else the result depends on; must be JSON.
        files: (name, where it is), in a fixed order: their names and contents count, not where they are.
        make: makes it.
    """
    if folder is None:
        return make()
    path = folder / f"{_digest(options, files)}.npz"
    with contextlib.suppress(DataError):  # there is none, or it is damaged
        return read_npz(path, max_bytes=free_memory())  # our own: it may be one color throughout
    arrays = make()
    _write(path, arrays)
    return arrays


def _digest(options: Mapping[str, object], files: Iterable[tuple[str, Path]]) -> str:
    digest = hashlib.sha256(json.dumps(options, sort_keys=True).encode())
    for name, path in files:
        try:
            check_ordinary(path)
            with open(path, "rb") as file:
                contents = hashlib.file_digest(file, "sha256").digest()
        except (OSError, DataError):  # a dangling link, say: whoever decodes it reports it, and mending changes the key
            contents = bytes(hashlib.sha256().digest_size)
        encoded = name.encode(errors="surrogatepass")  # names need not be UTF-8
        digest.update(len(encoded).to_bytes(8, "little") + encoded + contents)
    return digest.hexdigest()[:40]


def _write(path: Path, arrays: Mapping[str, NDArray]) -> None:
    """A reader never sees half a file; a folder that cannot be written to costs a warning."""
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".part", delete=False) as file:
            temporary = file.name
            np.savez(file, **arrays)  # pyright: ignore[reportArgumentType]
        os.replace(temporary, path)
    except OSError as error:
        if temporary is not None:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
        warnings.warn(f"decoded images are not kept for the next time: {error}", stacklevel=3)
