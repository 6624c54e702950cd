"""The devices and processes that train one run together: who holds which part of the data, and who writes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from discover.data import BatchPlan
from discover.experiments.config import Config
from discover.experiments.run_directory import RunDirectory
from discover.training.devices import MeshPlacement, draw_examples, make_mesh
from discover.training.errors import RunError
from discover.training.processes import TIMEOUT, Processes, connect
from discover.training.step import StepBatch


class Team:
    """Several devices, of this process or of several.

    Args:
        devices: how many, or `all`.
        processes: the processes of the run; None: only this one.
    """

    def __init__(self, devices: str | int = "all", processes: Processes | None = None):
        self.processes = processes if processes is not None else Processes()
        self.placement = MeshPlacement(make_mesh(devices), on_dispatch=self.processes.beat)

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
        """What the options of the command line ask for; None for the ordinary run on one device.

        Args:
            devices: `all` or a number; None: `all` with several processes, otherwise one device.
            coordinator: HOST:PORT of the first process; `auto` lets JAX find out everything by itself.
            num_processes: how many there are.
            process_id: which one this is, from 0.
            timeout: seconds after which a worker without a sign of life is lost.
        """
        if coordinator is None and num_processes is None and process_id is None:
            return None if devices is None else cls(devices)
        found = connect(None if coordinator == "auto" else coordinator, num_processes, process_id, timeout=timeout)
        return cls("all" if devices is None else devices, found)

    @property
    def first(self) -> bool:
        """Whether this process writes the records."""
        return self.processes.first

    def check(self, config: Config) -> None:
        """Raises unless this run can be trained here."""
        self.placement.check_groups(config.batches.groups)
        if config.training.track_variance:
            raise RunError("training.track_variance works on one device only: leave it at 0 here")

    def plan(self, whole: BatchPlan) -> BatchPlan:
        """This process's part of the batches."""
        if self.processes.count == 1:
            return whole
        return whole.for_host(self.processes.index, self.processes.count)

    def draw(self, draw: Callable[[int, int], StepBatch], images: np.ndarray) -> Callable[[int, int], StepBatch]:
        """Batches that carry this process's examples."""
        return draw_examples(draw, images)

    def directory(self, path: Path) -> RunDirectory:
        """The run's folder, which one process writes and all agree on."""
        return RunDirectory(path) if self.processes.count == 1 else SharedDirectory(path, self.processes)


class SharedDirectory(RunDirectory):
    """A run's folder on a file system that all processes see; the first one looks and writes, the others hear."""

    def __init__(self, path: Path, processes: Processes):
        super().__init__(path)
        self._processes = processes

    def open(self, config: Config, members: list[dict[str, Any]], *, resume: bool, overwrite: bool = False) -> bool:
        look = super().open
        return self._processes.agree(lambda: look(config, members, resume=resume, overwrite=overwrite))

    def clear(self) -> None:
        self._processes.agree(super().clear)

    def begin(self, config: Config, members: list[dict[str, Any]], environment: dict[str, Any]) -> None:
        # Agreed on, so that nobody looks for checkpoints before the folder is there.
        self._processes.agree(lambda: super(SharedDirectory, self).begin(config, members, environment))

    def end(self, summary: dict[str, Any]) -> None:
        if self._processes.first:
            super().end(summary)

    def accepts(self, note: dict[str, Any]) -> str | None:
        return self._processes.agree(lambda: super(SharedDirectory, self).accepts(note))
