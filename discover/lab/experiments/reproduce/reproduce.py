"""Reruns one of our results: trains what is missing, in pieces small enough for short leases of a GPU.

A *unit* is one training: one optimizer in one setting, one learning rate, one seed. Units of all results lie in one
pool, named by a digest of their configuration, so that what two results share is trained once, and whatever is there
is never trained again. Networks train one after the other: `vmap` over networks would turn every convolution into
a grouped one, which GPUs run slowly. ::

    OUT/units/<optimizer>-<digest>/      a run directory
    OUT/results-a/clean/comparison.json  the table, the grids, the choices, the environment
    OUT/results-a/clean/runs/<label>/    the chosen learning rate's runs, all seeds together
    OUT/results-f/drift/drift.json       for result f: ‖ḡ − Σ p_n g_n‖ by step

Several processes may work in one folder: each takes rows that no other is working on.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, MutableMapping, Sequence
from pathlib import Path
from typing import Any

from discover.lab import records
from discover.lab.experiments.compare.compare import choose_rate, spread
from discover.lab.experiments.compare.plan import describe_batches, purity
from discover.lab.experiments.config.config import Config
from discover.lab.experiments.reproduce.plans import Panel, Result, Row
from discover.lab.experiments.reproduce.units import Pool, is_done, unit_config, unit_name
from discover.lab.experiments.sweep.claims import Deadline, OutOfTime, claim
from discover.lab.training.signals import StopRequest

__all__ = ["is_done", "merge_runs", "panel_dir", "reproduce", "slug", "unit_config", "unit_name"]

COMPARISON = "comparison.json"
DRIFT = "drift.json"


def reproduce(
    result: Result,
    out: str | Path,
    *,
    minutes: float | None = None,
    say: Callable[[str], None] = lambda line: None,
    command: Sequence[str] | None = None,
    programs: MutableMapping[str, Any] | None = None,
    overrides: Sequence[str] = (),
) -> dict[str, Any]:
    """Trains what is missing of ``result`` and writes each panel's record.

    Args:
        result: what :func:`discover.lab.experiments.reproduce.plans.get_result` returned.
        out: the folder that all results share.
        minutes: stop after the unit in progress when this much time has passed.
        say: takes one line of progress for each row.
        command: the command line for the records.
        programs: compiled programs to reuse and add to.
        overrides: noted in the records; they are part of ``result`` already.

    Returns:
        ``{"result", "status": "finished" | "stopped", "panels": {name: record}}``.

    Raises:
        RunError: from training; what was trained is kept.
    """
    found: dict[str, Any] = {}
    status = "finished"
    with StopRequest() as stop:
        limit = Deadline(None if minutes is None else 60 * minutes, stop)
        pool = Pool(Path(out), limit, command, {} if programs is None else programs)
        for panel in result.panels:
            record = _panel(result, panel, pool, say, list(overrides))
            found[panel.name] = record
            if record["status"] != "finished":
                status = "stopped"
                break
        if result.drift and status == "finished":
            found["drift"] = _drift(result, found, pool, say)
            status = found["drift"]["status"]
    return {"result": result.name, "question": result.question, "status": status, "panels": found}


def panel_dir(out: str | Path, result: str, panel: str) -> Path:
    """Where a panel's records are."""
    return Path(out) / result / panel


def _panel(
    result: Result, panel: Panel, pool: Pool, say: Callable[[str], None], overrides: list[str]
) -> dict[str, Any]:
    directory = panel_dir(pool.out, result.name, panel.name)
    directory.mkdir(parents=True, exist_ok=True)
    waiting = list(panel.rows)
    done: dict[str, dict[str, Any]] = {}
    status = "finished"
    try:
        while waiting:
            busy = []
            for row in waiting:
                with claim(directory / "locks" / f"{slug(row.label)}.lock") as mine:
                    if not mine:
                        busy.append(row)
                        continue
                    began, before = time.monotonic(), pool.trained
                    done[row.label] = _row(panel, row, directory, pool)
                    spent = f"{pool.trained - before} trained, {time.monotonic() - began:.0f} s"
                    say(f"{result.name} {panel.name}: {_line(done[row.label])} ({spent})")
                    _write(result, panel, directory, done, "running", pool, overrides)
            if busy and len(busy) == len(waiting):
                pool.limit.check()
                time.sleep(0.5)  # others have them all: they are done soon, or let go
            waiting = busy
    except OutOfTime:
        status = "stopped"
    return _write(result, panel, directory, done, status, pool, overrides)


def _row(panel: Panel, row: Row, directory: Path, pool: Pool) -> dict[str, Any]:
    """Tunes and trains one row."""
    chosen, grid = _tune(panel, row, pool)
    rate = grid[chosen]["learning_rate"]
    units = [pool.unit(unit_config(row, rate, seed), panel.checkpoints) for seed in panel.seeds]
    config = row.config.with_values({"optimizer.learning_rate": rate, "training.seeds": list(panel.seeds)})
    run_dir = directory / "runs" / slug(row.label)
    summary = merge_runs(units, run_dir, config)
    final = summary["final"]
    nothing: list[None] = [None] * len(panel.seeds)
    speeds = [found.get("steps_per_second") or 0.0 for found in (records.read_summary(unit) or {} for unit in units)]
    return {
        "label": row.label,
        "optimizer": row.config.optimizer.name,
        "batches": purity(row.config),
        "control": row.reference,
        "facets": dict(row.facets),
        "hyperparameters": config.optimizer.numbers(),
        "learning_rate": rate,
        "at_grid_edge": len(grid) > 1 and chosen in (0, len(grid) - 1),
        "grid": grid,
        "validation_accuracy": spread(final.get("validation", {}).get("accuracy", nothing)),
        "test_accuracy": spread(final.get("test", {}).get("accuracy", nothing)),
        "test_loss": spread(final.get("test", {}).get("loss", nothing)),
        "steps_per_second": max(speeds) or None,
        "run": f"runs/{slug(row.label)}",
    }


def _tune(panel: Panel, row: Row, pool: Pool) -> tuple[int, list[dict[str, Any]]]:
    """The chosen learning rate's place in the grid, and the grid; it grows while the best rate is at its end."""
    rates = list(row.learning_rates)
    while True:
        members = [
            pool.member(unit_config(row, rate, seed), panel.checkpoints)
            for rate in rates
            for seed in panel.tuning_seeds
        ]
        chosen, grid = choose_rate(members, rates, panel.tuning_seeds)
        if len(rates) == len(row.learning_rates) + panel.extensions or 0 < chosen < len(rates) - 1:
            return chosen, grid
        rates = [next_rate(rates[0], -1), *rates] if chosen == 0 else [*rates, next_rate(rates[-1], 1)]


def next_rate(rate: float, direction: int) -> float:
    """The first rate above (1) or below (-1) this one in the series 0.01, 0.03, 0.1, 0.3, 1, ...

    >>> next_rate(0.01, -1), next_rate(0.3, 1), next_rate(1.0, 1), next_rate(0.2, 1), next_rate(0.05, -1)
    (0.003, 1.0, 3.0, 0.3, 0.03)
    """
    place = round(2 * math.log10(rate))  # 10^(1/2) is nearly 3
    near = [float(f"{'3' if n % 2 else '1'}e{n // 2}") for n in range(place - 1, place + 2)]
    return min(n for n in near if n > rate) if direction > 0 else max(n for n in near if n < rate)


def _drift(result: Result, found: dict[str, dict[str, Any]], pool: Pool, say: Callable[[str], None]) -> dict[str, Any]:
    """Measures the drift of the rows that the result names; what is in `drift.json` already is kept."""
    from discover.lab.experiments.reproduce.drift import measure_drift

    directory = panel_dir(pool.out, result.name, "drift")
    directory.mkdir(parents=True, exist_ok=True)
    panels = {panel.name: panel for panel in result.panels}
    plans = []
    for panel, label in result.drift:
        chosen = next(row["learning_rate"] for row in found[panel]["rows"] if row["label"] == label)
        row = next(row for row in panels[panel].rows if row.label == label)
        config = unit_config(row, chosen, panels[panel].seeds[0])
        plans.append((label, unit_name(config), config))
    status = "finished"
    with claim(directory / "locks" / "drift.lock", wait=True):
        before = records.read_json(directory / DRIFT) if (directory / DRIFT).exists() else {"rows": []}
        have = {row["unit"]: row for row in before["rows"]}
        record: dict[str, Any] = {**found[result.drift[0][0]], "figure": "drift", "panel": "drift"}
        record |= {"title": "How far the running mean is from the mean of the buffers", "seeds": record["seeds"][:1]}
        try:
            for label, unit, config in plans:
                if unit not in have:
                    pool.limit.check()
                    lines = measure_drift(config, pool.dataset(config), check_time=pool.limit.check)
                    have[unit] = {"label": label, "unit": unit, "lines": lines}
                    say(f"{result.name} drift: {label}: {lines[-1]['drift']:.2g} at step {lines[-1]['step']}")
        except OutOfTime:
            status = "stopped"
        rows = [have[unit] for _, unit, _ in plans if unit in have]
        record |= {"status": status, "rows": rows, "rows_in_all": len(plans)}
        records.write_json(directory / DRIFT, record)
    return record


def merge_runs(units: Sequence[Path], target: Path, config: Config) -> dict[str, Any]:
    """Writes runs that differ in their seed as one run directory, and returns its summary."""
    summaries = [records.read_summary(unit) or {} for unit in units]
    members = [member for summary in summaries for member in summary["members"]]
    for member, summary in zip(members, summaries):
        if summary.get("diverged"):
            member["final"] = None
    lines = [line for unit in units for line in records.read_metrics(unit)]
    target.mkdir(parents=True, exist_ok=True)
    summary = {
        **summaries[0],
        "status": "finished",
        "seeds": [member["seed"] for member in members],
        "members": members,
        "final": records.gather_final(members),
    }
    records.write_text(target / records.CONFIG, config.to_json())
    records.write_json(target / records.ENVIRONMENT, records.read_json(units[0] / records.ENVIRONMENT))
    text = "".join(json.dumps(line, allow_nan=False) + "\n" for line in lines)
    records.write_text(target / records.METRICS, text)
    records.write_json(target / records.SUMMARY, summary)
    return summary


def slug(label: str) -> str:
    """A label as the name of a file."""
    return label.replace(" ", "_").replace("=", "")


def _write(
    result: Result,
    panel: Panel,
    directory: Path,
    done: dict[str, dict[str, Any]],
    status: str,
    pool: Pool,
    overrides: list[str],
) -> dict[str, Any]:
    rows = [done[row.label] for row in panel.rows if row.label in done]
    config = panel.rows[0].config
    batches = dict.fromkeys(describe_batches(row.config) for row in panel.rows if not row.reference)
    name = pool.data_name or _recorded_data(directory) or config.data.source
    record = {
        "status": status,
        "preset": f"{result.name}: {panel.title}",
        "result": result.name,
        "panel": panel.name,
        "title": panel.title,
        "figure": panel.figure,
        "description": result.question,
        "facts": {"data": name, "model": _model(config), "batches": "; ".join(batches)},
        "note": _note(panel),
        "overrides": overrides,
        "seeds": list(panel.seeds),
        "tuning_seeds": list(panel.tuning_seeds),
        "rows_in_all": len(panel.rows),
        "config": config.with_values({"data.path": None}).to_dict(),
        "environment": _environment(directory, rows),
        "rows": rows,
    }
    records.write_json(directory / COMPARISON, record)
    return record


def _recorded_data(directory: Path) -> str | None:
    path = directory / COMPARISON
    return records.read_json(path)["facts"]["data"] if path.exists() else None


def _environment(directory: Path, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Where the rows were trained: the first one's environment, and every other hardware that took part."""
    found = [records.read_json(directory / row["run"] / records.ENVIRONMENT) for row in rows]
    if not found:
        return {}
    hardware = {json.dumps([one.get("backend"), one.get("devices"), one.get("cpu")]) for one in found}
    others = {"other_hardware": len(hardware) - 1} if len(hardware) > 1 else {}
    return {**found[0], **others}


def _model(config: Config) -> str:
    model = config.model
    size = "-".join(str(value) for value in model.arguments.values() if isinstance(value, int))
    return f"{model.name} {size}".strip()


def _note(panel: Panel) -> str:
    training = panel.rows[0].config.training
    length = f"{training.epochs:g} epochs" if training.epochs is not None else f"{training.steps} steps"
    rates = sorted({len(row.learning_rates) for row in panel.rows})
    tried = " or ".join(str(number) for number in rates)
    tuned = len(panel.tuning_seeds)
    further = f", or of up to {panel.extensions} more where the best was at an end of the grid" * (panel.extensions > 0)
    return (
        f"Last step after {length}, mean ± standard deviation over {len(panel.seeds)} seed"
        f"{'s' if len(panel.seeds) > 1 else ''}. Each row's learning rate is the best of {tried} on the validation "
        f"split ({tuned} seed{'s' if tuned > 1 else ''}){further}; the test split is reported."
    )


def _line(row: dict[str, Any]) -> str:
    mean, std = row["test_accuracy"]["mean"], row["test_accuracy"]["std"]
    reached = "diverged" if mean is None else f"test {100 * mean:.1f} ± {100 * std:.1f} %"
    return f"{row['label']}: learning rate {row['learning_rate']:g}, {reached}"
