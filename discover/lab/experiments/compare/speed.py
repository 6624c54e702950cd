"""How fast the optimizers of a comparison train, relative to momentum."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any

from discover.lab.experiments.compare.comparison import Comparison
from discover.lab.experiments.run.run import run
from discover.registry import REFERENCE

SHARE = 0.1
"""Of the time that the trainings took, the rounds may take as much, or :data:`SECONDS` where that is more."""
SECONDS = 10.0


def measure_speed(
    comparison: Comparison, rows: list[dict[str, Any]], options: Mapping[str, Any], rounds: int = 6
) -> None:
    """Times short trainings again, the optimizers taking turns, and sets each row's speeds from these rounds.

    Other programs come and go, so a training's own seconds say little, however long it is. In a round all optimizers
    are timed one right after the other, and each is set against momentum of the *same* round; the median over the
    rounds counts. There is one round at least. ``options`` are those of :func:`run`: the members, the data set, the
    compiled programs.
    """
    entries = {entry.label: entry for entry in comparison.entries}
    most = max(SECONDS, SHARE * sum(row["train_seconds"] or 0 for row in rows))
    timed: list[dict[str, float | None]] = []
    began = time.monotonic()
    while len(rows) > 1 and len(timed) < rounds and (not timed or time.monotonic() - began < most):
        found: dict[str, float | None] = {}
        for row in rows:
            config = entries[row["label"]].config
            few = min(50, max(1, (config.training.steps or 250) // 5))
            changes = {"training.steps": few, "training.epochs": None, "training.eval_every": 0}
            brief = config.with_values({**changes, "training.on_nonfinite": "drop"})
            found[row["label"]] = run(brief, None, **options).steps_per_second
        timed.append(found)
    add_speeds(rows, timed)


def add_speeds(rows: list[dict[str, Any]], rounds: Sequence[Mapping[str, float | None]]) -> None:
    """Sets each row's steps per second, and their ratio to momentum's, from those by label of each round.

    Where there are no rounds the rows' own count.
    """
    taken = rounds or [{row["label"]: row["steps_per_second"] for row in rows}]
    for row in rows:
        rates = [rate for found in taken if (rate := found.get(row["label"]))]
        pairs = [(found.get(row["label"]), found.get(REFERENCE)) for found in taken]
        ratios = [mine / theirs for mine, theirs in pairs if mine and theirs]
        row["steps_per_second"] = statistics.median(rates) if rates else None
        row["relative_speed"] = statistics.median(ratios) if ratios else None
