"""A folder that a command works in: taken by one process, of one result, gone on with or replaced, never half of each.

What every command that leaves something does with its folder::

    with ComparisonFolder(path).claim() as folder:        # not ours to write, or another process's: FolderError
        if folder.open(settings, overwrite=overwrite):      # it holds this very comparison: go on with it
            ...
        else:                                             # (where it holds another one: FolderError)
            ...                                           # everything that can go wrong with the new one comes first
            with folder.replace():                        # now, and not before, what was there is deleted
                ...                                       # the new one's record, which makes the folder its own

A process that is killed leaves a folder that the next one can use: the system takes back the lock of a process that is
gone, and a replacement that was not completed counts as an empty folder. Whoever ends in any other way takes the lock
file with it, and a folder that it made and left empty.
"""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self, TypeVar

from filelock import FileLock, Timeout

from discover.lab import records
from discover.lab.training.errors import RunError, is_disk_full

__all__ = ["Folder", "FolderError", "claim", "share"]

LOCK = ".lock"
REPLACING = ".replacing"
POLL = 0.05
"""Seconds between two looks at what another process has."""

T = TypeVar("T")


class FolderError(RunError):
    """A folder cannot be used; the message is one line and says what to do."""


class Folder:
    """A folder and what a command keeps in it. Subclasses say what that is; this one keeps nothing.

    Attributes:
        noun: what messages call its contents.
        record: the file that makes the folder one of this kind; it is written last of all that a new one starts with.
        files: what else is written, files and folders.
        inside: folders of other kinds in it: a pattern and the kind.
        instead: what to do where it holds another one.
    """

    noun: ClassVar[str] = "result"
    record: ClassVar[str] = ""
    files: ClassVar[tuple[str, ...]] = ()
    inside: ClassVar[tuple[tuple[str, type[Folder]], ...]] = ()
    instead: ClassVar[str] = "choose another (--out), or replace it (--overwrite)"

    def __init__(self, path: str | Path):
        self.path = Path(path)
        self._held = contextlib.ExitStack()
        self._replacing = False

    def recorded(self) -> Mapping[str, Any]:
        """The settings of what is there, to be told from others; a ValueError where they cannot be read."""
        record = records.read_json(self.path / self.record)
        if not isinstance(record, dict):
            raise records.RecordsError(
                f"{self.path / self.record} must hold a JSON object, got {type(record).__name__}"
            )
        return record.get("plan") or {}

    def state(self) -> str:
        """How far it is, in a word or two, for a message."""
        return "unfinished"

    def claim(self, *, wait: bool = False) -> Self:
        """Keeps other processes out until the end.

        Args:
            wait: for another process to let go, instead of raising.

        Raises:
            FolderError: another process has it, or it cannot be written.
        """
        if self.path.exists() and not self.path.is_dir():
            raise FolderError(f"{self.path} is a file; the output must be a folder")
        try:
            mine = self._held.enter_context(claim(self.path / LOCK, wait=wait))
        except OSError as error:
            raise FolderError(f"{self.path} cannot be written: {error.strerror or error}") from None
        if not mine:
            raise FolderError(f"{self.path} is in use by another process")
        return self

    def open(self, settings: Mapping[str, Any], *, resume: bool = True, overwrite: bool = False) -> bool:
        """Looks at what is there.

        Args:
            settings: everything that decides the result, as :meth:`recorded` will return it.
            resume: whether what is there may be gone on with.
            overwrite: whether what is there is to be replaced.

        Returns:
            Whether the folder holds a result of these settings, whole or in part. If not, :meth:`replace` is next.

        Raises:
            FolderError: it holds a result of other settings, or something else.
        """
        if self._was_being_replaced():
            return False
        if not (self.path / self.record).exists():
            names = {item.name for item in self.path.iterdir() if not item.name.startswith((LOCK, REPLACING))}
            names -= {item.name for item in self.path.glob(".*.tmp")}  # what a kill leaves of a file being written
            if others := sorted(names):
                raise FolderError(
                    f"{self.path} is not empty and holds no {self.noun} ({others[0]}); choose another (--out)"
                )
            return False
        if overwrite:
            return False
        if not resume:
            raise FolderError(
                f"{self.path} already holds a {self.noun} ({self.state()}); go on with it (--resume), or {self.instead}"
            )
        try:
            found = list(_differences(self.recorded(), settings))
        except ValueError as error:
            raise FolderError(f"{self.path} cannot be resumed: {error}") from None
        if found:
            more = f", and {len(found) - 1} more" if len(found) > 1 else ""
            raise FolderError(f"{self.path} holds another {self.noun} ({found[0]}{more}); {self.instead}")
        return True

    @contextlib.contextmanager
    def replace(self) -> Iterator[None]:
        """Deletes what a command wrote; while entered the folder counts as empty, at the end it has the new record."""
        records.write_text(self.path / REPLACING, self.noun)
        self._replacing = True
        self._delete()
        yield
        (self.path / REPLACING).unlink()
        self._replacing = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self._replacing:  # what was begun and could not be completed
                with contextlib.suppress(OSError):
                    self._delete()
                    (self.path / REPLACING).unlink()
                    self._replacing = False
        finally:
            self._held.close()
        if error is not None and not isinstance(error, RunError) and is_disk_full(error):
            raise FolderError(f"no space left on the disk for {self.path}: free some space and resume") from error

    def _was_being_replaced(self) -> bool:
        """Whether a process was killed while it replaced one of this kind."""
        path = self.path / REPLACING
        return path.is_file() and path.read_bytes() == self.noun.encode()

    def _delete(self) -> None:
        for pattern, kind in self.inside:
            for path in self.path.glob(pattern):
                if path.is_symlink() or not path.is_dir():
                    continue  # not ours
                kind(path)._delete()
                for name in (LOCK, REPLACING):
                    (path / name).unlink(missing_ok=True)
                with contextlib.suppress(OSError):  # somebody else's files are left, and the folders they are in
                    path.rmdir()
            with contextlib.suppress(OSError):
                (self.path / pattern).parent.rmdir()
        names = [name for name in (*self.files, self.record) if name]
        for item in (*(self.path / name for name in names), *self.path.glob(".*.tmp")):
            if item.is_dir() and not item.is_symlink():
                shutil.rmtree(item)
            else:
                item.unlink(missing_ok=True)


@contextlib.contextmanager
def claim(path: Path, *, wait: bool = False, check: Callable[[], None] = lambda: None) -> Iterator[bool]:
    """Holds the lock file ``path`` while entered; yields whether it is ours.

    The lock belongs to the process: the system takes it back when the process ends, however it ends.

    Args:
        path: the lock file; it and its folder are made where they are missing, and are gone at the end.
        wait: until another process lets go, instead of yielding False.
        check: called while waiting; it may raise to give up.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder, claim(Path(folder) / "a.lock") as mine:
        ...     print(mine)
        True
    """
    made = [folder for folder in path.parents if not folder.exists()]
    lock = FileLock(path)
    mine = _acquire(lock, path)
    while wait and not mine:
        check()
        time.sleep(POLL)
        mine = _acquire(lock, path)
    try:
        yield mine
    finally:
        if mine:
            with contextlib.suppress(OSError):  # Windows deletes no file that is open, and filelock does it later
                path.unlink()
            lock.release()
        with contextlib.suppress(OSError):
            for folder in made:
                folder.rmdir()  # if it is empty


def share(
    units: Iterable[T], lock: Callable[[T], Path], work: Callable[[T], None], check: Callable[[], None] = lambda: None
) -> None:
    """Does ``work`` on every unit; several processes with the same units and locks never have the same one at once.

    Args:
        units: what there is to do. Those that another process has are looked at again when it lets go.
        lock: the lock file of a unit.
        work: does it, or sees that it is done already.
        check: called while all that is left is with other processes; it may raise to give up.
    """
    waiting = list(units)
    while waiting:
        busy = []
        for unit in waiting:
            with claim(lock(unit)) as mine:
                if mine:
                    work(unit)
                else:
                    busy.append(unit)
        if len(busy) == len(waiting):
            check()
            time.sleep(POLL)
        waiting = busy


def _acquire(lock: FileLock, path: Path) -> bool:
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire(timeout=0)
            return True
        except Timeout:
            return False
        except FileNotFoundError:  # whoever made the folder has just taken it away, empty
            time.sleep(0.01)


def _differences(then: Any, now: Any, path: str = "") -> Iterator[str]:
    """What is not the same in two trees of settings, one line each."""
    if isinstance(then, Mapping) and isinstance(now, Mapping):
        for key in [*then, *(key for key in now if key not in then)]:
            name = f"{path}.{key}" if path else str(key)
            if key not in then or key not in now:
                yield f"{name} is only in the {'new' if key in now else 'old'} one"
            else:
                yield from _differences(then[key], now[key], name)
    elif records.finite(then) != records.finite(now):
        shown = f"{path} was {_show(then)}, now {_show(now)}"
        yield shown if len(shown) <= 100 else f"other {path}"


def _show(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else "none" if value is None else str(value)
