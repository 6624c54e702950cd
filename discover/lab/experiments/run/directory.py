"""A run's folder: whose it is, whether it may be written, and what was there before."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from discover.lab import records
from discover.lab.experiments.config.config import Config, ConfigError
from discover.lab.training.errors import RunError

LOCK = ".lock"


class RunDirectory:
    """Held by one process at a time, from before the first write to after the last."""

    def __init__(self, path: Path):
        self.path = path
        self._lock: IO[bytes] | None = None

    def open(self, config: Config, members: list[dict[str, Any]], *, resume: bool, overwrite: bool = False) -> bool:
        """Looks at what is there, and takes the folder.

        Args:
            config: of the run that is to be started or resumed.
            members: its members, as summary.json has them.
            resume: whether to go on with what is there.
            overwrite: whether a run may be there that is to be replaced; :meth:`clear` deletes it.

        Returns:
            Whether the folder holds this very run, finished. (Only where ``resume``.)

        Raises:
            RunError: it holds another run, something else, or cannot be written; or another process has it.
        """
        path = self.path
        if path.exists() and not path.is_dir():
            raise RunError(f"{path} is a file; the output must be a folder")
        held = path.is_dir() and any(item.name != LOCK for item in path.iterdir())
        has_run = (path / records.CONFIG).exists()
        replaced = overwrite and holds_run(path)
        if held and not has_run and not replaced and any((path / records.CHECKPOINTS).glob("*")):
            raise RunError(f"{path} has checkpoints but no {records.CONFIG}; choose another folder")
        if held and not has_run and not replaced and not _only_leftovers(path):
            raise RunError(f"{path} is not empty and holds no run; choose another folder")
        if has_run and not resume and not overwrite:
            raise RunError(f"{path} already holds a run ({_state(path)}); resume it or choose another folder")
        try:
            path.mkdir(parents=True, exist_ok=True)
            self.take()
        except OSError as error:
            if isinstance(error, BlockingIOError):
                raise RunError(f"{path} is in use by another process") from None
            raise RunError(f"{path} cannot be written: {error.strerror or error}") from None
        if not has_run or overwrite:
            return False
        self._same_run(config, members)
        return records.is_finished(path)

    def clear(self) -> None:
        """Deletes the run that is to be replaced; for when everything that the new one needs is there."""
        remove_run(self.path)

    def begin(self, config: Config, members: list[dict[str, Any]], environment: dict[str, Any]) -> None:
        """Writes the configuration and the environment, if they are not there yet.

        The configuration comes last: where it is, the others are too.
        """
        if (self.path / records.CONFIG).exists():
            self._resumed(environment)
            return
        summary = {"status": "running", "steps": 0, "members": members, "seeds": [m["seed"] for m in members]}
        records.write_json(self.path / records.ENVIRONMENT, environment)
        records.write_json(self.path / records.SUMMARY, summary)
        records.write_text(self.path / records.CONFIG, config.to_json())

    def end(self, summary: dict[str, Any]) -> None:
        """Writes the summary."""
        records.write_json(self.path / records.SUMMARY, summary)

    def accepts(self, note: dict[str, Any]) -> str | None:
        """Says why a checkpoint cannot be resumed from, given the metrics that are there; None if it can."""
        path = self.path / records.METRICS
        have = path.stat().st_size if path.exists() else 0
        if have < note["metrics_length"]:
            return f"{records.METRICS} has {have} bytes of {note['metrics_length']}"
        return None

    def __enter__(self) -> RunDirectory:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def take(self) -> None:
        """Keeps other processes out until the end; raises BlockingIOError where another one has the folder."""
        self._lock = open(self.path / LOCK, "ab")  # noqa: SIM115 (closed on exit)
        with contextlib.suppress(ImportError):  # without fcntl (Windows) nobody is kept out
            import fcntl

            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def mark(self, text: str) -> str:
        """Leaves a text for those who look for it, in the file that keeps others out; returns it."""
        assert self._lock is not None  # taken
        self._lock.truncate(0)
        self._lock.write(text.encode())
        self._lock.flush()
        return text

    def read_mark(self) -> str | None:
        """The text that whoever took the folder has left; None where there is none."""
        try:
            return (self.path / LOCK).read_text()
        except OSError:
            return None

    def _same_run(self, config: Config, members: list[dict[str, Any]]) -> None:
        try:
            before = Config.from_dict(records.read_json(self.path / records.CONFIG))
            summary = records.read_summary(self.path) or {}
        except (ConfigError, ValueError) as error:
            raise RunError(f"{self.path} cannot be resumed: {error}") from None
        different = before.diff(config)
        if different:
            key, (then, now) = next(iter(different.items()))
            more = f" (and {len(different) - 1} more)" if len(different) > 1 else ""
            raise RunError(
                f"{self.path} was started with {key}={_show(then)}, not {_show(now)}{more}; "
                "resume with the same configuration or choose another folder"
            )
        recorded = [{k: m.get(k) for k in ("seed", "hyperparameters")} for m in summary.get("members", [])]
        if recorded != members:
            raise RunError(f"{self.path} was started with other members (seeds or hyperparameters)")

    def _resumed(self, environment: dict[str, Any]) -> None:
        """Keeps the first environment, and notes what was different when the run went on."""
        path = self.path / records.ENVIRONMENT
        first = records.read_json(path) if path.exists() else {}
        changed = {key: value for key, value in environment.items() if first.get(key) != value}
        records.write_json(path, {**first, "resumed": [*first.get("resumed", []), changed]})


def holds_run(path: Path) -> bool:
    """Whether a folder holds a run, or nothing but what is left of one: its checkpoints."""
    if (path / records.CONFIG).is_file():
        return True
    parts = list((path / records.CHECKPOINTS).glob("*"))
    names = {records.CHECKPOINTS, records.ENVIRONMENT, records.SUMMARY, LOCK}
    ours = bool(parts) and all(part.is_dir() and part.name.startswith("part-") for part in parts)
    return ours and all(item.name in names or item.name.endswith(".tmp") for item in path.iterdir())


def remove_run(path: Path) -> None:
    """Deletes the run in a folder, and nothing that a run did not write; the configuration last, to be found again."""
    if not holds_run(path):
        return
    files = (records.METRICS, records.SUMMARY, records.ENVIRONMENT, "report.html")
    for name in (*files, records.CHECKPOINTS, "figures", "tensorboard", records.CONFIG):
        item = path / name
        if item.is_dir() and not item.is_symlink():
            shutil.rmtree(item)
        else:
            item.unlink(missing_ok=True)


def _only_leftovers(path: Path) -> bool:
    """A run that was killed before its configuration was written leaves these; starting over them is safe."""
    names = {records.ENVIRONMENT, records.SUMMARY, LOCK}
    return all(item.name in names or item.name.endswith(".tmp") for item in path.iterdir())


def _state(path: Path) -> str:
    with contextlib.suppress(ValueError):
        summary = records.read_summary(path)
        if summary is not None:
            return f"{summary.get('status', 'unknown')}, step {summary.get('steps', 0)}"
    return "unfinished"


def _show(value: Any) -> str:
    return (
        ",".join(str(v) for v in value)
        if isinstance(value, tuple)
        else str(value).lower()
        if value is None
        else str(value)
    )
