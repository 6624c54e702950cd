"""When to stop between two pieces of work: the time is up, or somebody asked for it."""

from __future__ import annotations

import dataclasses
import time

from discover.lab.training.errors import RunStopped
from discover.lab.training.signals import StopRequest


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
