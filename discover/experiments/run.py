"""Trains one configuration: data, model and optimizer from a ``Config``; records and checkpoints on disk.

The interface::

    result = run(
        config,                      # experiments.config.Config; checked with config.check()
        out_dir,                     # run directory, or None to keep nothing on disk
        members=None,                # [Member(seed, {"learning_rate": 0.1}), ...]; default: config's seeds
        resume=False,                # continue an unfinished run; a finished one is returned as recorded
        overwrite=False,             # replace the run that is there, once everything for the new one is
        progress=None,               # training.progress.Progress; default quiet
        checkpoints=True,            # False: records only (short runs of a grid)
        tensorboard=False,           # also event files, in out_dir/tensorboard (extra "tensorboard")
        command=None,                # argv for environment.json; default sys.argv
    )                                # -> RunResult

``members`` train together in one compiled program (or in a few, see ``config.training.together``). They may
differ in seed and in any hyperparameter of ``config.HYPERPARAMETERS`` that the optimizer has, so a whole
(learning rate x seed) grid of one optimizer is one call. Two members with the same seed see the same batches
and start from the same parameters. With explicit members, each line of metrics.jsonl also has ``"member":
index``; summary.json always has ``"members": [{"seed", "hyperparameters", "final", "diverged_at"}, ...]`` in
the same order. ``records.extract_run(run_dir, new_dir, members=[...])`` writes some of the members (those of
the chosen learning rate) as a run directory of their own, so a comparison keeps its grids in
``grids/<label>`` and the choices in ``runs/<label>``. A member whose loss is no longer finite stops the run, or
is dropped where ``training.on_nonfinite=drop`` (its ``final`` is then null, ``diverged_at`` its step).

    RunResult:    status "finished", steps, out_dir, steps_per_second, compile_seconds, members
    MemberResult: seed, hyperparameters, final {"validation": {"loss", "accuracy"}, "test": {...}} or None,
                  diverged_at, metrics (that member's lines of metrics.jsonl)

Errors (all have ``.exit_code``; ``str(error)`` is one line: print it and exit with the code, no traceback):
``ConfigError`` (2, from config.check), ``RunError`` (2: the folder holds another run, cannot be written, disk
full, resumed with another config), ``NonFiniteLoss`` (1), ``RunStopped`` (130 or 143: Ctrl-C or SIGTERM, with
a checkpoint written). All but ConfigError are subclasses of ``RunError``, in ``training.errors``.

Validation is evaluated every ``eval_every`` steps and at the end; test at the end only, or, where there is no
validation split, at every evaluation. Steps count from 1: a line says what was so after that many steps.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from discover import records
from discover.data import DataError, Dataset, Split
from discover.experiments.build import (
    Member,
    build_data,
    build_members,
    build_model_programs,
    build_network_for,
    build_plan,
    build_programs,
    clusters_per_device,
    drawer,
    in_parts,
    model_key,
    program_key,
    total_steps,
    traced_names,
)
from discover.experiments.config import Config, ConfigError
from discover.experiments.results import MemberResult, RunResult, describe, member_summaries, result_of
from discover.experiments.run_directory import RunDirectory
from discover.experiments.team import Team
from discover.training.checkpoint import Checkpoints
from discover.training.errors import RunError, RunStopped, is_disk_full
from discover.training.log import MemberLog
from discover.training.loop import LoopData, LoopSettings, train
from discover.training.placement import Placement
from discover.training.program import Members, Programs
from discover.training.progress import Progress, Quiet
from discover.training.schedule import factor
from discover.training.signals import StopRequest

__all__ = ["Member", "MemberResult", "RunResult", "load_params", "run"]


def run(
    config: Config,
    out_dir: Path | str | None,
    *,
    members: Sequence[Member] | None = None,
    resume: bool = False,
    overwrite: bool = False,
    progress: Progress | None = None,
    checkpoints: bool = True,
    tensorboard: bool = False,
    command: Sequence[str] | None = None,
    programs: MutableMapping[str, Any] | None = None,
    dataset: Dataset | None = None,
    team: Team | None = None,
) -> RunResult:
    """Trains a configuration to its end; see the top of this file for what it leaves and how it fails.

    Args:
        config: what to do.
        out_dir: the run directory; None keeps everything in memory.
        members: who trains; default one member for each of the configuration's seeds.
        resume: continue what is in ``out_dir`` (start anew where there is nothing yet).
        overwrite: replace the run in ``out_dir``; it is deleted only when the new one is ready to start.
        progress: is told what happens.
        checkpoints: whether to write any.
        tensorboard: also write event files.
        command: the command line for the records.
        programs: compiled programs of earlier runs in this process, to be reused and added to; start with {}.
            Runs that differ only in learning rates, seeds and lengths share all of them; runs with different
            optimizers on the same model and data share the initial parameters' and the evaluation's.
        dataset: the data set, if it is loaded already; it must be what ``config.data`` describes.
        team: several devices, of this process or of several, to train on; None: one device.

    Returns:
        The finished run, with every member's metrics.

    Raises:
        ConfigError, RunError, NonFiniteLoss, RunStopped: one line each, with an ``exit_code``.
    """
    config.check()
    explicit = members is not None
    everyone = list(members) if members is not None else [Member(seed) for seed in config.training.seeds]
    if not everyone:
        raise ConfigError("members needs at least one member, got none")
    names = traced_names(config, everyone)
    progress = progress if progress is not None and (team is None or team.first) else Quiet()
    with _one_line_errors(out_dir), contextlib.ExitStack() as stack:
        if team is not None:
            team.check(config)
            stack.enter_context(team.processes.watching())
            team.compare(config, describe(everyone))
        directory = None
        if out_dir is not None:
            path = Path(out_dir)
            directory = stack.enter_context(RunDirectory(path) if team is None else team.directory(path))
            finished = directory.open(config, describe(everyone), resume=resume, overwrite=overwrite)
            if finished:
                summary = records.read_summary(directory.path) or {}
                return result_of(summary, records.read_metrics(directory.path), directory.path, explicit)
        job = _Job(
            config,
            everyone,
            explicit,
            names,
            directory,
            progress,
            checkpoints,
            tensorboard,
            programs,
            dataset,
            stack,
            team,
            overwrite,
        )
        if directory is not None:
            devices = [device.device_kind for device in jax.devices()]
            argv = list(sys.argv if command is None else command)
            directory.begin(config, describe(everyone), records.environment(devices, jax.default_backend(), argv))
        try:
            return job.train()
        except (RunError, KeyboardInterrupt) as error:
            status = "stopped" if isinstance(error, RunStopped | KeyboardInterrupt) else "failed"
            if directory is not None:
                with contextlib.suppress(OSError):  # a full disk is being reported already
                    directory.end({**job.summary(status), "reason": str(error)})
            if not isinstance(error, RunStopped):
                progress.finish(status=status)
            raise


class _Job:
    """The parts of one run, trained one after the other."""

    def __init__(
        self,
        config: Config,
        everyone: list[Member],
        explicit: bool,
        names: Sequence[str],
        directory: RunDirectory | None,
        progress: Progress,
        checkpoints: bool,
        tensorboard: bool,
        programs: MutableMapping[str, Any] | None,
        dataset: Dataset | None,
        stack: contextlib.ExitStack,
        team: Team | None,
        overwrite: bool,
    ):
        self.config, self.everyone, self.explicit, self.names = config, everyone, explicit, names
        self.directory, self.progress, self.checkpoints, self.stack = directory, progress, checkpoints, stack
        if team is not None:
            self.dataset = team.load(config, dataset)
        else:
            self.dataset = dataset if dataset is not None else build_data(config)
        self.steps = total_steps(config, self.dataset)
        self.network = build_network_for(config, self.dataset)
        self.team = team
        mesh = team.placement if team is not None else None
        self.placement = mesh if mesh is not None else Placement()
        seeds = sorted({m.seed for m in everyone})
        if team is None:
            self.plans = {seed: build_plan(config, self.dataset, seed) for seed in seeds}
        else:
            self.plans = team.plans(config, self.dataset, seeds)
            self.dataset = team.hold(self.dataset, self.plans.values(), self.steps)
        on = f"on {mesh.count} devices " if mesh is not None else ""
        probs = next(iter(self.plans.values())).probs
        key = on + program_key(config, names, probs)
        if mesh is not None:
            key = f"{clusters_per_device(config, mesh.count, len(probs))} clusters each {key}"
        shared = programs if programs is not None else {}
        if key not in shared:
            common = on + model_key(config)
            if common not in shared:
                shared[common] = build_model_programs(config, self.dataset, self.network, mesh)
            shared[key] = build_programs(config, self.dataset, self.network, probs, shared[common], mesh)
        self.programs: Programs = shared[key]
        self.compiled_before = self.programs.compile_seconds
        self.lines: list[dict[str, Any]] = []
        self.diverged_at: dict[int, int] = {}
        self.train_seconds, self.trained_steps, self.done = 0.0, 0, 0
        self.writer: records.MetricsWriter | None = None
        self.sinks: list[Callable[[list[dict[str, Any]]], None]] = []
        self.variance: Any = None
        self.data = self._device_data()
        if team is not None:
            # How long one of them reads says nothing about it: only from here on are the processes compared.
            team.processes.barrier()
        if overwrite and directory is not None:
            directory.clear()  # not before: data that is not there should cost nobody the run that is
        if tensorboard and directory is not None and (team is None or team.first):
            from discover.experiments.tensorboard import event_writer

            self.sinks.append(stack.enter_context(event_writer(directory.path / "tensorboard")))

    def train(self) -> RunResult:
        """Trains all parts and writes the summary."""
        length = first = 0
        with StopRequest() if self.team is None else self.team.processes.stop_request() as stop:
            for part, group in enumerate(in_parts(self.config, self.everyone, self.network.num_parameters)):
                length = self._train_part(part, first, group, self.data, stop, length)
                first += len(group)
        if self.writer is not None:
            self.writer.sync()
        self.progress.finish(status="finished")
        summary = self.summary("finished")
        if self.directory is not None:
            self.directory.end(summary)
        return result_of(summary, self.lines, self.directory.path if self.directory else None, self.explicit)

    def summary(self, status: str) -> dict[str, Any]:
        """What is known now, as summary.json has it."""
        members = member_summaries(self.everyone, self.lines, self.diverged_at, self.steps, self.explicit)
        rate = self.trained_steps / self.train_seconds if self.train_seconds > 0 else None
        return {
            "status": status,
            "optimizer": self.config.optimizer.name,
            "learning_rate": self.config.optimizer.learning_rate,
            "steps": self.done,
            "total_steps": self.steps,
            "seeds": [member.seed for member in self.everyone],
            "final": records.gather_final(members),
            "members": members,
            "parameters": self.network.num_parameters,
            "steps_per_second": rate,
            "train_seconds": self.train_seconds,
            "compile_seconds": self.programs.compile_seconds - self.compiled_before,
        }

    def _train_part(
        self, part: int, first: int, group: list[Member], data: LoopData, stop: StopRequest, length: int
    ) -> int:
        """Trains members that go together, from their newest checkpoint; returns the length of the metrics."""
        config, training = self.config, self.config.training
        arrays, seeds = build_members(config, group, self.names, self.steps)
        arrays = Members(*self.placement.members(tuple(arrays)))
        offset = {"length": length}
        log = self._log(first, group)
        start, state, store = 0, None, None
        if self.directory is not None and self.checkpoints:
            folder = self.directory.path / records.CHECKPOINTS / f"part-{part}"
            store = Checkpoints(folder, keep=training.keep, lengths=self.placement.lengths)
            self.stack.callback(store.close)
            like = self.placement.like(self.programs.abstract_state(arrays))
            found = store.restore_newest(like, message=self.progress.message, accept=self.directory.accepts)
            if found is not None:
                start, state, note = found
                log.recall(note)
                offset["length"] = note["metrics_length"]
        # The parts after a finished one may have metrics too: who goes on from there cuts them, and not this part.
        passed = start == self.steps and first + len(group) < len(self.everyone)
        if self.directory is not None and not passed:
            self._open_metrics(offset["length"])
        self._note_diverged(first, log)
        if state is None:
            state = self.programs.start(arrays)
        draw = drawer([self.plans[seed] for seed in seeds])
        if self.team is not None:
            draw = self.team.draw(draw, self.dataset.train.images)
        result = train(
            self.programs,
            arrays,
            data,
            draw,
            LoopSettings(
                self.steps,
                training.eval_every,
                training.checkpoint_every,
                training.on_nonfinite,
                training.track_variance,
            ),
            log,
            state=state,
            start=start,
            placement=self.placement,
            progress=_Watched(self.progress, self, first, log),
            stop=stop,
            checkpoints=store,
            note=self._note,
            probe=self._probe(seeds, arrays, data),
        )
        self._note_diverged(first, log)
        self.train_seconds += result.train_seconds
        self.trained_steps += result.trained_steps
        self.done = result.steps
        return offset["length"] if passed or self.writer is None else self.writer.sync()

    def _probe(self, seeds: Sequence[int], arrays: Members, data: LoopData) -> tuple[str, Any] | None:
        """What measures the between-cluster variance, where that is asked for."""
        if not self.config.training.track_variance:
            return None
        from discover.experiments.track_variance import VarianceProbe

        if self.variance is None:
            self.variance = VarianceProbe(self.config, self.dataset, self.network, self.plans)
        return "variance", self.variance.bind(seeds, arrays, data.images)

    def _log(self, first: int, group: list[Member]) -> MemberLog:
        """The members' lines, with the learning rate of each step computed as the optimizer computes it."""
        training, settings = self.config.training, self.config.optimizer
        labels: list[dict[str, int]] = [
            {"member": first + i, "seed": m.seed} if self.explicit else {"seed": m.seed} for i, m in enumerate(group)
        ]
        peaks = [m.hyperparameters.get("learning_rate", settings.learning_rate) for m in group]
        steps = np.arange(self.steps)
        factors = np.asarray(factor(training.schedule, steps, training.warmup_steps, self.steps))
        names = [f"seed {m.seed} (learning rate {peak:g})" for m, peak in zip(group, peaks)]
        return MemberLog(
            labels,
            names,
            lambda member, step: float(np.float32(peaks[member]) * factors[step - 1]),
            training.log_every,
            self.steps,
            self._write,
        )

    def _write(self, lines: list[dict[str, Any]]) -> None:
        self.lines.extend(lines)
        if self.writer is not None:
            self.writer.write(lines)
            self.writer.flush()
        for sink in self.sinks:
            sink(lines)

    def _note(self) -> dict[str, Any]:
        """The length of the metrics that belong to a checkpoint, which must reach the disk before it does."""
        return {"metrics_length": self.writer.sync() if self.writer is not None else 0}

    def _note_diverged(self, first: int, log: MemberLog) -> None:
        self.diverged_at.update({first + member: step for member, step in log.diverged_at.items()})

    def _open_metrics(self, length: int) -> None:
        assert self.directory is not None
        if self.writer is not None:
            self.writer.close()
        path = self.directory.path / records.METRICS
        if self.team is None or self.team.first:
            self.writer = records.MetricsWriter(path, length=length)
            self.stack.callback(self.writer.close)
        if self.team is not None:
            self.team.processes.barrier()  # the others read what is left
        self.lines = records.read_metrics(self.directory.path)
        if self.team is not None:
            self.team.processes.barrier()  # before more is written

    def _device_data(self) -> LoopData:
        def put(part: Split | None) -> tuple[jax.Array, jax.Array] | None:
            if self.team is not None:
                return self.team.split(part)
            return None if part is None or not len(part) else self.placement.split(part.images, part.labels)

        images = self.placement.data(self.dataset.train.images)
        parts = {"validation": put(self.dataset.validation), "test": put(self.dataset.test)}
        splits = {name: part for name, part in parts.items() if part is not None}
        final = {name: splits.pop(name) for name in ("test",) if len(splits) == 2}
        return LoopData(images, splits, final)


class _Watched:
    """Passes progress on, and remembers how far the run has come for its summary."""

    def __init__(self, inner: Progress, job: _Job, first: int, log: MemberLog):
        self.inner, self.job, self.first, self.log = inner, job, first, log

    def start(self, *, step: int, total_steps: int, members: int) -> None:
        self.job.done = step
        self.inner.start(step=step, total_steps=total_steps, members=members)

    def advance(self, *, step: int, loss: float, accuracy: float, steps_per_second: float) -> None:
        self.job.done = step
        self.inner.advance(step=step, loss=loss, accuracy=accuracy, steps_per_second=steps_per_second)

    def evaluated(self, *, step: int, split: str, loss: float, accuracy: float) -> None:
        self.inner.evaluated(step=step, split=split, loss=loss, accuracy=accuracy)

    def message(self, text: str) -> None:
        self.job._note_diverged(self.first, self.log)
        self.inner.message(text)

    def finish(self, *, status: str) -> None:
        self.inner.finish(status=status)


def load_params(out_dir: Path | str, *, which: str = "last", dataset: Dataset | None = None) -> tuple[Config, Any]:
    """Reads the parameters that a run would be evaluated at (IGT's true ones).

    Args:
        out_dir: a run directory with checkpoints.
        which: `last`, or `best` (by accuracy on the validation split, where there is one).
        dataset: with the shape and classes that it was trained on, where ``config.data`` does not load them here.

    Returns:
        The configuration, and the parameters as nested dictionaries with leaves [M, ...], one row per member.

    Raises:
        RunError: there is no run, or it has no (whole) checkpoint.
    """
    from discover.experiments.restore import restore_params

    return restore_params(Path(out_dir), which=which, dataset=dataset)


@contextlib.contextmanager
def _one_line_errors(out_dir: Path | str | None) -> Iterator[None]:
    """Turns what can go wrong outside of our hands into one line."""
    try:
        yield
    except (RunError, ConfigError):
        raise
    except DataError as error:
        raise RunError(str(error)) from error
    except Exception as error:
        if is_disk_full(error):
            raise RunError(f"no space left on the disk for {out_dir}: free some space and resume") from error
        raise
