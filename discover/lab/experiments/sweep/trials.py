"""One trial of a sweep: its training, its score, its record."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from discover.lab import records
from discover.lab.data import Dataset
from discover.lab.experiments.folder import LOCK
from discover.lab.experiments.run.build import build_data
from discover.lab.experiments.run.run import run
from discover.lab.experiments.sweep.search import Search
from discover.lab.training.errors import NonFiniteLoss
from discover.lab.training.progress import Quiet

Judge = Callable[[int, float], None]
"""Called with each evaluation: a step that grows over all of a trial's seeds, and the mean validation accuracy."""


class Trials:
    """The trials of a sweep in a folder.

    ``trials/0007.json`` is the record of a trial that has ended, ``trials/0007/`` its run directory.
    """

    def __init__(
        self, search: Search, directory: Path, programs: MutableMapping[str, Any], loaded: Dataset | None = None
    ):
        self.search, self.directory, self.programs, self._loaded = search, directory, programs, loaded
        self._dataset: Dataset | None = None

    def path(self, number: int) -> Path:
        return self.directory / "trials" / f"{number:04d}"

    def lock(self, number: int) -> Path:
        """Held by whoever trains it, from before its training to after its record."""
        return self.path(number).with_suffix(".lock")

    def read(self, number: int) -> dict[str, Any] | None:
        """The record of a trial that has ended."""
        path = self.path(number).with_suffix(".json")
        return records.read_json(path) if path.exists() else None

    def ended(self) -> list[dict[str, Any]]:
        """The records of all that have, by number."""
        return [records.read_json(path) for path in sorted((self.directory / "trials").glob("*.json"))]

    def train(self, number: int, params: Mapping[str, float], judge: Judge | None = None) -> dict[str, Any]:
        """Trains a trial to its end (or goes on with it), and returns its record without writing it.

        The test split is not there: nothing in a trial can look at it.
        """
        config = self.search.trial_config(params)
        try:
            result = run(
                config,
                self.path(number),
                dataset=self.dataset(test=False),
                progress=_Judged(judge) if judge is not None else None,
                checkpoints=config.training.checkpoint_every > 0,
                resume=True,
                programs=self.programs,
            )
            values = [((m.final or {}).get("validation") or {}).get("accuracy") for m in result.members]
        except NonFiniteLoss:
            values: list[float | None] = [None] * len(config.training.seeds)
        score = records.spread(values)
        return self.record(number, params, "complete" if score["mean"] is not None else "diverged", score)

    def record(
        self, number: int, params: Mapping[str, float], state: str, score: dict[str, Any] | None
    ) -> dict[str, Any]:
        return {"number": number, "params": dict(params), "state": state, "validation_accuracy": score}

    def write(self, record: dict[str, Any]) -> None:
        """Keeps the record of a trial that has ended; checkpoints, and the lock of a process that was killed, go."""
        path = self.path(record["number"])
        path.parent.mkdir(parents=True, exist_ok=True)
        records.write_json(path.with_suffix(".json"), record)
        shutil.rmtree(path / records.CHECKPOINTS, ignore_errors=True)
        (path / LOCK).unlink(missing_ok=True)

    def dataset(self, *, test: bool) -> Dataset:
        """The data set, loaded once; without its test split for the trials."""
        if self._dataset is None:
            self._dataset = build_data(self.search.config, loaded=self._loaded)
        return self._dataset if test else replace(self._dataset, test=self._dataset.test.subset(np.arange(0)))


class _Judged(Quiet):
    """Hands evaluations on. Where seeds train one after the other, the steps of the second follow the first's."""

    def __init__(self, judge: Judge):
        self._judge = judge
        self._parts, self._total = -1, 0

    def start(self, *, step: int, total_steps: int, members: int) -> None:
        self._parts += 1
        self._total = total_steps

    def evaluated(self, *, step: int, split: str, loss: float, accuracy: float) -> None:
        if split == "validation":
            self._judge(self._parts * self._total + step, accuracy)
