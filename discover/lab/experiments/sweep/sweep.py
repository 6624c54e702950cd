"""Searches an optimizer's hyperparameters: highest mean validation accuracy over the seeds, the test split once.

A sweep directory holds::

    sweep.json           the plan, every trial, the winner, its test accuracy, the ready-made --set line
    trials/0007.json     the record of a trial; trials/0007/ its run directory
    best/                the winner trained again with the test split: the only look at it
    study.db             optuna's storage, for `--search tpe`

Called again it continues: ended trials are read back, a trial that was killed goes on. Several processes may share one
directory. A killed sweep of one process ends with the same trials and the same winner as an unbroken one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, MutableMapping, Sequence
from pathlib import Path
from typing import Any

from discover.lab import records
from discover.lab.experiments.compare.compare import spread
from discover.lab.experiments.sweep.claims import Deadline, OutOfTime, claim
from discover.lab.experiments.sweep.plan import SweepPlan, make_sweep
from discover.lab.experiments.sweep.trials import Trials
from discover.lab.training.signals import StopRequest

__all__ = ["SWEEP", "SweepError", "SweepPlan", "make_sweep", "set_line", "sweep", "winner"]

SWEEP = "sweep.json"
"""The file in a sweep's folder that says all about it."""


class SweepError(Exception):
    """A sweep that cannot start or go on; the message is one line."""

    exit_code = 2


def sweep(
    plan: SweepPlan,
    directory: str | Path,
    *,
    storage: str | None = None,
    minutes: float | None = None,
    say: Callable[[dict[str, Any]], None] = lambda record: None,
    command: Sequence[str] | None = None,
    programs: MutableMapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Trains what is missing of ``plan`` and returns the contents of ``sweep.json``.

    Args:
        plan: what :func:`make_sweep` returned.
        directory: a new one, or that of the same plan, which is then continued.
        storage: for `tpe`, an optuna storage URL; default: a SQLite file in the directory.
        minutes: stop after the trial in progress when this much time has passed.
        say: takes the record of each trial that this process ended.
        command: the command line for the records.
        programs: compiled programs to reuse and add to.

    Raises:
        SweepError: the directory holds another sweep or cannot be written.
        MissingExtra: `tpe` without optuna.
        RunError: from training; see :mod:`discover.lab.experiments.run.run`. What was trained is kept.
    """
    directory = Path(directory)
    if plan.search == "tpe":
        from discover.lab.experiments.sweep.optuna_search import import_optuna

        import_optuna()
    _prepare(plan, directory)
    trials = Trials(plan, directory, {} if programs is None else programs, command)
    status, best = "finished", None
    with StopRequest() as stop:
        limit = Deadline(None if minutes is None else 60 * minutes, stop)
        try:
            if plan.search == "grid":
                _run_grid(plan, trials, limit.check, say)
            else:
                from discover.lab.experiments.sweep.optuna_search import run_study

                run_study(plan, directory, trials, storage=storage, check_time=limit.check, say=say)
            limit.check()
            best = _train_best(plan, directory, trials)
        except OutOfTime:
            status = "stopped"
    record = _record(plan, trials, status, best, command)
    records.write_json(directory / SWEEP, record)
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


def _run_grid(
    plan: SweepPlan, trials: Trials, check_time: Callable[[], None], say: Callable[[dict[str, Any]], None]
) -> None:
    waiting = list(enumerate(plan.points()))
    while waiting:
        busy = []
        for number, params in waiting:
            with claim(trials.lock(number)) as mine:
                if not mine:
                    busy.append((number, params))
                elif trials.read(number) is None:
                    check_time()
                    record = trials.train(number, params)
                    trials.write(record)
                    say(record)
        if len(busy) == len(waiting):
            check_time()
            time.sleep(0.3)  # all are with other processes: they end, or their processes do
        waiting = busy


def _train_best(plan: SweepPlan, directory: Path, trials: Trials) -> dict[str, Any] | None:
    """Trains the winner once more, now with the test split."""
    from discover.lab.experiments.run.run import run

    best = winner(trials.ended())
    if best is None:
        return None
    config = plan.trial_config(best["params"])
    with claim(directory / "locks" / "best.lock", wait=True):
        run(
            config,
            directory / "best",
            dataset=trials.dataset(test=True),
            resume=True,
            programs=trials.programs,
            command=trials.command,
        )
    final = (records.read_summary(directory / "best") or {})["final"]
    return {
        **best,
        "validation_accuracy": spread(final["validation"]["accuracy"]),
        "test_accuracy": spread(final["test"]["accuracy"]),
        "test_loss": spread(final["test"]["loss"]),
        "data": trials.dataset(test=True).name,
        "set_line": set_line(best["params"]),
        "run": "best",
    }


def _prepare(plan: SweepPlan, directory: Path) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with claim(directory / "locks" / "plan.lock", wait=True):
            path = directory / SWEEP
            if path.exists():
                _check_same(plan, directory, records.read_json(path))
                return
            ours = {"locks", "trials", "best", "study.db"}
            strangers = [item.name for item in directory.iterdir() if item.name not in ours]
            if strangers:
                raise SweepError(f"{directory} is not empty and holds no sweep ({strangers[0]}); choose another --out")
            records.write_json(path, {"status": "running", "plan": plan.to_dict(), "trials": []})
    except OSError as error:
        raise SweepError(f"{directory} cannot be written: {error.strerror or error}") from None
    except ValueError as error:
        raise SweepError(str(error)) from None


def _check_same(plan: SweepPlan, directory: Path, record: dict[str, Any]) -> None:
    theirs, mine = record.get("plan") or {}, plan.to_dict()
    if plan.search == "tpe" and theirs.get("search") == "tpe":  # a search may go on for longer
        theirs = {**theirs, "trials": mine["trials"]}
    for key, value in mine.items():
        if theirs.get(key) != value:
            how = f"its {key} differs" if isinstance(value, dict) else f"{key} was {theirs.get(key)}, now {value}"
            raise SweepError(f"{directory} holds another sweep ({how}); choose another --out")


def _record(
    plan: SweepPlan, trials: Trials, status: str, best: dict[str, Any] | None, command: Sequence[str] | None
) -> dict[str, Any]:
    ended = trials.ended()
    return {
        "status": status,
        "plan": plan.to_dict(),
        "preset": plan.preset,
        "optimizer": plan.optimizer,
        "seeds": list(plan.config.training.seeds),
        "best": best,
        "winner": (winner(ended) or {}).get("number") if best is not None else None,
        "environment": _environment(trials, command),
        "trials": ended,
    }


def _environment(trials: Trials, command: Sequence[str] | None) -> dict[str, Any]:
    for number in range(trials.plan.trials):
        path = trials.path(number) / records.ENVIRONMENT
        if path.exists():
            return records.read_json(path)
    return records.environment(command=command)
