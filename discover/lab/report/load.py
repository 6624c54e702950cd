"""Read what runs and comparisons left on disk, ready to be drawn.

Only records are read here (JSON and JSON lines); nothing is trained and nothing is drawn.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from discover.lab.records import (
    CONFIG,
    ENVIRONMENT,
    METRICS,
    SUMMARY,
    RecordsError,
    mean_std,
    read_json,
    read_metrics,
    read_object,
    spread,
)
from discover.lab.report.style import series_name

COMPARISON = "comparison.json"


@dataclass(frozen=True)
class Curve:
    """A quantity by step: the mean over the seeds and their sample standard deviation (0 for one seed)."""

    steps: tuple[int, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __len__(self) -> int:
        return len(self.steps)


@dataclass(frozen=True)
class RunRecord:
    """One run: an optimizer with its hyperparameters, over one or several seeds."""

    label: str
    config: dict[str, Any]
    environment: dict[str, Any]
    summary: dict[str, Any]
    metrics: tuple[dict[str, Any], ...]

    def curve(self, quantity: str, kind: str = "train", split: str | None = None) -> Curve:
        """The mean and spread over the seeds of ``quantity`` ("loss" or "accuracy"), by step."""
        by_step: dict[int, dict[int, float]] = defaultdict(dict)
        for line in self.metrics:
            if line.get("kind") != kind or (split is not None and line.get("split") != split):
                continue
            value = line.get(quantity)
            if isinstance(value, int | float):
                # A resumed run may repeat a step that it had already written; the later line counts.
                by_step[int(line["step"])][int(line.get("seed", 0))] = float(value)
        steps = sorted(by_step)
        found = [mean_std(by_step[step].values()) for step in steps]
        return Curve(tuple(steps), tuple(m for m, _ in found), tuple(s for _, s in found))

    def eval_curve(self, quantity: str = "accuracy") -> tuple[str, Curve]:
        """The curve on the validation split, or on the test split where a run has no validation split."""
        for split in ("validation", "test"):
            curve = self.curve(quantity, kind="eval", split=split)
            if len(curve):
                return split, curve
        return "validation", Curve((), (), ())

    def final(self, quantity: str = "accuracy") -> tuple[str, list[float]]:
        """The last-step values by seed: on the test split where it was evaluated, else on validation."""
        final = self.summary.get("final") or {}
        for split in ("test", "validation"):
            values = [v for v in (final.get(split) or {}).get(quantity) or [] if v is not None]
            if values:
                return split, [float(v) for v in values]
        return "test", []


@dataclass(frozen=True)
class Report:
    """Everything a report shows: the runs and, for a comparison, the rows of its table."""

    title: str
    directory: Path
    runs: tuple[RunRecord, ...]
    comparison: dict[str, Any] = field(default_factory=dict)

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The rows of the comparison's table, or one row made from each run's summary."""
        return list(self.comparison.get("rows") or []) or [_row_of(run) for run in self.runs]

    @property
    def config(self) -> dict[str, Any]:
        return self.comparison.get("config") or (self.runs[0].config if self.runs else {})

    @property
    def environment(self) -> dict[str, Any]:
        return self.comparison.get("environment") or (self.runs[0].environment if self.runs else {})


def hardware(environment: dict[str, Any]) -> str | None:
    """The devices of an `environment.json`: the processor where they are CPUs; None where it does not say."""
    devices = [str(device) for device in environment.get("devices") or []]
    if environment.get("backend") in (None, "cpu") or not devices:
        cpus = environment.get("cpus")
        return f"{environment['cpu']}, {cpus} cores" if environment.get("cpu") else None
    kinds = sorted(set(devices))
    return ", ".join(f"{devices.count(kind)} × {kind}" if devices.count(kind) > 1 else kind for kind in kinds)


def facts_line(comparison: dict[str, Any]) -> str:
    """Data, network, seeds and hardware of a comparison in one line, as far as it says them."""
    facts, seeds = comparison.get("facts") or {}, len(comparison.get("seeds") or ())
    counted = f"n = {seeds} seed{'s' if seeds > 1 else ''}" if seeds else None
    words = (facts.get("data"), facts.get("model"), counted, hardware(comparison.get("environment") or {}))
    return ", ".join(str(word) for word in words if word)


def load_run(directory: str | Path, label: str | None = None) -> RunRecord:
    """Read one run directory, of a run under way too; it is called ``label`` in figures, or else by its optimizer.

    Raises:
        RecordsError: there is no run in the directory, or a record cannot be read.
    """
    directory = Path(directory)
    if not (directory / METRICS).is_file():
        raise RecordsError(f"no run in {directory}: there is no {METRICS}")
    config = _read_json(directory / CONFIG)
    if label is None:
        optimizer = config.get("optimizer")
        name = optimizer.get("name") if isinstance(optimizer, dict) else optimizer
        label = str(name or directory.name)
    return RunRecord(
        label=label,
        config=config,
        environment=read_object(directory / ENVIRONMENT),
        summary=_read_json(directory / SUMMARY),
        metrics=tuple(read_metrics(directory)),
    )


def load_report(directory: str | Path) -> Report:
    """Read a comparison directory, a run directory, or a folder of run directories."""
    directory = Path(directory)
    if not directory.is_dir():
        raise RecordsError(f"no such directory: {directory}")
    if (directory / COMPARISON).is_file():
        comparison = _read_json(directory / COMPARISON)
        runs = [
            load_run(directory / row["run"], label=row["label"])
            for row in comparison.get("rows") or []
            if row.get("run")
        ]
        if not runs:
            raise RecordsError(f"{directory / COMPARISON} has no finished run yet")
        title = f"Comparison on {comparison.get('preset') or directory.resolve().name}"
        return Report(title=title, directory=directory, runs=tuple(runs), comparison=comparison)
    if (directory / METRICS).is_file():
        run = load_run(directory)
        data = run.config.get("name") or directory.resolve().name
        return Report(title=f"{series_name(run.label)} on {data}", directory=directory, runs=(run,))
    found = sorted(path.parent for path in directory.glob("*/" + METRICS))
    if not found:
        raise RecordsError(f"no records in {directory}: expected {COMPARISON}, or {METRICS} there or one folder down")
    runs = [load_run(path, label=path.name) for path in found]
    return Report(title=f"Runs in {directory.resolve().name}", directory=directory, runs=tuple(runs))


def _row_of(run: RunRecord) -> dict[str, Any]:
    """A table row from one run's summary, with the fields a comparison would have."""
    final = run.summary.get("final") or {}
    row: dict[str, Any] = {"label": run.label, "steps_per_second": run.summary.get("steps_per_second")}
    for split in ("validation", "test"):
        for quantity in ("accuracy", "loss"):
            values = (final.get(split) or {}).get(quantity)
            if values:
                row[f"{split}_{quantity}"] = spread(values)
    ends = [((member.get("final") or {}).get("test") or {}) for member in run.summary.get("members") or []]
    by_seed = [end["clusters"] for end in ends if end.get("clusters")]
    for name in by_seed[0] if by_seed else ():
        for quantity in ("accuracy", "loss"):
            found = spread([clusters[name][quantity] for clusters in by_seed])
            row.setdefault("clusters", {}).setdefault(name, {})[quantity] = found
    return row


def _read_json(path: Path) -> dict[str, Any]:
    value = read_json(path) if path.is_file() else {}
    if not isinstance(value, dict):
        raise RecordsError(f"{path} must hold a JSON object, got {type(value).__name__}")
    return value
