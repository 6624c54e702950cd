"""What the folders above a file say about it: `--layout domain/class` gives each level a name."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import PurePosixPath

from discover.lab.data.errors import DataError

PARTS = {"train": "train", "test": "test", "val": "validation", "valid": "validation", "validation": "validation"}
CLASS = "class"
"""The level whose folders are the labels, unless another is named."""


@dataclass(frozen=True)
class Place:
    """Where a file lies: its part of the data set, its class, and what the other levels of folders say."""

    part: str
    label: str
    columns: tuple[tuple[str, str], ...] = ()


def place_files(names: Iterable[str], layout: str | None = None, label: str | None = None) -> dict[str, Place]:
    """The place of each file that lies in folders as it should: {name: place}.

    Args:
        names: of the files, with "/".
        layout: the names of the levels, outermost first; None: one level, the class.
        label: the level that is the label; None: `class`.

    >>> place_files(["photo/dog/1.jpg", "sketch/cat/2.jpg"], "domain/class")["sketch/cat/2.jpg"]
    Place(part='train', label='cat', columns=(('domain', 'sketch'),))
    """
    split = {name: PurePosixPath(name).parts for name in names}
    levels = parse_layout(layout or CLASS, label)
    label = CLASS if label is None else label
    depth = common_depth(split.values(), len(levels))
    parted = any(parts[depth] == "train" for parts in split.values() if len(parts) >= depth + len(levels) + 2)
    rests = {}
    for name, parts in split.items():
        rest = parts[depth:]
        if not parted:
            rests[name] = ("train", rest)
        elif len(rest) > 1 and rest[0] in PARTS:
            rests[name] = (PARTS[rest[0]], rest[1:])
    if layout is None:
        _refuse_nested(rest for _, rest in rests.values())
    placed = {}
    for name, (part, rest) in rests.items():
        folders = rest[:-1]
        if len(folders) < len(levels) or (layout is not None and len(folders) > len(levels)):
            if layout is not None and folders:
                raise DataError(f"layout {layout!r} names {_count(levels)}, but {name} lies in {_count(folders)}")
            continue
        named = dict(zip(levels, folders))
        placed[name] = Place(part, named.pop(label), tuple(named.items()))
    return placed


def parse_layout(layout: str, label: str | None = None, *, needs_label: bool = True) -> tuple[str, ...]:
    """The names of the levels; one of them must be the label where one is needed."""
    levels = tuple(level.strip() for level in layout.strip("/").split("/"))
    if not all(levels) or len(set(levels)) != len(levels):
        raise DataError(f"a layout names each level of folders once, such as domain/class, got {layout!r}")
    if needs_label and (label or CLASS) not in levels:
        wrong = (
            f"level {label!r} is not in the layout {layout!r}" if label else f"no level of {layout!r} is called class"
        )
        raise DataError(f"{wrong}, and one must be the label", label=levels[-1])
    return levels


def common_depth(files: Collection[tuple[str, ...]], levels: int) -> int:
    """How many folders hold everything: a tar often has one at its top. They are no level, and no part."""
    depth = 0
    while any(len(parts) >= depth + levels + 2 for parts in files):
        firsts = {parts[depth] for parts in files if len(parts) >= depth + 2}
        if len(firsts) != 1 or firsts & set(PARTS):
            break
        depth += 1
    return depth


def _refuse_nested(rests: Iterable[tuple[str, ...]]) -> None:
    """Two folders of pictures within one class folder: then the outer ones are hardly the classes."""
    inner: dict[str, str] = {}
    for rest in rests:
        if len(rest) > 2 and inner.setdefault(rest[0], rest[1]) != rest[1]:
            shown = "/".join(rest)
            levels = "/".join(["domain", *(f"level{n}" for n in range(2, len(rest) - 1)), CLASS])
            raise DataError(
                f"folders lie in folders ({shown}), and which of them are the classes is not said", layout=levels
            )


def _count(levels: tuple[str, ...]) -> str:
    return f"{len(levels)} level{'s' if len(levels) > 1 else ''} of folders"
