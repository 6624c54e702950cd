"""Trains one configuration: data, model and optimizer from a ``Config``; records and checkpoints on disk.

``members`` train together in one compiled program (or in a few, see ``config.training.together``). They may
differ in seed and in any number that the optimizer takes, so a whole
(learning rate x seed) grid of one optimizer is one call. Two members with the same seed see the same batches
and start from the same parameters. With explicit members, each line of metrics.jsonl also has ``"member":
index``; summary.json always has ``"members": [{"seed", "hyperparameters", "final", "diverged_at"}, ...]`` in
the same order. ``records.extract_run(run_dir, new_dir, members=[...])`` writes some of the members (those of
the chosen learning rate) as a run directory of their own, so a comparison keeps its grids in
``grids/<label>`` and the choices in ``runs/<label>``. A member whose loss is no longer finite stops the run, or
is dropped where ``training.on_nonfinite=drop`` (its ``final`` is then null, ``diverged_at`` its step).

Errors (all have ``.exit_code``; ``str(error)`` is one line: print it and exit with the code, no traceback):
``ConfigError`` (2, from config.check), ``DataError`` (2), ``FolderError`` (2: the folder holds another run, cannot
be written, is in use, the disk is full), ``NonFiniteLoss`` (1), ``RunStopped`` (130 or 143: Ctrl-C or SIGTERM, with
a checkpoint written). The last three are subclasses of ``RunError``, in ``training.errors``.

Validation is evaluated every ``eval_every`` steps and at the end; test at the end only, or, where there is no
validation split, at every evaluation. Steps count from 1: a line says what was so after that many steps.
"""

from __future__ import annotations

import contextlib
from collections.abc import MutableMapping, Sequence
from pathlib import Path
from typing import Any

import jax

from discover.lab import records
from discover.lab.data import Dataset
from discover.lab.experiments.config.config import Config, ConfigError
from discover.lab.experiments.run.build import Member, traced_names
from discover.lab.experiments.run.job import Job
from discover.lab.experiments.run.load_params import load_params
from discover.lab.experiments.run.results import MemberResult, RunResult, describe, result_of
from discover.lab.experiments.run.team import Team
from discover.lab.experiments.run.tensorboard import event_writer
from discover.lab.training.errors import RunError, RunStopped
from discover.lab.training.progress import Progress, Quiet
from discover.lab.training.signals import StopRequest

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
        programs: compiled programs of earlier runs in this process, to be reused and added to; start with {}.
            Runs that differ only in learning rates, seeds and lengths share all of them; runs with different
            optimizers on the same model and data share the initial parameters' and the evaluation's.
        dataset: the data set, if it is loaded already; it must be what ``config.data`` describes.
        team: several devices, of this process or of several, to train on; None: one device.

    Returns:
        The finished run, with every member's metrics.

    Raises:
        ConfigError, DataError, RunError: one line each, with an ``exit_code``; see the top of this file.
    """
    config.check()
    explicit = members is not None
    everyone = list(members) if members is not None else [Member(seed) for seed in config.training.seeds]
    if not everyone:
        raise ConfigError("members needs at least one member, got none")
    names = traced_names(config, everyone)
    team = Team() if team is None else team
    progress = progress if progress is not None and team.first else Quiet()
    with contextlib.ExitStack() as stack:
        team.check(config)
        stack.enter_context(team.processes.watching())
        team.compare(config, describe(everyone))
        directory = None
        if out_dir is not None:
            directory = stack.enter_context(team.directory(Path(out_dir)))
            if directory.take(config, describe(everyone), resume=resume, overwrite=overwrite):
                summary = records.read_summary(directory.path) or {}
                return result_of(summary, records.read_metrics(directory.path), directory.path)
        shared = {} if programs is None else programs
        job = Job(config, everyone, explicit, names, directory, progress, checkpoints, shared, team, stack, dataset)
        if directory is not None:
            if tensorboard and team.first:
                job.sinks.append(stack.enter_context(event_writer(directory.path / "tensorboard")))
            devices = [device.device_kind for device in jax.devices()]
            directory.begin(config, describe(everyone), records.environment(devices, jax.default_backend()))
        with StopRequest() as request:
            try:
                return job.train(request)
            except (RunError, KeyboardInterrupt) as error:
                status = "stopped" if isinstance(error, RunStopped | KeyboardInterrupt) else "failed"
                if directory is not None:
                    with contextlib.suppress(OSError):  # a full disk is being reported already
                        directory.end({**job.summary(status), "reason": str(error)})
                if not isinstance(error, RunStopped):
                    progress.finish(status=status)
                raise
