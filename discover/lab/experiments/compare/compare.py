"""The main job: the same batches for every optimizer, each at its best learning rate of one common grid.

For every optimizer one compiled program trains all (learning rate, seed) pairs. The learning rate with the highest mean
last-step accuracy on the validation split is chosen, and the row of the table is what its runs reach on the test split.
The control is momentum on shuffled batches: what clustered batches cost is the gap between the two momentum rows.

A comparison directory holds::

    comparison.json      the plan, the rows of the table, the grid, the choices, the environment
    grids/<label>/       one run directory for each optimizer: every learning rate and seed
    runs/<label>/        the chosen learning rate's runs, extracted from the grid

Called again with the same plan it continues where it was stopped: finished grids are read back, not trained again.
"""

from __future__ import annotations

import contextlib
import math
import shutil
import statistics
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from discover.lab.experiments.compare.plan import Entry, Plan, describe_batches, make_plan, purity
from discover.lab.experiments.config.config import Config
from discover.lab.experiments.run.directory import LOCK
from discover.lab.experiments.sweep.claims import Deadline, claim
from discover.lab.records import (
    CHECKPOINTS,
    environment,
    extract_run,
    read_json,
    read_metrics,
    read_summary,
    write_json,
)
from discover.lab.training.signals import StopRequest
from discover.registry import REFERENCE

if TYPE_CHECKING:
    from discover.lab.training.progress import Progress

__all__ = ["ComparisonError", "Entry", "Plan", "compare", "make_plan"]

COMPARISON = "comparison.json"
LONG = 10.0
"""Seconds of training from which on, if all rows took that long, their own speeds are measured well enough."""
_OURS = (COMPARISON, "grids", "runs", "figures", "report.html")


class ComparisonError(Exception):
    """A comparison that cannot start or go on; the message is one line."""

    exit_code = 2


def compare(
    plan: Plan,
    directory: str | Path,
    *,
    progress: Callable[[Entry, int, int], Progress | None] | None = None,
    message: Callable[[str], None] | None = None,
    overwrite: bool = False,
    command: Sequence[str] | None = None,
    programs: MutableMapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Trains what is missing of ``plan`` in ``directory`` and returns the contents of its ``comparison.json``.

    Args:
        plan: what to compare.
        directory: a new one, an empty one, or that of the same plan, which is then continued.
        progress: called with each entry, its number from 0 and how many there are; what it returns watches the entry.
        message: called with what is being done besides training.
        overwrite: start anew in a directory that holds another comparison.
        command: the command line for the records; default ``sys.argv``.
        programs: compiled programs of earlier runs in this process, to be reused and added to.

    Raises:
        ComparisonError: the directory holds something else, cannot be written, or is another process's.
        RunError: from training; see :mod:`discover.lab.experiments.run.run`. What was trained is kept.
    """
    directory = Path(directory)
    with StopRequest() as stop, contextlib.ExitStack() as held:
        try:
            mine = held.enter_context(claim(directory / LOCK))
        except OSError as error:
            raise ComparisonError(f"cannot write to {directory}: {error.strerror or error}") from None
        if not mine:
            raise ComparisonError(f"{directory} is in use by another process")
        limit = Deadline(stop=stop)
        return _compare(plan, directory, progress, message, overwrite, command, programs, limit)


def _compare(
    plan: Plan,
    directory: Path,
    progress: Callable[[Entry, int, int], Progress | None] | None,
    message: Callable[[str], None] | None,
    overwrite: bool,
    command: Sequence[str] | None,
    programs: MutableMapping[str, Any] | None,
    limit: Deadline,
) -> dict[str, Any]:
    shared = _Shared({} if programs is None else programs)
    if overwrite:
        shared.check(plan)  # what keeps the new one from starting is told before the old one is deleted
    finished = prepare_directory(plan, directory, overwrite=overwrite)
    if finished is not None:
        return finished
    shared.dataset(plan.entries[0].config)  # data that is not there is told before anything is written
    record = _new_record(plan, command)
    _write(directory, record)
    for number, entry in enumerate(plan.entries):
        watcher = None if progress is None else progress(entry, number, len(plan.entries))
        record["rows"].append(_train_entry(plan, entry, directory, watcher, command, shared))
        record["facts"]["data"] = shared.dataset(entry.config).name  # which of its forms a source found
        if record["environment"].get("backend") is None:
            record["environment"] = read_json(directory / "grids" / entry.folder / "environment.json")
        _write(directory, record)
        limit.check()
    if message is not None:
        message("measuring the speed of each optimizer")
    measure_speed(plan, record["rows"], shared)
    record["status"] = "finished"
    _write(directory, record)
    return record


def prepare_directory(plan: Plan, directory: Path, *, overwrite: bool) -> dict[str, Any] | None:
    """Makes the directory ready for ``plan``, or says in one line why it cannot be.

    Only what a comparison itself writes is ever deleted.

    Returns:
        The record of the same plan if it is there, finished; None if there is something to do.
    """
    recorded = None
    try:
        directory.mkdir(parents=True, exist_ok=True)
        present = {path.name for path in directory.iterdir()} - {LOCK}
        if overwrite:
            for name in _OURS:
                path = directory / name
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path)
                else:
                    path.unlink(missing_ok=True)
        elif COMPARISON in present:
            recorded = _check_same(plan, directory)
        elif present:
            raise ComparisonError(f"{directory} is not empty and holds no comparison: choose another --out")
        probe = directory / ".write-test"
        probe.write_text("")
        probe.unlink()
    except OSError as error:
        raise ComparisonError(f"cannot write to {directory}: {error.strerror or error}") from None
    return recorded if recorded is not None and recorded.get("status") == "finished" else None


def choose_rate(
    members: Sequence[dict[str, Any]], learning_rates: Sequence[float], seeds: Sequence[int]
) -> tuple[int, list[dict[str, Any]]]:
    """Picks the learning rate with the highest mean validation accuracy at the last step.

    A rate at which any seed diverged cannot be chosen (unless all did). Of equals the smaller wins.

    Args:
        members: as in a grid's ``summary.json``: for each learning rate, in order, one member a seed.
        learning_rates: the grid.
        seeds: the seeds.

    Returns:
        The index of the choice, and for every rate its mean and spread.
    """
    grid = []
    for index, rate in enumerate(learning_rates):
        group = members[index * len(seeds) : (index + 1) * len(seeds)]
        values = [((member.get("final") or {}).get("validation") or {}).get("accuracy") for member in group]
        grid.append({"learning_rate": rate, "validation_accuracy": spread(values)})
    scores = [point["validation_accuracy"]["mean"] for point in grid]
    scores = [-math.inf if score is None else score for score in scores]
    return scores.index(max(scores)), grid


def spread(values: Sequence[float | None]) -> dict[str, Any]:
    """Mean and sample standard deviation over the seeds, with the values; both null if a seed diverged.

    >>> spread([0.5, 0.7])["mean"]
    0.6
    """
    if not values or any(value is None or not math.isfinite(value) for value in values):
        return {"mean": None, "std": None, "values": list(values)}
    numbers = [float(value) for value in values if value is not None]
    mean = math.fsum(numbers) / len(numbers)
    rest = math.fsum((value - mean) ** 2 for value in numbers)
    std = math.sqrt(rest / (len(numbers) - 1)) if len(numbers) > 1 else 0.0
    return {"mean": mean, "std": std, "values": numbers}


def first_steps(metrics: Iterable[dict[str, Any]], seeds: Sequence[int], target: float) -> list[int | None]:
    """For each seed the first evaluated step at which its validation accuracy was at least ``target``."""
    first: dict[int, int] = {}
    for line in metrics:
        if line.get("kind") == "eval" and line.get("split") == "validation" and (line.get("accuracy") or 0) >= target:
            first[line["seed"]] = min(line["step"], first.get(line["seed"], line["step"]))
    return [first.get(seed) for seed in seeds]


def measure_speed(plan: Plan, rows: list[dict[str, Any]], shared: _Shared, rounds: int = 6) -> None:
    """Times short trainings again, the optimizers taking turns, and sets each row's speeds from these rounds.

    Other programs come and go, so a training's own seconds say little. In a round all optimizers are timed one right
    after the other, and each is set against momentum of the *same* round; the median over the rounds counts. Only
    where every training took longer than :data:`LONG` its own time is good enough, and then it is taken for all.
    """
    from discover.lab.experiments.run.run import run

    entries = {entry.label: entry for entry in plan.entries}
    long = all((row["train_seconds"] or 0) >= LONG for row in rows)
    timed: list[dict[str, float | None]] = []
    for _ in range(0 if long or len(rows) < 2 else rounds):
        found: dict[str, float | None] = {}
        for row in rows:
            config = entries[row["label"]].config
            few = min(50, config.training.steps or 50)
            changes = {"training.steps": few, "training.epochs": None, "training.eval_every": 0}
            brief = config.with_values({**changes, "training.on_nonfinite": "drop"})
            result = run(brief, None, members=_members(plan), programs=shared.programs, dataset=shared.dataset(config))
            found[row["label"]] = result.steps_per_second
        timed.append(found)
    add_speeds(rows, timed)


def add_speeds(rows: list[dict[str, Any]], rounds: Sequence[Mapping[str, float | None]]) -> None:
    """Sets each row's steps per second, and their ratio to momentum's, where it was trained.

    Args:
        rows: the rows; their own steps per second count where there are no rounds.
        rounds: for each round the steps per second by label.
    """
    taken = rounds or [{row["label"]: row["steps_per_second"] for row in rows}]
    for row in rows:
        rates = [rate for found in taken if (rate := found.get(row["label"]))]
        pairs = [(found.get(row["label"]), found.get(REFERENCE)) for found in taken]
        ratios = [mine / theirs for mine, theirs in pairs if mine and theirs]
        row["steps_per_second"] = statistics.median(rates) if rates else None
        row["relative_speed"] = statistics.median(ratios) if ratios else None


def _train_entry(
    plan: Plan,
    entry: Entry,
    directory: Path,
    progress: Progress | None,
    command: Sequence[str] | None,
    shared: _Shared,
) -> dict[str, Any]:
    from discover.lab.experiments.run.run import run

    grid_dir, run_dir = directory / "grids" / entry.folder, directory / "runs" / entry.folder
    options: dict[str, Any] = {"resume": True, "progress": progress, "command": command, "programs": shared.programs}
    run(entry.config, grid_dir, members=_members(plan), dataset=shared.dataset(entry.config), **options)
    summary = read_summary(grid_dir) or {}
    chosen, grid = choose_rate(summary["members"], plan.learning_rates, plan.seeds)
    rate = plan.learning_rates[chosen]
    config = entry.config.with_values({"optimizer.learning_rate": rate})
    first = chosen * len(plan.seeds)
    extract_run(grid_dir, run_dir, range(first, first + len(plan.seeds)), config.to_dict())
    # A finished grid is never resumed, and its members' states (a buffer per cluster each) are most of what it takes.
    shutil.rmtree(grid_dir / CHECKPOINTS, ignore_errors=True)
    final = (read_summary(run_dir) or {})["final"]
    nothing: list[None] = [None] * len(plan.seeds)
    return {
        "label": entry.label,
        "optimizer": entry.config.optimizer.name,
        "clustered": entry.config.optimizer.entry.clustered,
        "batches": "shuffled" if entry.control else purity(entry.config),
        "control": entry.control,
        "learning_rate": rate,
        "at_grid_edge": len(plan.learning_rates) > 1 and chosen in (0, len(plan.learning_rates) - 1),
        "grid": grid,
        "validation_accuracy": spread(final.get("validation", {}).get("accuracy", nothing)),
        "test_accuracy": spread(final.get("test", {}).get("accuracy", nothing)),
        "test_loss": spread(final.get("test", {}).get("loss", nothing)),
        "steps_to_target": {"values": first_steps(read_metrics(run_dir), plan.seeds, plan.target_accuracy)},
        "steps_per_second": summary.get("steps_per_second"),
        "train_seconds": summary.get("train_seconds"),
        "compile_seconds": summary.get("compile_seconds"),
        "run": f"runs/{entry.folder}",
    }


class _Shared:
    """What the entries have in common: the data set, loaded once, and the compiled programs."""

    def __init__(self, programs: MutableMapping[str, Any]) -> None:
        self.programs = programs
        self._dataset: Any = None

    def check(self, plan: Plan) -> None:
        """Loads the data and builds every entry's batches once, so that what is wrong with them is known."""
        from discover.lab.data import DataError
        from discover.lab.experiments.run.build import build_plan

        for entry in plan.entries:
            try:
                build_plan(entry.config, self.dataset(entry.config), plan.seeds[0])
            except DataError as error:
                raise ComparisonError(str(error)) from None

    def dataset(self, config: Config) -> Any:
        from discover.lab.data import DataError
        from discover.lab.experiments.run.build import build_data

        if self._dataset is None:
            try:
                self._dataset = build_data(config)
            except DataError as error:
                raise ComparisonError(str(error)) from None
        return self._dataset


def _members(plan: Plan) -> list[Any]:
    from discover.lab.experiments.run.run import Member

    return [Member(seed, {"learning_rate": rate}) for rate in plan.learning_rates for seed in plan.seeds]


def _check_same(plan: Plan, directory: Path) -> dict[str, Any]:
    try:
        recorded = read_json(directory / COMPARISON)
    except ValueError as error:
        raise ComparisonError(f"{error}; start anew with --overwrite") from None
    theirs, mine = recorded.get("plan") or {}, plan.to_dict()
    difference = next(_differences(theirs, mine), None)
    if difference is not None:
        raise ComparisonError(
            f"{directory} holds another comparison ({difference}): choose another --out, or --overwrite it"
        )
    return recorded


def _differences(theirs: Any, mine: Any, path: str = ""):
    if isinstance(theirs, dict) and isinstance(mine, dict):
        for key in [*theirs, *(key for key in mine if key not in theirs)]:
            name = f"{path}.{key}" if path else str(key)
            if key not in theirs or key not in mine:
                yield f"{name.removeprefix('entries.')} is only in the {'new' if key in mine else 'old'} one"
            else:
                yield from _differences(theirs[key], mine[key], name)
    elif theirs != mine:
        yield f"{path.removeprefix('entries.')} was {theirs}, now {mine}"


def _new_record(plan: Plan, command: Sequence[str] | None) -> dict[str, Any]:
    config = plan.entries[0].config
    return {
        "status": "running",
        "preset": plan.preset,
        "description": plan.summary,
        "facts": {
            "data": config.data.source,
            "model": config.model.name,
            "batches": describe_batches(config),
        },
        "note": _note(plan),
        "target_accuracy": plan.target_accuracy,
        "learning_rates": list(plan.learning_rates),
        "seeds": list(plan.seeds),
        "plan": plan.to_dict(),
        "config": config.to_dict(),
        "environment": environment(command=command),
        "rows": [],
    }


def _note(plan: Plan) -> str:
    count = len(plan.seeds)
    text = (
        f"Mean ± standard deviation over {count} seed{'s' if count > 1 else ''} at the last step. "
        f"Every optimizer sees the same batches; its learning rate is the best of {len(plan.learning_rates)} on the "
        "validation split. "
        f"Steps to {100 * plan.target_accuracy:g}% are counted on the validation split. "
        "Speed is steps per second relative to momentum, all learning rates and seeds training at once "
        "(median of short rounds in which the optimizers take turns, or the whole training where all are long)."
    )
    if any(entry.control for entry in plan.entries):
        text += " The control trains momentum on shuffled batches of the same size."
    return text


def _write(directory: Path, record: dict[str, Any]) -> None:
    try:
        write_json(directory / COMPARISON, record)
    except OSError as error:
        raise ComparisonError(f"cannot write to {directory}: {error.strerror or error}") from None
