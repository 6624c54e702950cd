"""Who works on what: several processes share a folder of work, and a killed one leaves nothing locked."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def claim(path: Path, *, wait: bool = False) -> Iterator[bool]:
    """Holds the lock file ``path`` while entered; yields whether it is ours.

    The lock belongs to the process: the system takes it back when the process ends, however it ends.

    Args:
        path: the lock file; made where it is missing, and left there.
        wait: until another process lets go, instead of yielding False.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder, claim(Path(folder) / "a.lock") as mine:
        ...     print(mine)
        True
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        import fcntl
    except ImportError:  # Windows: nobody is kept out
        yield True
        return
    with open(path, "ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
            return
        try:
            yield True
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)
