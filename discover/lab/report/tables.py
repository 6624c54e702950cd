"""The comparison's table as text: one function that the terminal and the page share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from discover.lab.report.style import is_clustered, series_name
from discover.registry import REFERENCE

MISSING = "–"


@dataclass(frozen=True)
class Table:
    """Headers, rows of cells, and which row is the best of those that are not controls (or None)."""

    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    labels: tuple[str, ...]
    best: int | None


def comparison_table(rows: list[dict[str, Any]], target: float | None = None, *, compact: bool = False) -> Table:
    """Turn the rows of ``comparison.json`` into cells.

    A column appears only where a row has something to show in it.
    """
    goal = f"steps to {100 * target:g}%" if target else "steps to target"
    tested = any(row.get("test_accuracy") for row in rows)
    compared = any(row.get("relative_speed") for row in rows)
    columns = (
        ("optimizer", lambda row: series_name(str(row["label"]))),
        ("batches", lambda row: None if compact else row.get("batches")),
        ("lr" if compact else "learning rate", lambda row: _number(row.get("learning_rate"))),
        ("test accuracy", lambda row: accuracy(row.get("test_accuracy"))),
        ("validation accuracy", lambda row: None if tested else accuracy(row.get("validation_accuracy"))),
        ("test loss", lambda row: _spread(row.get("test_loss"))),
        (goal, lambda row: steps_to(row.get("steps_to_target"))),
        ("steps/s", lambda row: None if compared else _number(row.get("steps_per_second"), 3)),
        ("speed", lambda row: _ratio(row.get("relative_speed"))),
    )
    kept = [(header, [cell(row) for row in rows]) for header, cell in columns]
    kept = [(header, cells) for header, cells in kept if any(cell is not None for cell in cells)]
    body = tuple(tuple(cells[i] or MISSING for _, cells in kept) for i in range(len(rows)))
    return Table(
        headers=tuple(header for header, _ in kept),
        rows=body,
        labels=tuple(str(row["label"]) for row in rows),
        best=_best(rows),
    )


def worst_cluster(row: dict[str, Any]) -> str | None:
    """The cluster with the lowest mean test accuracy; None where the row has none."""
    means = {name: (one.get("accuracy") or {}).get("mean") for name, one in (row.get("clusters") or {}).items()}
    known = {name: mean for name, mean in means.items() if mean is not None}
    return min(known, key=known.__getitem__, default=None)


def cluster_table(rows: list[dict[str, Any]], most: int = 10) -> Table | None:
    """Test accuracy by cluster, the worst named first; None where no row has any.

    Args:
        rows: of ``comparison.json``.
        most: clusters that are shown each in a column; of more, only the worst.
    """
    names = list(dict.fromkeys(name for row in rows for name in row.get("clusters") or {}))
    judged = [row for row in rows if worst_cluster(row) is not None]
    if not judged:
        return None
    shown = names if len(names) <= most else []

    def cells(row: dict[str, Any]) -> tuple[str, ...]:
        found, worst = row["clusters"], worst_cluster(row) or ""
        own = [accuracy(found.get(name, {}).get("accuracy")) or MISSING for name in shown]
        one = accuracy(found[worst]["accuracy"]) or MISSING
        loss = _spread(found[worst]["loss"]) or MISSING
        return (series_name(str(row["label"])), worst, one, loss, *own)

    return Table(
        headers=("optimizer", "worst cluster", "its accuracy", "its loss", *shown),
        rows=tuple(cells(row) for row in judged),
        labels=tuple(str(row["label"]) for row in judged),
        best=_best(judged),
    )


def accuracy(spread: dict[str, Any] | None) -> str | None:
    """``95.1 ± 0.4 %`` from a recorded mean and standard deviation of a fraction."""
    text = _spread(spread, scale=100.0, digits=1)
    return text if text in (None, "diverged") else f"{text} %"


def steps_to(goal: dict[str, Any] | None) -> str | None:
    """The mean first step at the target; says how many seeds got there unless all did."""
    if not goal:
        return None
    values = goal.get("values") or []
    reached = [v for v in values if v is not None]
    if not reached:
        return "not reached"
    mean = f"{sum(reached) / len(reached):.0f}"
    return mean if len(reached) == len(values) else f"{mean} ({len(reached)}/{len(values)} seeds)"


def _spread(spread: dict[str, Any] | None, scale: float = 1.0, digits: int = 3) -> str | None:
    if not spread:
        return None
    values = spread.get("values") or []
    mean, std = spread.get("mean"), spread.get("std")
    if mean is None or not math.isfinite(mean):
        return "diverged" if values else None
    text = f"{scale * mean:.{digits}f}"
    return text if len(values) == 1 or std is None else f"{text} ± {scale * std:.{digits}f}"


def _number(value: Any, digits: int = 6) -> str | None:
    if not isinstance(value, int | float) or not math.isfinite(value):
        return None
    if digits < 6 and abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.{digits}g}"


def _ratio(value: Any) -> str | None:
    return f"{value:.2f}×" if isinstance(value, int | float) and math.isfinite(value) else None


def best_on_validation(rows: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """The row with the highest mean validation accuracy, or lowest loss if that is its measure; of equals the first.

    What is reported on the test split must not be picked on it, so rows without a validation accuracy cannot be
    picked, unless there is no choice: a single row is its own best.
    """
    if len(rows) == 1:
        return rows[0]
    by_loss = any(row.get("measure") == "loss" for row in rows)
    key, sign = ("validation_loss", -1) if by_loss else ("validation_accuracy", 1)
    scored = [row for row in rows if (row.get(key) or {}).get("mean") is not None]
    return max(scored, key=lambda row: sign * row[key]["mean"], default=None)


def _best(rows: list[dict[str, Any]]) -> int | None:
    ours = [row for row in rows if not row.get("control")]
    best = best_on_validation(ours) if len(ours) > 1 else None
    return next((i for i, row in enumerate(rows) if row is best), None)


def headline_rows(rows: Sequence[dict[str, Any]]) -> tuple[dict[str, Any] | None, ...]:
    """The best row with clusters on validation, the reference on the same batches, and the control; None: not there."""
    ended = [row for row in rows if (row.get("test_accuracy") or {}).get("mean") is not None]
    best = best_on_validation([row for row in ended if is_clustered(row) and not row.get("control")])
    by_label = {row["label"]: row for row in ended}
    return best, by_label.get(REFERENCE), by_label.get(f"{REFERENCE}-shuffled")
