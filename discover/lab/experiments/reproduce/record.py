"""The record of a panel: `comparison.json`, from which its table and its figure are made."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from discover.lab import records
from discover.lab.experiments.compare.comparison import describe_batches
from discover.lab.experiments.config.config import Config
from discover.lab.experiments.reproduce.panels import Panel, Result

COMPARISON = "comparison.json"


def write_panel_record(
    result: Result,
    panel: Panel,
    directory: Path,
    done: Mapping[str, dict[str, Any]],
    *,
    status: str,
    data: str | None,
    overrides: Sequence[str],
) -> dict[str, Any]:
    """Writes what is known of a panel, and returns it."""
    rows = [done[row.label] for row in panel.rows if row.label in done]
    config = panel.rows[0].config
    batches = dict.fromkeys(describe_batches(row.config) for row in panel.rows if not row.reference)
    name = data or _recorded_data(directory) or config.data.source
    record = {
        "status": status,
        "preset": f"{result.name}: {panel.title}",
        "result": result.name,
        "panel": panel.name,
        "title": panel.title,
        "figure": panel.figure,
        "measure": panel.measure,
        "description": result.question,
        "facts": {"data": name, "model": _model(config), "batches": "; ".join(batches)},
        "note": _note(panel),
        "overrides": list(overrides),
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
    found = [records.read_object(directory / row["run"] / records.ENVIRONMENT) for row in rows]
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
    length = panel.rows[0].config.training.length
    rates = sorted({len(row.learning_rates) for row in panel.rows})
    tried = " or ".join(str(number) for number in rates)
    tuned = len(panel.tuning_seeds)
    short = panel.rows[0].config.with_values(panel.tuning).training
    tuned_on = f", in runs of {short.length}" if panel.tuning else ""
    further = f", or of up to {panel.extensions} more where the best was at an end of the grid" * (panel.extensions > 0)
    what = "Loss in nats at the last step" if panel.measure == "loss" else "Last step"
    if panel.budget:
        return (
            f"{what} after {length} on the test split, mean ± standard deviation over {len(panel.seeds)} seeds that "
            f"took no part in any choice. Each row was tuned by {panel.budget} trainings on the validation split: its "
            "learning rate, then one other number."
        )
    return (
        f"{what} after {length}, mean ± standard deviation over {len(panel.seeds)} seed"
        f"{'s' if len(panel.seeds) > 1 else ''}. Each row's learning rate is the best of {tried} on the validation "
        f"split ({tuned} seed{'s' if tuned > 1 else ''}{tuned_on}){further}; the test split is reported."
    )
