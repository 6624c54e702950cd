"""From per-step numbers to the lines of metrics.jsonl, in a way that survives being cut anywhere."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from discover.lab.training.step import StepMetrics

Line = dict[str, Any]
"""One line of `metrics.jsonl`: kind, step, seed, and the numbers."""


@dataclass
class MemberLog:
    """Turns a stretch of steps into training lines, one for every ``log_every`` steps and member.

    Numbers that have not yet filled a line are *pending*; they travel in the checkpoint's note, so a resumed run writes
    the same line as an unbroken one.

    Attributes:
        labels: for each member the fields that identify its lines (seed, and member where there is a choice).
        names: what messages call each member.
        learning_rate: ``(member, step) -> rate`` of the step that led to ``step``.
        log_every: steps that a line averages over.
        total_steps: the last line may average over fewer.
        write: takes the lines.
        diverged_at: ``{member: step}`` of members whose loss was no longer finite; they write no more lines.
        step: how far the run has come.
    """

    labels: Sequence[Mapping[str, int]]
    names: Sequence[str]
    learning_rate: Callable[[int, int], float]
    log_every: int
    total_steps: int
    write: Callable[[list[Line]], None]
    diverged_at: dict[int, int] = field(default_factory=dict)
    step: int = 0
    _pending: list[tuple[list[float], list[float]]] = field(default_factory=list)

    def add(self, first: int, loss: NDArray[np.float32], accuracy: NDArray[np.float32]) -> list[int]:
        """Takes steps ``first + 1 … first + count``, arrays [count, M]; returns the members that just diverged."""
        fresh = []
        for row in range(len(loss)):
            step = first + row + 1
            for member in np.flatnonzero(~np.isfinite(loss[row])):
                if int(member) not in self.diverged_at:
                    self.diverged_at[int(member)] = step
                    fresh.append(int(member))
            self._pending.append((loss[row].tolist(), accuracy[row].tolist()))
            if step % self.log_every == 0 or step == self.total_steps:
                self.write(self._lines(step))
                self._pending = []
        return fresh

    def evaluated(self, step: int, split: str, metrics: StepMetrics, cluster: str | None = None) -> None:
        """Takes an evaluation, arrays [M]; of the examples of one cluster, if it is named."""
        kind = {"kind": "eval"} if cluster is None else {"kind": "cluster", "cluster": cluster}
        self.write(
            [
                {**kind, "split": split, **label, "step": step}
                | {"loss": float(metrics.loss[member]), "accuracy": float(metrics.accuracy[member])}
                for member, label in enumerate(self.labels)
                if member not in self.diverged_at
            ]
        )

    def measured(self, step: int, kind: str, values: Mapping[str, NDArray[np.float32]]) -> None:
        """Takes what a probe measured, arrays [M] by name; ``kind`` is that of the lines."""
        self.write(
            [
                {"kind": kind, **label, "step": step} | {name: float(value[member]) for name, value in values.items()}
                for member, label in enumerate(self.labels)
                if member not in self.diverged_at
            ]
        )

    def note(self) -> dict[str, Any]:
        """What a checkpoint must remember; see :meth:`recall`."""
        return {
            "pending": [[list(row) for row in pair] for pair in self._pending],
            "diverged_at": {str(member): step for member, step in self.diverged_at.items()},
        }

    def recall(self, note: Mapping[str, Any]) -> None:
        """Continues where :meth:`note` was taken. JSON keeps the numbers exactly."""
        self._pending = [
            ([_number(x) for x in loss], [_number(x) for x in accuracy]) for loss, accuracy in note["pending"]
        ]
        self.diverged_at = {int(member): step for member, step in note["diverged_at"].items()}

    def _lines(self, step: int) -> list[Line]:
        count = len(self._pending)
        return [
            {
                "kind": "train",
                **label,
                "step": step,
                "loss": math.fsum(loss[member] for loss, _ in self._pending) / count,
                "accuracy": math.fsum(accuracy[member] for _, accuracy in self._pending) / count,
                "learning_rate": self.learning_rate(member, step),
            }
            for member, label in enumerate(self.labels)
            if member not in self.diverged_at
        ]


def _number(value: float | None) -> float:
    """JSON has no NaN: what was not finite comes back as null."""
    return math.nan if value is None else value
