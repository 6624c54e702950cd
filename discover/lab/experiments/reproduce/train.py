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

import contextlib
import dataclasses
import math
import time
from collections.abc import Callable, MutableMapping, Sequence
from pathlib import Path
from typing import Any

from discover.lab import records
from discover.lab.experiments.compare.comparison import purity
from discover.lab.experiments.compare.scores import choose_rate, spreads
from discover.lab.experiments.config.config import ConfigError
from discover.lab.experiments.deadline import Deadline, OutOfTime
from discover.lab.experiments.folder import claim, share
from discover.lab.experiments.reproduce.drift import measure_drift
from discover.lab.experiments.reproduce.panels import Panel, Result, Row
from discover.lab.experiments.reproduce.record import write_panel_record
from discover.lab.experiments.reproduce.units import Pool, merge_runs, unit_config, unit_name
from discover.lab.training.signals import StopRequest

DRIFT = "drift.json"


def reproduce(
    result: Result,
    out: str | Path,
    *,
    minutes: float | None = None,
    say: Callable[[str], None] = lambda line: None,
    programs: MutableMapping[str, Any] | None = None,
    overrides: Sequence[str] = (),
) -> dict[str, Any]:
    """Trains what is missing of ``result`` and writes each panel's record.

    Returns:
        ``{"result", "status": "finished" | "stopped", "panels": {name: record}}``.
    """
    found: dict[str, Any] = {}
    status = "finished"
    _check_data(result, Path(out))
    with StopRequest() as stop:
        limit = Deadline(None if minutes is None else 60 * minutes, stop)
        pool = Pool(Path(out), limit, {} if programs is None else programs)
        found |= _panels(result, pool, say, list(overrides))
        if any(record["status"] != "finished" for record in found.values()):
            status = "stopped"
        if result.drift and status == "finished":
            found["drift"] = _drift(result, found, pool, say)
            status = found["drift"]["status"]
    return {"result": result.name, "question": result.question, "status": status, "panels": found}


def _check_data(result: Result, out: Path) -> None:
    """Raises ConfigError where an archive is missing that a row will need, before hours are spent on others."""
    for panel in result.panels:
        for row in panel.rows:
            path = row.config.data.path
            done = out / result.name / panel.name / "runs" / slug(row.label)
            if path is not None and not Path(path).exists() and not done.exists():
                raise ConfigError(
                    f"{result.name}/{panel.name} needs {path}, which is not there: name the folder that holds "
                    f"{Path(path).name} with --data, or the panels to train, as in results-h/groups"
                )


def _panels(result: Result, pool: Pool, say: Callable[[str], None], overrides: list[str]) -> dict[str, dict[str, Any]]:
    """Trains the rows of all panels, and returns each panel's record.

    All rows are one list, so that a process whose panel is in others' hands goes on with the next one.
    """
    directories = {panel.name: pool.out / result.name / panel.name for panel in result.panels}
    done: dict[str, dict[str, dict[str, Any]]] = {panel.name: {} for panel in result.panels}

    def write(panel: Panel, status: str) -> dict[str, Any]:
        rows, directory, name = done[panel.name], directories[panel.name], pool.data_name(panel.rows[0].config)
        return write_panel_record(result, panel, directory, rows, overrides=overrides, status=status, data=name)

    def work(job: tuple[Panel, Row]) -> None:
        panel, row = job
        began, before = time.monotonic(), pool.trained
        try:
            found = _row(panel, row, directories[panel.name], pool)
        except OutOfTime:
            return  # a later row may be done already, by another process
        done[panel.name][row.label] = found
        spent = f"{pool.trained - before} trained, {time.monotonic() - began:.0f} s"
        say(f"{result.name} {panel.name}: {_line(found)} ({spent})")
        write(panel, "running")

    for directory in directories.values():
        directory.mkdir(parents=True, exist_ok=True)
    jobs = [(panel, row) for panel in result.panels for row in panel.rows]
    with contextlib.suppress(OutOfTime):
        share(
            jobs,
            lambda job: directories[job[0].name] / "runs" / f"{slug(job[1].label)}.lock",
            work,
            pool.limit.check,
        )
    return {
        panel.name: write(panel, "finished" if len(done[panel.name]) == len(panel.rows) else "stopped")
        for panel in result.panels
    }


def _row(panel: Panel, row: Row, directory: Path, pool: Pool) -> dict[str, Any]:
    """Tunes and trains one row."""
    chosen, grid = _tune(panel, row, pool)
    rate = grid[chosen]["learning_rate"]
    row, further = _tune_further(panel, row, rate, len(grid), pool)
    units = [pool.unit(unit_config(row, rate, seed), panel.checkpoints) for seed in panel.seeds]
    config = row.config.with_values({"optimizer.learning_rate": rate, "training.seeds": list(panel.seeds)})
    run_dir = directory / "runs" / slug(row.label)
    summary = merge_runs(units, run_dir, config)
    speeds = [found.get("steps_per_second") or 0.0 for found in (records.read_summary(unit) or {} for unit in units)]
    return {
        "label": row.label,
        "optimizer": row.config.optimizer.name,
        "batches": purity(row.config),
        "control": row.reference,
        "facets": dict(row.facets),
        "hyperparameters": {"learning_rate": rate, **config.optimizer.arguments},
        "learning_rate": rate,
        "at_grid_edge": len(grid) > 1 and chosen in (0, len(grid) - 1),
        "grid": grid,
        **({"further": further} if further else {}),
        "measure": panel.measure,
        **spreads(summary["final"], panel.seeds),
        "steps_per_second": max(speeds) or None,
        "run": f"runs/{slug(row.label)}",
    }


def _tune(panel: Panel, row: Row, pool: Pool) -> tuple[int, list[dict[str, Any]]]:
    """The chosen learning rate's place in the grid, and the grid; it grows while the best rate is at its end."""
    rates, row = list(row.learning_rates), dataclasses.replace(row, config=row.config.with_values(panel.tuning))
    while True:
        members = [
            pool.member(unit_config(row, rate, seed), panel.checkpoints)
            for rate in rates
            for seed in panel.tuning_seeds
        ]
        chosen, grid = choose_rate(members, rates, panel.tuning_seeds, panel.measure)
        if len(rates) == panel.most_rates(row) or 0 < chosen < len(rates) - 1:
            return chosen, grid
        rates = [next_rate(rates[0], -1), *rates] if chosen == 0 else [*rates, next_rate(rates[-1], 1)]


def _tune_further(panel: Panel, row: Row, rate: float, tried: int, pool: Pool) -> tuple[Row, list[dict[str, Any]]]:
    """The row with the best of its further hyperparameters or its own, and what each reached at the chosen rate."""
    chances = row.further[: (panel.budget or 0) - tried] if row.further else ()
    rows = [
        dataclasses.replace(row, config=row.config.with_values({f"optimizer.{key}": one[key] for key in one}))
        for one in ({}, *chances)
    ]
    seeds = panel.tuning_seeds
    members = [pool.member(unit_config(one, rate, seed), panel.checkpoints) for one in rows for seed in seeds]
    chosen, found = choose_rate(members, [rate] * len(rows), seeds, panel.measure)
    return rows[chosen], [{**point, "hyperparameters": dict(one)} for one, point in zip(chances, found[1:])]


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
    directory = pool.out / result.name / "drift"
    directory.mkdir(parents=True, exist_ok=True)
    panels = {panel.name: panel for panel in result.panels}
    wanted = []
    for panel, label in result.drift:
        chosen = next(row["learning_rate"] for row in found[panel]["rows"] if row["label"] == label)
        row = next(row for row in panels[panel].rows if row.label == label)
        config = unit_config(row, chosen, panels[panel].seeds[0])
        wanted.append((label, unit_name(config), config))
    status = "finished"
    with claim(directory / "drift.lock", wait=True, check=pool.limit.check):
        before = records.read_json(directory / DRIFT) if (directory / DRIFT).exists() else {"rows": []}
        have = {row["unit"]: row for row in before["rows"]}
        record: dict[str, Any] = {**found[result.drift[0][0]], "figure": "drift", "panel": "drift"}
        record |= {"title": "How far the running mean is from the mean of the buffers", "seeds": record["seeds"][:1]}
        try:
            for label, unit, config in wanted:
                if unit not in have:
                    pool.limit.check()
                    lines = measure_drift(
                        config, pool.dataset(config), programs=pool.programs, check_time=pool.limit.check
                    )
                    have[unit] = {"label": label, "unit": unit, "lines": lines}
                    say(f"{result.name} drift: {label}: {lines[-1]['drift']:.2g} at step {lines[-1]['step']}")
        except OutOfTime:
            status = "stopped"
        rows = [have[unit] for _, unit, _ in wanted if unit in have]
        record |= {"status": status, "rows": rows, "rows_in_all": len(wanted)}
        records.write_json(directory / DRIFT, record)
    return record


def slug(label: str) -> str:
    """A label as the name of a file."""
    return label.replace(" ", "_").replace("=", "").replace(":", ".")


def _line(row: dict[str, Any]) -> str:
    mean, std = (row[f"test_{row['measure']}"][key] for key in ("mean", "std"))
    loss = row["measure"] == "loss"
    value = "" if mean is None else f"{mean:.3f} ± {std:.3f} nats" if loss else f"{100 * mean:.1f} ± {100 * std:.1f} %"
    reached = f"test {value}" if value else "diverged"
    return f"{row['label']}: learning rate {row['learning_rate']:g}, {reached}"
