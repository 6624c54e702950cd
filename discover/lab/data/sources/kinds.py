"""Which source reads a path: by its ending, or by what lies in the folder or the tar."""

from __future__ import annotations

import collections
import contextlib
import io
import itertools
import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from PIL import Image

from discover.lab.data.errors import DataError
from discover.lab.data.images.decoding import is_image, readable
from discover.lab.data.limits import honest_size
from discover.lab.data.sources.archives import TAR_SUFFIXES, is_tar, read_tar
from discover.lab.data.sources.folders import walk_images
from discover.lab.data.sources.table import SOURCES
from discover.lab.data.sources.tabular import SUFFIXES
from discover.lab.data.sources.text import is_text
from discover.lab.text import printable
from discover.registry import load_object

LOOKED_AT = 1000
"""Pictures and texts that say which of the two a folder or a tar is of."""


def source_of(path: str | os.PathLike[str]) -> str:
    """The name of the source that reads a path: `npz`, `table`, `text` or `folder`."""
    path = Path(path)
    suffix = path.suffix.lower()
    if path.resolve() == path.resolve().parent:  # it would be searched for minutes
        raise DataError(f"{path} is all that the machine holds: name the folder that the data are in")
    if path.is_dir() or is_tar(path):
        known = ("folder" if is_image(name) else "text" for name in _names(path) if is_image(name) or is_text(name))
        kinds = collections.Counter(itertools.islice(known, LOOKED_AT))  # pictures may have a readme.txt beside them
        if not kinds:
            raise DataError(f"{path} holds neither pictures nor text files (.txt)")
        return "text" if kinds["text"] > kinds["folder"] else "folder"
    for source, suffixes in (("npz", (".npz",)), ("table", SUFFIXES), ("text", (".txt",))):
        if suffix in suffixes:
            return source
    kinds = f".npz, {', '.join(SUFFIXES)}, .txt or a tar"
    raise DataError(f"{path} is no folder, and no file of a kind that is read ({kinds})")


def name_of(path: str | os.PathLike[str]) -> str:
    """What a data set is called: its folder, or its file without the ending.

    >>> name_of("data/pacs48.tar.xz"), name_of("reviews.csv")
    ('pacs48', 'reviews')
    """
    name = Path(path).resolve().name
    ending = next((suffix for suffix in TAR_SUFFIXES if name.lower().endswith(suffix)), Path(name).suffix)
    return printable(name[: len(name) - len(ending)] if ending and not Path(path).is_dir() else name) or "data"


def picture_sides(path: str | os.PathLike[str], most: int = 50) -> list[int]:
    """The shorter side in pixels of the first pictures of a folder or a tar, read from their headers alone."""
    path, sides = Path(path), []
    files = walk_images(path) if path.is_dir() else (file for file in read_tar(path) if is_image(file[0]))
    for _, contents in itertools.islice(files, most):
        with contextlib.suppress(OSError, ValueError, Image.DecompressionBombError):  # whoever decodes it reports it
            if isinstance(contents, Path):
                honest_size(contents)  # a pipe would never be opened
            file = contents if isinstance(contents, Path) else io.BytesIO(contents)
            with Image.open(file, formats=readable()) as image:
                sides.append(min(image.size))
    return sides


def left_out(path: str | os.PathLike[str], source: str = "folder") -> str:
    """What lies in a folder or a tar and is not read, in one line: files by ending, and empty folders; else ""."""
    path, entry = Path(path), SOURCES.find(source)
    read = load_object("function", entry.picks)
    others = collections.Counter()
    for name in map(PurePosixPath, _names(path)):
        others.update([name.suffix or name.name] if not read(name.name) and not name.name.startswith(".") else [])
    empty = sum(not folders and not files and Path(at) != path for at, folders, files in os.walk(path))
    kinds = ", ".join(f"{count} {kind}" for kind, count in others.most_common(5))
    said = [f"files that are no {entry.files}: {kinds}"] if kinds else []
    return "; ".join(said + ([f"empty folders: {empty}"] if empty else []))


def _names(path: Path) -> Iterator[str]:
    if path.is_dir():
        for _, _, files in os.walk(path, followlinks=False):
            yield from sorted(files)
    else:
        yield from (name for name, _ in read_tar(path))
