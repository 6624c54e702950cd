"""What a run tells whoever is watching."""

from __future__ import annotations

from typing import Protocol, runtime_checkable


@runtime_checkable
class Progress(Protocol):
    """Called by the training loop, on the host, in order; never from inside compiled code."""

    def start(self, *, step: int, total_steps: int, members: int) -> None:
        """Training begins (or resumes) at ``step``; ``members`` networks train at once."""

    def advance(self, *, step: int, loss: float, accuracy: float, steps_per_second: float) -> None:
        """Steps up to ``step`` are done; loss and accuracy are the last dispatch's mean over its members."""

    def evaluated(self, *, step: int, split: str, loss: float, accuracy: float) -> None:
        """An evaluation, as the mean over the members."""

    def message(self, text: str) -> None:
        """One line that a person should see (a fallback to an older checkpoint, a dropped member, …)."""

    def finish(self, *, status: str) -> None:
        """Training ended: ``finished``, ``stopped`` or ``failed``."""


class Quiet(Progress):
    """Says nothing."""
