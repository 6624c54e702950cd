"""Text files (`.txt`), in a folder, in a tar or one alone, read byte by byte."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath

import numpy as np
from numpy.typing import NDArray

from discover.lab.data.dataset import Dataset, Split, stratified_split
from discover.lab.data.errors import DataError, DatasetNotFoundError, check_at_least, listed
from discover.lab.data.limits import check_bytes, honest_size_of_all, most_bytes, read_ordinary, text_array
from discover.lab.data.sources.archives import is_tar, read_tar
from discover.lab.data.sources.layout import CLASS, common_depth, parse_layout
from discover.lab.text import printable

BYTES = 256
MOST_TEST = 2000
"""Pieces that are held out where nothing else is said: more would tell little more, and take long."""


def load_text(
    path: str | os.PathLike[str],
    *,
    layout: str | None = None,
    label: str | None = None,
    clusters: str | None = None,
    length: int = 128,
    test_fraction: float | None = None,
    seed: int = 0,
) -> Dataset:
    """A data set of text, to guess every next byte from those before it, or the class of a file.

    The levels of folders, and the file's name without `.txt` where the layout names one level more, are columns to
    cluster by. If one of them is the label, a file is an example: its first `length` bytes. Else there is nothing to
    label, and every file is cut into pieces of `length` bytes.

    Args:
        path: a folder, a tar of one, or a `.txt` file.
        layout: the names of the levels, as in `language/author`; if absent, one level, the file's name, called
            `clusters`, or `file`.
        label: the level that is the label, if one is; the level called `class` is in any case.
        clusters: what the file's name is called, if there is no layout.
        length: bytes in an example.
        test_fraction: the share to hold out; if absent a fifth, and of pieces at most 2000.
        seed: of what is held out.
    """
    path = Path(path)
    check_at_least("length", length, 2)
    if not path.exists():
        raise DatasetNotFoundError(f"there is no {path}: looked for text files (.txt), in a folder or a tar")
    levels = _levels(layout, label, clusters)
    label = label or (CLASS if CLASS in levels else None)
    paths = [path] if path.is_file() else _walk(path)
    most = most_bytes(honest_size_of_all(paths))
    examples, rows, short = [], [], []
    files = sorted(_files(path, paths, most))
    top = common_depth([PurePosixPath(name).parts for name, _ in files], len(levels) - 1)
    for name, contents in files:
        parts = PurePosixPath(name).with_suffix("").parts[top:]
        named = parts[: len(levels)] if len(parts) in (len(levels), len(levels) + 1) else ()
        if not named and layout is None:
            told = f"folders lie in folders ({name}), and what their levels are called is not said"
            raise DataError(told, layout="/".join(_suggested(len(parts) - 1, clusters, label)))
        if not named:
            raise DataError(f"layout {'/'.join(levels)!r} names {len(levels)} levels, but {name} has {len(parts)}")
        pieces = encode([contents], length) if label else cut(contents, length)
        examples.append(pieces)
        short += [] if len(pieces) else [name]
        rows += [named] * len(pieces)
    if not rows:
        raise DataError(f"{path} has no text of {length} bytes in a .txt file")
    if short:
        some = listed(short)
        warnings.warn(printable(f"left out files of less than {length} bytes in {path}: {some}"), stacklevel=2)
    columns = {
        level: text_array(f"level {level} of {path}", [row[n] for row in rows], most) for n, level in enumerate(levels)
    }
    name, pieces = path.name.partition(".")[0], np.concatenate(examples)
    if not label:
        return next_byte(name, pieces, columns, test_fraction, seed)
    names, labels = np.unique(columns.pop(label), return_inverse=True)
    everything = Split(pieces, labels.astype(np.int32), columns, text=True)
    train, test = stratified_split(labels, 0.2 if test_fraction is None else test_fraction, seed)
    return Dataset(name, everything.subset(train), everything.subset(test), len(names), tuple(names.tolist()))


def next_byte(
    name: str, pieces: NDArray[np.uint8], columns: Mapping[str, NDArray], test_fraction: float | None, seed: int
) -> Dataset:
    """The data set of pieces of text [n, L] whose every next byte is to be guessed."""
    everything = Split(pieces, np.zeros(len(pieces), np.int32), columns, text=True)
    fraction = min(0.2, MOST_TEST / len(pieces)) if test_fraction is None else test_fraction
    train, test = stratified_split(everything.labels, fraction, seed)
    return Dataset(name, everything.subset(train), everything.subset(test), BYTES, next_byte=True)


def encode(texts: Iterable[bytes], length: int) -> NDArray[np.uint8]:
    """The first `length` bytes of each text, with zeros at the end of shorter ones.

    >>> encode([b"abc", b"a"], 2).tolist()
    [[97, 98], [97, 0]]
    """
    filled = b"".join(text[:length].ljust(length, b"\0") for text in texts)
    return np.frombuffer(filled, np.uint8).reshape(-1, length)


def cut(contents: bytes, length: int) -> NDArray[np.uint8]:
    """The whole pieces of a text; what is left at its end is left out."""
    return np.frombuffer(contents, np.uint8)[: len(contents) // length * length].reshape(-1, length)


def _levels(layout: str | None, label: str | None, clusters: str | None) -> tuple[str, ...]:
    if layout is None:
        return (label or clusters or "file",)
    return parse_layout(layout, label, needs_label=label is not None)


def _suggested(count: int, *known: str | None) -> list[str]:
    """Names for so many levels; those that have one are the innermost.

    >>> _suggested(3, "author", None)
    ['level1', 'level2', 'author']
    """
    names = [name for name in known if name is not None]
    return [f"level{n}" for n in range(1, count + 1 - len(names))] + names


def _walk(path: Path) -> list[Path]:
    """The text files of a folder."""
    return sorted(file for file in path.rglob("*") if is_text(file.name) and not file.is_dir())


def _files(path: Path, paths: list[Path], most: int) -> Iterator[tuple[str, bytes]]:
    """Names and contents, which may take `most` bytes in all."""
    if path.is_file() and is_tar(path):
        found = ((name, contents) for name, contents in read_tar(path) if is_text(name))
    elif path.is_file():
        found = iter([(path.name, read_ordinary(path))])
    else:
        found = ((file.relative_to(path).as_posix(), read_ordinary(file)) for file in paths)
    total = 0
    for name, contents in found:
        total += len(contents)
        check_bytes(f"the text in {path}", total, most)
        yield name, contents


def is_text(name: str) -> bool:
    """Whether a file is a text that is read, by its ending; hidden files are not."""
    return name.lower().endswith(".txt") and not PurePosixPath(name).name.startswith(".")
