"""The main job: the same batches for every optimizer, each at its best learning rate of one common grid.

For every optimizer one compiled program trains all (learning rate, seed) pairs. The learning rate with the highest mean
last-step accuracy on the validation split is chosen, and the row of the table is what its runs reach on the test split.
The control is momentum on shuffled batches: what clustered batches cost is the gap between the two momentum rows.

A comparison directory holds::

    comparison.json      what is compared, the rows of the table, the grid, the choices, the environment
    grids/<label>/       one run directory for each optimizer: every learning rate and seed
    runs/<label>/        the chosen learning rate's runs, extracted from the grid

Called again with the same comparison it goes on where it was stopped: finished grids are read back, not trained again.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, MutableMapping
from pathlib import Path
from typing import Any

from discover.lab import records
from discover.lab.data import Dataset
from discover.lab.experiments.compare.comparison import Comparison, Entry, describe_batches, purity
from discover.lab.experiments.compare.scores import choose_rate, cluster_spreads, first_steps, spreads
from discover.lab.experiments.compare.speed import measure_speed
from discover.lab.experiments.config.config import Config
from discover.lab.experiments.deadline import Deadline
from discover.lab.experiments.folder import Folder
from discover.lab.experiments.run.build import build_data, build_plan
from discover.lab.experiments.run.directory import RunDirectory
from discover.lab.experiments.run.run import Member, run
from discover.lab.training.progress import Progress
from discover.lab.training.signals import StopRequest
from discover.registry import REFERENCE

__all__ = ["compare"]

COMPARISON = "comparison.json"


class ComparisonFolder(Folder):
    """Where a comparison is kept."""

    noun = "comparison"
    record = COMPARISON
    files = ("figures", "report.html")
    inside = (("grids/*", RunDirectory), ("runs/*", RunDirectory))

    def recorded(self) -> dict[str, Any]:
        return _settings(super().recorded())


def compare(
    comparison: Comparison,
    directory: str | Path,
    *,
    progress: Callable[[Entry, int, int], Progress | None] | None = None,
    message: Callable[[str], None] | None = None,
    overwrite: bool = False,
    programs: MutableMapping[str, Any] | None = None,
    loaded: Dataset | None = None,
) -> dict[str, Any]:
    """Trains what is missing of ``comparison`` in ``directory`` and returns the contents of its ``comparison.json``.

    Args:
        comparison: what :func:`discover.lab.experiments.compare.comparison.make_comparison` returned.
        directory: a new one, an empty one, or that of the same comparison, which is then continued.
        progress: called with each entry, its number from 0 and how many there are; what it returns watches the entry.
        message: called with what is being done besides training.
        overwrite: start anew in a directory that holds another comparison.
        programs: compiled programs of earlier runs in this process, to be reused and added to.
        loaded: the data set, if its source was read already.

    Raises:
        FolderError: the directory holds something else, cannot be written, or is another process's.
        DataError, RunError: from training; see :mod:`discover.lab.experiments.run.run`. What was trained is kept.
    """
    programs = {} if programs is None else programs
    with StopRequest() as stop, ComparisonFolder(directory).claim() as folder:
        limit = Deadline(stop=stop)
        same = folder.open(_settings(comparison.to_dict()), overwrite=overwrite)
        if same and (recorded := records.read_json(folder.path / COMPARISON)).get("status") == "finished":
            return recorded
        # What keeps a comparison from starting is told before anything is written, let alone deleted.
        dataset = build_data(comparison.entries[0].config, loaded=loaded)
        if overwrite:
            for entry in comparison.entries:
                build_plan(entry.config, dataset, comparison.seeds[0])
        record = _new_record(comparison)
        if same:
            records.write_json(folder.path / COMPARISON, record)
        else:
            with folder.replace():
                records.write_json(folder.path / COMPARISON, record)
        members = [Member(seed, {"learning_rate": r}) for r in comparison.learning_rates for seed in comparison.seeds]
        options: dict[str, Any] = {"members": members, "programs": programs, "dataset": dataset}
        for number, entry in enumerate(comparison.entries):
            watcher = None if progress is None else progress(entry, number, len(comparison.entries))
            grid = folder.path / "grids" / entry.folder
            run(entry.config, grid, resume=True, progress=watcher, **options)
            record["rows"].append(_row(comparison, entry, folder.path))
            record["facts"]["data"] = dataset.name  # which of its forms a source found
            if record["environment"].get("backend") is None:
                record["environment"] = records.read_object(grid / records.ENVIRONMENT)
            records.write_json(folder.path / COMPARISON, record)
            limit.check()
        if message is not None:
            message("measuring the speed of each optimizer")
        measure_speed(comparison, record["rows"], options)
        record["status"] = "finished"
        records.write_json(folder.path / COMPARISON, record)
        return record


def _row(comparison: Comparison, entry: Entry, directory: Path) -> dict[str, Any]:
    """Chooses an entry's learning rate from its finished grid, and writes the runs at that rate as one of their own."""
    grid_dir, run_dir = directory / "grids" / entry.folder, directory / "runs" / entry.folder
    summary = records.read_summary(grid_dir) or {}
    chosen, grid = choose_rate(summary["members"], comparison.learning_rates, comparison.seeds)
    rate = comparison.learning_rates[chosen]
    config = entry.config.with_values({"optimizer.learning_rate": rate})
    first = chosen * len(comparison.seeds)
    records.extract_run(grid_dir, run_dir, range(first, first + len(comparison.seeds)), config.to_dict())
    own = records.read_summary(run_dir) or {}
    # A finished grid is never resumed, and its members' states (a buffer per cluster each) are most of what it takes.
    shutil.rmtree(grid_dir / records.CHECKPOINTS, ignore_errors=True)
    return {
        "label": entry.label,
        "optimizer": entry.config.optimizer.name,
        "clustered": entry.config.optimizer.entry.clustered,
        "batches": "shuffled" if entry.control else purity(entry.config),
        "control": entry.control,
        "learning_rate": rate,
        "at_grid_edge": len(comparison.learning_rates) > 1 and chosen in (0, len(comparison.learning_rates) - 1),
        "grid": grid,
        **spreads(own["final"], comparison.seeds),
        "clusters": cluster_spreads(own["members"]),
        "steps_to_target": {
            "values": first_steps(records.read_metrics(run_dir), comparison.seeds, comparison.target_accuracy)
        },
        "steps_per_second": summary.get("steps_per_second"),
        "train_seconds": summary.get("train_seconds"),
        "compile_seconds": summary.get("compile_seconds"),
        "run": f"runs/{entry.folder}",
    }


def _new_record(comparison: Comparison) -> dict[str, Any]:
    config = comparison.entries[0].config
    return {
        "status": "running",
        "preset": comparison.preset,
        "description": comparison.summary,
        "facts": {
            "data": config.data.source,
            "model": config.model.name,
            "batches": describe_batches(config),
        },
        "note": _note(comparison),
        "target_accuracy": comparison.target_accuracy,
        "learning_rates": list(comparison.learning_rates),
        "seeds": list(comparison.seeds),
        "plan": comparison.to_dict(),
        "config": config.to_dict(),
        "environment": records.environment(),
        "rows": [],
    }


def _note(comparison: Comparison) -> str:
    count = len(comparison.seeds)
    relative = " relative to momentum" if any(entry.label == REFERENCE for entry in comparison.entries) else ""
    text = (
        f"Mean ± standard deviation over {count} seed{'s' if count > 1 else ''} at the last step. "
        "Every optimizer sees the same batches; its learning rate is the best of "
        f"{len(comparison.learning_rates)} on the validation split. "
        f"Steps to {100 * comparison.target_accuracy:g}% are counted on the validation split. "
        f"Speed is steps per second{relative}, all learning rates and seeds training at once "
        "(median of short rounds in which the optimizers take turns)."
    )
    if any(entry.control for entry in comparison.entries):
        text += " The control trains momentum on shuffled batches of the same size."
    return text


def _settings(plan: Mapping[str, Any]) -> dict[str, Any]:
    """What decides a comparison, as `comparison.json` has it; fields that an older one lacks take their defaults."""
    configs = {label: Config.from_dict(tree).to_dict() for label, tree in plan.get("entries", {}).items()}
    return {**{key: value for key, value in plan.items() if key != "entries"}, **configs}
