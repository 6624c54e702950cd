"""How much of the machine a file may take: as much as its honest size warrants, and no more than is free.

What a file claims, and what it unpacks to, can be anything. What it takes on the disk cannot be forged: a file may
become `SLACK` bytes, and `RATIO` times what it takes on the disk, but never more than half of the memory that is free.
Whoever knows better says so: `DISCOVER_MAX_BYTES=64e9` sets the limit, whatever the file and the machine.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Collection, Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from discover.lab.data.errors import ArchiveError, DataError

VARIABLE = "DISCOVER_MAX_BYTES"
SLACK = 256 << 20
RATIO = 100
"""Pictures and tables unpack to ten or twenty times their size, bombs to a thousand times and more."""
_UNKNOWN = 4 << 30  # free memory, where the system does not say


def free_memory() -> int:
    """The bytes that this process can still have: of the machine, and of the container that it is in."""
    found = [_available(), _left_to_the_group()]
    return min((one for one in found if one is not None), default=_UNKNOWN)


def most_bytes(honest: int) -> int:
    """The bytes of memory that files may take which take `honest` bytes on the disk."""
    chosen = _chosen()
    return chosen if chosen is not None else min(free_memory() // 2, SLACK + RATIO * honest)


def most_to_read(honest: int) -> int:
    """The bytes that files may unpack to which take `honest` bytes on the disk, where they are not held in memory."""
    chosen = _chosen()
    return SLACK + RATIO * honest if chosen is None else max(chosen, honest)


def check_bytes(what: object, claimed: int, most: int) -> None:
    """Raise if something claims more bytes than it may take."""
    if claimed > most:
        raise ArchiveError(f"{what} takes {_shown(claimed)}, more than the limit of {_shown(most)} ({raised_by()})")


def text_array(what: object, texts: Collection[str], most: int) -> NDArray[np.str_]:
    """Texts as an array, in which each takes as much as the longest, and loses the NULs at its end."""
    check_bytes(what, 4 * len(texts) * max(map(len, texts), default=0), most)
    if any(text.endswith("\0") for text in texts):
        raise ArchiveError(f"{what} has a text that ends with a NUL, and would be taken for another one")
    return np.array(list(texts), "U")


def raised_by() -> str:
    """How a limit can be raised, for messages."""
    return f"set {VARIABLE} to allow more"


def honest_size(path: str | os.PathLike[str]) -> int:
    """The bytes that an ordinary file takes on the disk: fewer than its length where it has holes.

    Raises:
        ArchiveError: it is something else (a pipe, a device), which is not opened: it might never end.
    """
    found = os.stat(path)
    if not stat.S_ISREG(found.st_mode):
        kinds = ((stat.S_ISFIFO, "a pipe"), (stat.S_ISCHR, "a device"), (stat.S_ISBLK, "a device"))
        kind = next((name for test, name in (*kinds, (stat.S_ISDIR, "a folder")) if test(found.st_mode)), "a socket")
        raise ArchiveError(f"{path} is {kind}; only ordinary files are read")
    return min(found.st_size, getattr(found, "st_blocks", found.st_size) * 512)


def honest_size_of_all(paths: Iterable[str | os.PathLike[str]]) -> int:
    """The bytes that they take on the disk together: a file that has many names, or links to it, takes them once."""
    sizes = {}
    for path in paths:
        with contextlib.suppress(OSError, DataError):  # whoever reads it says what is wrong with it
            size, found = honest_size(path), os.stat(path)
            sizes[found.st_dev, found.st_ino] = size
    return sum(sizes.values())


def check_ordinary(path: str | os.PathLike[str]) -> int:
    """The length of an ordinary file, of which not too much is holes; its memory is another question."""
    honest, length = honest_size(path), os.stat(path).st_size
    check_bytes(path, length, most_to_read(honest))
    return length


def read_ordinary(path: str | os.PathLike[str]) -> bytes:
    """The contents of an ordinary file."""
    honest = honest_size(path)
    check_bytes(path, os.stat(path).st_size, most_bytes(honest))
    return Path(path).read_bytes()


def _chosen() -> int | None:
    text = os.environ.get(VARIABLE)
    if not text:
        return None
    try:
        value = int(float(text))
    except (ValueError, OverflowError):
        value = 0
    if value < 1:
        raise DataError(f"{VARIABLE} must be a number of bytes, such as 64e9, got {text!r:.40}")
    return value


def _shown(count: int) -> str:
    return f"{count / 1e9:,.1f} GB" if count >= 1e8 else f"{count:,} bytes"


def _available() -> int | None:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, AttributeError):
        return None


def _left_to_the_group() -> int | None:
    """What the container may still take; what it holds of files can be given back at any time."""
    root = Path("/sys/fs/cgroup")
    for most, used in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        try:
            limit, taken = int((root / most).read_text()), int((root / used).read_text())
            counts = dict(line.split() for line in (root / used).with_name("memory.stat").read_text().splitlines())
            cached = int(counts.get("inactive_file", counts.get("total_inactive_file", 0)))
            return max(0, limit - taken + cached)
        except (OSError, ValueError):  # no such group, or "max"
            continue
    return None
