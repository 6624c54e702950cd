"""Units: single trainings in one pool, named by what they train, so that nothing is trained twice."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil
from collections.abc import MutableMapping, Sequence
from pathlib import Path
from typing import Any

from discover.lab import records
from discover.lab.data import Dataset
from discover.lab.experiments.config.config import Config
from discover.lab.experiments.deadline import Deadline
from discover.lab.experiments.folder import claim
from discover.lab.experiments.reproduce.panels import Row
from discover.lab.experiments.run.build import build_clustering, build_data
from discover.lab.experiments.run.run import run
from discover.lab.training.errors import NonFiniteLoss


class Pool:
    """The units of a folder; trains those that are missing."""

    def __init__(self, out: Path, limit: Deadline, programs: MutableMapping[str, Any]) -> None:
        self.out, self.limit, self.programs = out, limit, programs
        self.trained = 0
        self._datasets: dict[str, Dataset] = {}
        self._names: dict[str, str] = {}  # of all that were loaded

    def member(self, config: Config, checkpoints: bool) -> dict[str, Any]:
        """The one member of a unit's summary, with null in place of what diverged."""
        return (records.read_summary(self.unit(config, checkpoints)) or {})["members"][0]

    def unit(self, config: Config, checkpoints: bool) -> Path:
        """The folder of a finished unit; trains it where it is not."""
        path = self.out / "units" / unit_name(config)
        with claim(path.with_suffix(".lock"), wait=True, check=self.limit.check):
            if not is_done(path):
                self.limit.check()
                self._train(config, path, checkpoints)
                self.trained += 1
        return path

    def dataset(self, config: Config) -> Dataset:
        """The unit's data; the last one used is kept, since units that follow each other mostly share theirs."""
        key = _data_key(config)
        if key not in self._datasets:
            self._datasets = {key: build_data(config)}
        self._names[key] = self._datasets[key].name
        return self._datasets[key]

    def data_name(self, config: Config) -> str | None:
        """What the unit's data is called, if it was loaded here."""
        return self._names.get(_data_key(config))

    def _train(self, config: Config, path: Path, checkpoints: bool) -> None:
        config = self._with_clusters_file(config)
        options: dict[str, Any] = {"programs": self.programs, "dataset": self.dataset(config)}
        try:
            # Without checkpoints there is nothing to go on from, and what is left may remember the data elsewhere.
            run(config, path, checkpoints=checkpoints, resume=checkpoints, overwrite=not checkpoints, **options)
        except NonFiniteLoss:
            summary = records.read_summary(path) or {}
            records.write_json(path / records.SUMMARY, {**summary, "status": "failed", "diverged": True})
        shutil.rmtree(path / records.CHECKPOINTS, ignore_errors=True)

    def _with_clusters_file(self, config: Config) -> Config:
        """Clusters that take longer to find than some units to train are found once, and read from a file."""
        clusters = config.clusters
        if not clusters.entry.costly:
            return config
        name = _digest([dataclasses.asdict(clusters), config.data.source, config.data.validation])
        path = self.out / "clusters" / f"{clusters.by}-{name}.npz"
        with claim(path.with_suffix(".lock"), wait=True, check=self.limit.check):
            if not path.exists():
                build_clustering(config, self.dataset(config)).save(path.with_suffix(".part.npz")).replace(path)
        return config.with_values({"clusters.by": "file", "clusters.path": str(path)})


def merge_runs(units: Sequence[Path], target: Path, config: Config) -> dict[str, Any]:
    """Writes runs that differ in their seed as one run directory, and returns its summary."""
    summaries = [records.read_summary(unit) or {} for unit in units]
    members = [member for summary in summaries for member in summary["members"]]
    for member, summary in zip(members, summaries):
        if summary.get("diverged"):
            member["final"] = None
    lines = [line for unit in units for line in records.read_metrics(unit)]
    environment = records.read_object(units[0] / records.ENVIRONMENT)
    summary = {**summaries[0], "status": "finished"}
    return records.write_run(target, config.to_dict(), environment, lines, summary, members)


def unit_config(row: Row, learning_rate: float, seed: int) -> Config:
    """The configuration of one unit."""
    return row.config.with_values({"optimizer.learning_rate": learning_rate, "training.seeds": [seed]})


def unit_name(config: Config) -> str:
    """Says which configurations train the same network; where the data lies, or a preset's name, does not matter.

    Only what differs from the defaults counts, so that a field added later leaves the names of what is trained alone.
    """
    defaults = Config().to_dict()
    same = {
        section: {key: value for key, value in values.items() if value != defaults[section].get(key)}
        for section, values in config.with_values({"data.path": None}).to_dict().items()
        if section != "name"
    }
    return f"{config.optimizer.name.replace(':', '.')}-{_digest(same)}"


def is_done(path: Path) -> bool:
    """Whether a unit needs no more training: it is finished, or it diverged and would again."""
    summary = records.read_summary(path) or {}
    return summary.get("status") == "finished" or bool(summary.get("diverged"))


def _data_key(config: Config) -> str:
    data, column = config.data, config.clusters.values_of
    return json.dumps([data.source, data.path, data.layout, data.size, data.validation, data.split_seed, column])


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:12]
