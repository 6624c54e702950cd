"""A run's folder: what a run starts with, ends with, and what it may be resumed from."""

from __future__ import annotations

import contextlib
import os
from typing import Any

from discover.lab import records
from discover.lab.experiments.config.config import Config
from discover.lab.experiments.folder import Folder


class RunDirectory(Folder):
    """Held by one process at a time, from before the first write to after the last."""

    noun = "run"
    record = records.CONFIG
    files = (
        records.METRICS,
        records.SUMMARY,
        records.ENVIRONMENT,
        "report.html",
        records.CHECKPOINTS,
        "figures",
        "tensorboard",
    )

    _resumed = False

    def recorded(self) -> dict[str, Any]:
        config = Config.from_dict(records.read_json(self.path / records.CONFIG))
        members = (records.read_summary(self.path) or {}).get("members", [])
        return settings(config, [{key: member.get(key) for key in ("seed", "hyperparameters")} for member in members])

    def state(self) -> str:
        with contextlib.suppress(ValueError):
            summary = records.read_summary(self.path)
            if summary is not None:
                return f"{summary.get('status', 'unknown')}, step {summary.get('steps', 0)}"
        return super().state()

    def take(self, config: Config, members: list[dict[str, Any]], *, resume: bool, overwrite: bool = False) -> bool:
        """Takes the folder for a run; returns whether it holds this very run, finished."""
        self.claim()
        self._resumed = self.open(settings(config, members), resume=resume, overwrite=overwrite)
        if not self._resumed or not records.is_finished(self.path):
            return False
        size = os.path.getsize(self.path / records.METRICS) if (self.path / records.METRICS).exists() else 0
        # Damaged metrics are made again where there is something to make them from.
        return records.undamaged_length(self.path) == size or not (self.path / records.CHECKPOINTS).exists()

    def begin(self, config: Config, members: list[dict[str, Any]], environment: dict[str, Any]) -> None:
        """Writes the configuration and the environment, or notes in what environment a run that is there goes on."""
        path = self.path / records.ENVIRONMENT
        if self._resumed:
            first = records.read_object(path)  # damaged: no reason to stop
            earlier = first.get("resumed")
            changed = {key: value for key, value in environment.items() if first.get(key) != value}
            records.write_json(path, {**first, "resumed": [*(earlier if isinstance(earlier, list) else []), changed]})
            return
        summary = {"status": "running", "steps": 0, "members": members, "seeds": [m["seed"] for m in members]}
        with self.replace():
            records.write_json(path, environment)
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
        if note.get("metrics_checksum") not in (None, records.checksum(path, note["metrics_length"]) if have else 0):
            return f"{records.METRICS} is damaged"
        return None

    def covered(self, note: dict[str, Any]) -> int:
        """How much of the metrics goes with a checkpoint: all that it remembers, or what is whole of it."""
        if self.accepts(note) is None:
            return note["metrics_length"]
        return min(note["metrics_length"], records.undamaged_length(self.path))


def settings(config: Config, members: list[dict[str, Any]]) -> dict[str, Any]:
    """What decides a run."""
    return {**config.to_dict(), "members": members}
