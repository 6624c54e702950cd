"""The devices and processes that train one run together: who holds which part of the data, and who writes."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import time
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from discover.lab import records
from discover.lab.data import CLUSTERINGS, BatchPlan, Dataset, Examples, Split
from discover.lab.experiments.config.config import Config
from discover.lab.experiments.folder import LOCK
from discover.lab.experiments.run.build import build_clustering, build_data, build_plan
from discover.lab.experiments.run.directory import RunDirectory
from discover.lab.training.devices import Devices
from discover.lab.training.errors import RunError
from discover.lab.training.hosts.connection import connect
from discover.lab.training.hosts.heartbeat import TIMEOUT
from discover.lab.training.hosts.processes import Processes
from discover.lab.training.loop import Feed
from discover.lab.training.step import StepBatch, draw_batches

_OWN_PATHS = ("data.path", "clusters.path")


class Team:
    """One device, or several of this process or of several.

    Args:
        devices: how many, or `all`.
        processes: the processes of the run; None: only this one.
    """

    def __init__(self, devices: str | int = 1, processes: Processes | None = None):
        self.processes = processes if processes is not None else Processes()
        self.own_data = False  # whether each process has its own; `check` knows
        self.devices = Devices(devices)

    @classmethod
    def gather(
        cls,
        devices: str | int | None,
        coordinator: str | None = None,
        num_processes: int | None = None,
        process_id: int | None = None,
        *,
        timeout: float = TIMEOUT,
    ) -> Team | None:
        """What the options of the command line ask for; None where they ask for nothing."""
        if coordinator is None and num_processes is None and process_id is None:
            return None if devices is None else cls(devices)
        connect(None if coordinator == "auto" else coordinator, num_processes, process_id, timeout=timeout)
        return cls("all" if devices is None else devices, Processes(timeout=timeout))

    @property
    def first(self) -> bool:
        """Whether this process writes the records."""
        return self.processes.first

    def check(self, config: Config) -> None:
        """Raises unless this run can be trained here."""
        self.devices.check_groups(config.batches.groups)
        if config.training.track_variance and self.devices.several:
            raise RunError("training.track_variance works on one device only: leave it at 0 here")
        self.own_data = not config.data.shared and self.processes.count > 1
        if self.own_data:
            for wrong, why in (
                (config.batches.composition != "given", "batches.composition=given, which says who draws what"),
                (not config.clusters.entry.by_worker, f"clusters.by one of {', '.join(_found_by_each())}"),
                (config.training.steps is None, "training.steps: nobody sees all examples, to count epochs of them"),
                (config.data.label_noise > 0, "data.label_noise=0: nobody sees all labels, to replace some"),
            ):
                if wrong:
                    raise RunError(f"data.shared=false needs {why}")

    def compare(self, config: Config, members: list[dict[str, Any]]) -> None:
        """Raises unless all processes were started with the same settings; paths may differ from host to host.

        Nothing else would notice: each would train its own copy of the parameters in its own way.
        """
        settings = {key: value for key, value in config.flat().items() if key not in _OWN_PATHS}
        first, *others = self.processes.gather(
            {key: _brief(value) for key, value in {**settings, "members": members}.items()}
        )
        for who, its in enumerate(others, start=1):
            key = next((key for key in {**first, **its} if its.get(key) != first.get(key)), None)
            if key is not None:
                raise RunError(
                    f"all workers need the same settings: {key} is {first.get(key)} for worker 0 "
                    f"and {its.get(key)} for worker {who}"
                )

    def load(self, config: Config, dataset: Dataset | None = None) -> Dataset:
        """The data set as this process sees it: all labels but not yet images, or all of what is its own."""
        if not self.own_data:
            return dataset if dataset is not None else build_data(config, lazy=self.processes.count > 1)
        own = dataset if dataset is not None else build_data(config)
        shapes = self.processes.gather(list(own.example_shape))
        if shapes.count(shapes[0]) < len(shapes):
            raise RunError(f"all workers' examples must have one shape, got {', '.join(map(str, shapes))}")
        names = self._all_names(own.class_names)
        ids = np.array([names.index(name) for name in own.class_names], np.int32)

        def renamed(split: Split) -> Split:
            return Split(split.images, ids[split.labels], split.columns)

        validation = None if own.validation is None else renamed(own.validation)
        return Dataset(own.name, renamed(own.train), renamed(own.test), len(names), names, validation)

    def plans(self, config: Config, dataset: Dataset, seeds: Iterable[int]) -> dict[int, BatchPlan]:
        """This process's part of the batches of each seed."""
        names = None
        if self.own_data:
            own = build_clustering(config, dataset).names
            names = self._all_names(own, as_they_come=config.clusters.entry.one_per_worker)
        whole = {seed: build_plan(config, dataset, seed, names) for seed in seeds}
        if self.processes.count == 1:
            return whole
        return {seed: plan.for_host(self.processes.index, self.processes.count) for seed, plan in whole.items()}

    def hold(self, dataset: Dataset, plans: Iterable[BatchPlan], steps: int) -> Dataset:
        """The data set with the images that this process draws in the run, and no others."""
        if self.processes.count == 1 or self.own_data:
            return dataset
        needed = functools.reduce(np.union1d, (plan.examples(steps) for plan in plans))
        return replace(dataset, train=dataset.train.hold(needed))

    def split(self, part: Split | None) -> tuple[jax.Array, jax.Array] | None:
        """Examples to evaluate on, of each process its part; None if there are none."""
        count = 0 if part is None else len(part)
        most = max(self.processes.gather(count)) if self.own_data else count
        if part is None or not most:
            return None
        if self.own_data:
            return self.devices.put_own_split(part.images, part.labels, most)
        return self.devices.put_split(part.images, part.labels)

    def _all_names(self, names: Iterable[str], *, as_they_come: bool = False) -> tuple[str, ...]:
        """The names that any process has, once each: in the processes' order, or numbers by size, others by letter."""
        found = dict.fromkeys(name for own in self.processes.gather(list(names)) for name in own)
        if as_they_come:
            return tuple(found)
        return tuple(sorted(found, key=int if all(name.isdecimal() for name in found) else str))

    def feed(self, plans: Sequence[BatchPlan], images: Examples, length: int) -> Feed:
        """Hands this process's part of the batches to the devices."""

        def feed(first: int, count: int) -> StepBatch:
            batches = draw_batches(plans, first, count, length)
            self.processes.beat()
            return self.devices.put_batches(batches, images)

        return feed

    def directory(self, path: Path) -> RunDirectory:
        """The run's folder, which one process writes and all agree on."""
        return RunDirectory(path) if self.processes.count == 1 else SharedDirectory(path, self.processes)


class SharedDirectory(RunDirectory):
    """A run's folder on a file system that all processes see; the first one looks and writes, the others hear."""

    patience = 30.0
    """Seconds that the file system may take to show to others what the first process has written."""

    def __init__(self, path: Path, processes: Processes):
        super().__init__(path)
        self._processes, self._sign = processes, path / f"{LOCK}.sign"

    def take(self, config: Config, members: list[dict[str, Any]], *, resume: bool, overwrite: bool = False) -> bool:
        look = super().take

        def leave_a_sign() -> tuple[bool, str, str]:
            finished = look(config, members, resume=resume, overwrite=overwrite)
            text = uuid.uuid4().hex
            records.write_text(self._sign, text)
            return finished, text, str(self.path.absolute())

        finished, text, where = self._processes.agree(leave_a_sign)
        seen = self._processes.gather(self._sees(text))
        if not all(seen):
            raise RunError(
                f"worker {seen.index(False)} does not see what worker 0 writes in {where}: the output folder must be "
                "on a file system that all workers share, and --out must lead each of them to it"
            )
        return finished

    def __exit__(self, *error: Any) -> None:
        if self._processes.first:
            with contextlib.suppress(OSError):
                self._sign.unlink()
        super().__exit__(*error)

    def _sees(self, text: str) -> bool:
        """Whether this process finds in its folder what the first one has left there."""
        until = time.monotonic() + self.patience
        while not (self._sign.exists() and self._sign.read_text() == text):
            if time.monotonic() > until:
                return False
            time.sleep(0.2)
        return True

    def begin(self, config: Config, members: list[dict[str, Any]], environment: dict[str, Any]) -> None:
        # Agreed on, so that nobody looks for checkpoints before the folder is there.
        self._processes.agree(lambda: super(SharedDirectory, self).begin(config, members, environment))

    def end(self, summary: dict[str, Any]) -> None:
        if self._processes.first:
            super().end(summary)

    def accepts(self, note: dict[str, Any]) -> str | None:
        return self._processes.agree(lambda: super(SharedDirectory, self).accepts(note))

    def covered(self, note: dict[str, Any]) -> int:
        return self._processes.agree(lambda: RunDirectory.covered(RunDirectory(self.path), note))


def _found_by_each() -> list[str]:
    """The clusterings of the table that workers find each in its own data."""
    return [name for name, kind in CLUSTERINGS.items() if kind.by_worker]


def _brief(value: Any) -> str:
    """A value to show and to compare: what is long is cut, and ends with a fingerprint of all of it."""
    text = str(value)
    return text if len(text) <= 60 else f"{text[:40]}… ({hashlib.sha256(text.encode()).hexdigest()[:8]})"
