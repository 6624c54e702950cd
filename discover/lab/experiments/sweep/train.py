"""Searches an optimizer's hyperparameters: highest mean validation accuracy over the seeds, the test split once.

A sweep directory holds::

    sweep.json           what is searched, every trial, the winner, its test accuracy, the ready-made --set line
    trials/0007.json     the record of a trial; trials/0007/ its run directory
    best/                the winner trained again with the test split: the only look at it
    study.db             optuna's storage, for `--search tpe`

Called again it continues: ended trials are read back, a trial that was killed goes on. Several processes may share one
directory. A killed sweep of one process ends with the same trials and the same winner as an unbroken one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import Any

from discover.lab import records
from discover.lab.data import Dataset
from discover.lab.experiments.compare.scores import spreads
from discover.lab.experiments.config.config import Config
from discover.lab.experiments.deadline import Deadline, OutOfTime
from discover.lab.experiments.folder import Folder, claim, share
from discover.lab.experiments.run.run import run
from discover.lab.experiments.sweep.optuna_search import import_optuna, run_study
from discover.lab.experiments.sweep.search import Search
from discover.lab.experiments.sweep.trials import Trials
from discover.lab.training.signals import StopRequest

__all__ = ["SWEEP", "set_line", "sweep", "winner"]

SWEEP = "sweep.json"
"""The file in a sweep's folder that says all about it."""


class SweepFolder(Folder):
    """Where a sweep is kept; several processes may work in it."""

    noun = "sweep"
    record = SWEEP
    files = ("trials", "best", "study.db")
    instead = "choose another (--out)"

    def recorded(self) -> dict[str, Any]:
        return _settings(super().recorded())


def sweep(
    search: Search,
    directory: str | Path,
    *,
    storage: str | None = None,
    minutes: float | None = None,
    say: Callable[[dict[str, Any]], None] = lambda record: None,
    programs: MutableMapping[str, Any] | None = None,
    loaded: Dataset | None = None,
) -> dict[str, Any]:
    """Trains what is missing of ``search`` and returns the contents of ``sweep.json``.

    Args:
        search: what :func:`discover.lab.experiments.sweep.search.make_search` returned.
        directory: a new one, or that of the same search, which is then continued.
        storage: for `tpe`, an optuna storage URL; default: a SQLite file in the directory.
        minutes: stop after the trial in progress when this much time has passed.
        say: takes the record of each trial that this process ended.
        programs: compiled programs to reuse and add to.
        loaded: the data set, if its source was read already.

    Raises:
        FolderError: the directory holds another sweep or cannot be written.
        MissingExtra: `tpe` without optuna.
        DataError, RunError: from training; see :mod:`discover.lab.experiments.run.run`. What was trained is kept.
    """
    if search.method == "tpe":
        import_optuna()
    folder = SweepFolder(directory)
    trials = Trials(search, folder.path, {} if programs is None else programs, loaded)
    _open(search, folder, trials)
    status, best = "finished", None
    with folder, StopRequest() as stop:
        limit = Deadline(None if minutes is None else 60 * minutes, stop)
        try:
            if search.method == "grid":
                _run_grid(search, trials, limit.check, say)
            else:
                run_study(search, folder.path, trials, storage=storage, check_time=limit.check, say=say)
            limit.check()
            best = _train_best(search, folder.path, trials, limit.check)
        except OutOfTime:
            status = "stopped"
        for left in (folder.path / "trials").glob("*.lock"):  # by processes that were killed
            with claim(left):
                pass
        record = _record(search, trials, status, best)
        records.write_json(folder.path / SWEEP, record)
    return record


def winner(trials: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """The trial with the highest mean validation accuracy; of equals the first. None if none came to its end."""
    complete = [trial for trial in trials if trial["state"] == "complete"]
    return max(complete, key=lambda trial: (trial["validation_accuracy"]["mean"], -trial["number"]), default=None)


def set_line(params: dict[str, float]) -> str:
    """The winner's hyperparameters, ready to be typed after another command.

    >>> set_line({"learning_rate": 0.1, "beta": 0.95})
    '--set optimizer.learning_rate=0.1 --set optimizer.beta=0.95'
    """
    return " ".join(f"--set optimizer.{name}={value:g}" for name, value in params.items())


def _open(search: Search, folder: SweepFolder, trials: Trials) -> None:
    """Makes the folder this sweep's own; after that all processes that take part may have it."""
    with folder.claim(wait=True):
        if not folder.open(_settings(search.to_dict())):
            trials.dataset(test=False)  # data that is not there is told before anything is written
            with folder.replace():
                records.write_json(folder.path / SWEEP, {"status": "running", "plan": search.to_dict(), "trials": []})


def _settings(plan: Mapping[str, Any]) -> dict[str, Any]:
    """What decides a sweep, as `sweep.json` has it; a search by optuna may go on for longer."""
    longer = {"trials"} if plan.get("search") == "tpe" else set()
    config = Config.from_dict(plan.get("config", {})).to_dict()  # fields that an older one lacks take their defaults
    return {**{key: value for key, value in plan.items() if key not in longer}, "config": config}


def _run_grid(
    search: Search, trials: Trials, check_time: Callable[[], None], say: Callable[[dict[str, Any]], None]
) -> None:
    def work(point: tuple[int, dict[str, float]]) -> None:
        if trials.read(point[0]) is None:
            check_time()
            record = trials.train(*point)
            trials.write(record)
            say(record)

    share(enumerate(search.points()), lambda point: trials.lock(point[0]), work, check_time)


def _train_best(
    search: Search, directory: Path, trials: Trials, check_time: Callable[[], None]
) -> dict[str, Any] | None:
    """Trains the winner once more, now with the test split."""
    best = winner(trials.ended())
    if best is None:
        return None
    config = search.trial_config(best["params"])
    with claim(directory / "best.lock", wait=True, check=check_time):
        best_run = run(
            config, directory / "best", dataset=trials.dataset(test=True), resume=True, programs=trials.programs
        )
    return {
        **best,
        **spreads(best_run.summary["final"], config.training.seeds),
        "data": trials.dataset(test=True).name,
        "set_line": set_line(best["params"]),
        "run": "best",
    }


def _record(search: Search, trials: Trials, status: str, best: dict[str, Any] | None) -> dict[str, Any]:
    ended = trials.ended()
    return {
        "status": status,
        "plan": search.to_dict(),
        "preset": search.preset,
        "optimizer": search.optimizer,
        "seeds": list(search.config.training.seeds),
        "best": best,
        "winner": (winner(ended) or {}).get("number") if best is not None else None,
        "environment": _environment(trials),
        "trials": ended,
    }


def _environment(trials: Trials) -> dict[str, Any]:
    for number in range(trials.search.trials):
        if found := records.read_object(trials.path(number) / records.ENVIRONMENT):  # damaged: no reason to stop
            return found
    return records.environment()
