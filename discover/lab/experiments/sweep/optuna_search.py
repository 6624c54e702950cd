"""Search by optuna: seeded, resumable after a kill, hopeless trials ended early, several processes on one storage.

What a trial tries is a function of the seed, the trial's number and the trials that ended before it, nothing else: no
state of a random generator has to survive a kill. A trial that was running when its process died is taken up by the
next process under its own number, at the values it had. (Optuna's own retry would not do: it waits for a heartbeat to
fail, and tries the values again under a new number, so that a killed search has other trials than an unbroken one.)
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from discover.lab.experiments.folder import POLL, FolderError, claim
from discover.lab.experiments.sweep.search import Search
from discover.lab.experiments.sweep.trials import Trials
from discover.registry import Axis

if TYPE_CHECKING:
    import optuna

STARTUP = 10
"""Trials at random before the search learns from what it saw; the first one is the preset's own setting."""


class MissingExtra(Exception):
    """Optuna is not installed; the message says how to get it."""

    exit_code = 2


def import_optuna() -> Any:
    """Returns the module, quiet but for warnings."""
    try:
        import optuna
    except ImportError:
        raise MissingExtra(
            "--search tpe needs optuna: pip install 'discover-optim[sweep]'; --search grid works without"
        ) from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


@contextlib.contextmanager
def open_study(search: Search, directory: Path, storage: str | None) -> Iterator[optuna.Study]:
    """The sweep's study, made where it is not there yet; at the end its connections are closed."""
    optuna = import_optuna()
    url = storage or f"sqlite:///{directory / 'study.db'}"
    arguments: dict[str, Any] = {"connect_args": {"timeout": 60}} if url.startswith("sqlite") else {}
    training = search.config.training
    # Nobody is judged before the first quarter is over; by epochs that is left to the first evaluations.
    warmup = max(1, (training.steps or 4 * training.eval_every) // 4)
    pruner = optuna.pruners.MedianPruner(n_startup_trials=5, n_warmup_steps=warmup) if search.prune else None
    with contextlib.ExitStack() as at_end:
        with claim(directory / "study.lock", wait=True):
            store = optuna.storages.RDBStorage(url, engine_kwargs=arguments)
            at_end.callback(store.engine.dispose)
            at_end.callback(store.remove_session)
            study = optuna.create_study(
                study_name=f"{search.preset}-{search.optimizer}-{_fingerprint(search)}",
                storage=store,
                direction="maximize",
                sampler=make_sampler(search),
                pruner=pruner or optuna.pruners.NopPruner(),
                load_if_exists=True,
            )
        yield study


def make_sampler(search: Search) -> optuna.samplers.BaseSampler:
    """A sampler without memory: each value is drawn anew from (seed, trial, name) and the trials that have ended."""
    optuna = import_optuna()

    class Sampler(optuna.samplers.BaseSampler):
        def infer_relative_search_space(self, study: Any, trial: Any) -> dict[str, Any]:
            return {}

        def sample_relative(self, study: Any, trial: Any, search_space: Any) -> dict[str, Any]:
            return {}

        def sample_independent(self, study: Any, trial: Any, param_name: str, param_distribution: Any) -> Any:
            if trial.number == 0:  # the preset's own value, so that the winner is never worse
                own = search.config.flat().get(f"optimizer.{param_name.removeprefix('1 - ')}")
                if own is not None:
                    value = 1 - own if param_name.startswith("1 - ") else own
                    return min(max(value, param_distribution.low), param_distribution.high)
            text = f"{search.seed} {trial.number} {param_name}".encode()
            number = int.from_bytes(hashlib.sha256(text).digest()[:4], "big")
            sampler = optuna.samplers.TPESampler(
                seed=number, n_startup_trials=STARTUP, multivariate=False, constant_liar=False
            )
            return sampler.sample_independent(study, trial, param_name, param_distribution)

    return Sampler()


def suggest(trial: optuna.Trial, space: Any) -> dict[str, float]:
    """The values of a trial, to four digits, so that they can be typed."""
    return {name: _suggest(trial, name, axis) for name, axis in space.items()}


def run_study(
    search: Search,
    directory: Path,
    trials: Trials,
    *,
    storage: str | None,
    check_time: Callable[[], None],
    say: Callable[[dict[str, Any]], None],
) -> None:
    """Takes trials until all have ended; several processes may do so at once."""
    with _in_one_line(storage or directory / "study.db"), open_study(search, directory, storage) as study:
        while True:
            check_time()
            if _take_one(search, directory, trials, study, say):
                continue
            if not study.get_trials(deepcopy=False, states=(import_optuna().trial.TrialState.RUNNING,)):
                return
            time.sleep(POLL)  # the last trials are with other processes: they end, or their processes do


@contextlib.contextmanager
def _in_one_line(where: object) -> Iterator[None]:
    """Says what is wrong with the file, or the server, that the trials are kept in."""
    try:
        yield
    except Exception as error:
        if not isinstance(reason := getattr(error, "orig", None), Exception):  # what SQLAlchemy was told
            raise
        if "is full" in str(reason):
            raise FolderError(f"no space left on the disk for {where}: free some space and resume") from error
        raise FolderError(f"{where} cannot be used: {reason}; mend it, or choose another folder") from error


def _take_one(
    search: Search, directory: Path, trials: Trials, study: optuna.Study, say: Callable[[dict[str, Any]], None]
) -> bool:
    """Trains one trial; returns whether there was one to take."""
    optuna = import_optuna()
    running = optuna.trial.TrialState.RUNNING
    with contextlib.ExitStack() as held:
        with claim(directory / "study.lock", wait=True):
            everyone = study.get_trials(deepcopy=False)
            trial = None
            for orphan in (t for t in everyone if t.state == running):
                # Its lock is free if the process that had it is gone, or has ended the trial since we looked.
                free = held.enter_context(claim(trials.lock(orphan.number)))
                if free and study.get_trials(deepcopy=False)[orphan.number].state == running:
                    trial = optuna.trial.Trial(study, orphan._trial_id)
                    break
            if trial is None:
                if len(everyone) >= search.trials:
                    return False
                trial = study.ask()
                held.enter_context(claim(trials.lock(trial.number), wait=True))
            params = suggest(trial, search.space)
        record = _train(search, trials, trial, params)
        trials.write(record)
        if record["state"] == "complete":
            study.tell(trial, record["validation_accuracy"]["mean"])
        else:
            study.tell(trial, state=optuna.trial.TrialState.PRUNED)
        say(record)
        return True


def _train(search: Search, trials: Trials, trial: optuna.Trial, params: dict[str, float]) -> dict[str, Any]:
    optuna = import_optuna()
    reported = set(trial.study.get_trials(deepcopy=False)[trial.number].intermediate_values)

    def judge(step: int, accuracy: float) -> None:
        if step not in reported:
            reported.add(step)
            trial.report(accuracy, step)
        if search.prune and trial.should_prune():
            raise optuna.TrialPruned

    try:
        if reported and search.prune and trial.should_prune():  # killed between the decision and its record
            raise optuna.TrialPruned
        return trials.train(trial.number, params, judge)
    except optuna.TrialPruned:
        last = trial.study.get_trials(deepcopy=False)[trial.number]
        seen = {"step": last.last_step, "value": last.intermediate_values[last.last_step]}  # pyright: ignore
        return {**trials.record(trial.number, params, "pruned", None), "last": seen}


def _suggest(trial: optuna.Trial, name: str, axis: Axis) -> float:
    if axis.low == axis.high:
        return axis.low
    if axis.shape == "tail":
        value = 1 - trial.suggest_float(f"1 - {name}", 1 - axis.high, 1 - axis.low, log=True)
    else:
        value = trial.suggest_float(name, axis.low, axis.high, log=axis.shape == "log")
    return min(max(float(f"{value:.4g}"), axis.low), axis.high)


def _fingerprint(search: Search) -> str:
    text = json.dumps({**search.to_dict(), "trials": None}, sort_keys=True)  # more trials are the same study, longer
    return hashlib.sha256(text.encode()).hexdigest()[:10]
