"""Who works on what and for how long: several processes share a folder of work; a killed one locks nothing."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Iterator
from pathlib import Path

from discover.lab.training.errors import RunStopped
from discover.lab.training.signals import StopRequest


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


class OutOfTime(Exception):
    """The time is up; raised between two units, with everything so far on disk."""


@dataclasses.dataclass
class Deadline:
    """When to stop: after the unit in progress once ``seconds`` have passed (None: never), or when asked to."""

    seconds: float | None = None
    stop: StopRequest | None = None

    def __post_init__(self) -> None:
        self._began = time.monotonic()

    def check(self) -> None:
        """Raises :class:`OutOfTime` if the time is up, RunStopped after a signal too late for the unit it came in."""
        if self.stop is not None and self.stop.signal is not None:
            raise RunStopped("stopped between two runs; call it again to go on", self.stop.signal, 0)
        if self.seconds is not None and time.monotonic() - self._began >= self.seconds:
            raise OutOfTime
