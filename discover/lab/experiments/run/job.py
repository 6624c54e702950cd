"""The work of one run: its members trained part by part, with their metrics, checkpoints and summary."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from discover.lab import records
from discover.lab.data import Dataset
from discover.lab.experiments.config.config import Config
from discover.lab.experiments.run.build import Member, build_members, build_network_for, in_parts, total_steps
from discover.lab.experiments.run.by_cluster import cluster_parts
from discover.lab.experiments.run.directory import RunDirectory
from discover.lab.experiments.run.programs import shared_programs
from discover.lab.experiments.run.results import RunResult, member_summaries, result_of
from discover.lab.experiments.run.team import Team
from discover.lab.experiments.run.track_variance import VarianceProbe
from discover.lab.training.checkpoint import Checkpoints
from discover.lab.training.errors import RunError
from discover.lab.training.learning_rate import factor
from discover.lab.training.loop import LoopData, LoopSettings, Probe, train
from discover.lab.training.metrics import MemberLog
from discover.lab.training.programs import Members
from discover.lab.training.progress import Progress
from discover.lab.training.signals import StopRequest


@dataclass
class Job:
    """The parts of one run, trained one after the other."""

    config: Config
    everyone: list[Member]
    explicit: bool  # whether the members were given, and are told apart by their numbers
    names: Sequence[str]  # of the hyperparameters that are arguments of the programs
    directory: RunDirectory | None
    progress: Progress
    checkpoints: bool
    shared: MutableMapping[str, Any]  # programs of earlier runs
    team: Team
    stack: contextlib.ExitStack  # closes what the job opens
    loaded: Dataset | None = None

    def __post_init__(self) -> None:
        config, team = self.config, self.team
        self.devices = team.devices
        dataset = team.load(config, self.loaded)
        self.steps = total_steps(config, dataset)
        self.network = build_network_for(config, dataset)
        self.plans = team.plans(config, dataset, sorted({m.seed for m in self.everyone}))
        self.dataset = team.hold(dataset, self.plans.values(), self.steps)
        probs = next(iter(self.plans.values())).probs
        self.programs = shared_programs(
            self.shared, config, self.dataset, self.network, self.names, probs, team.devices
        )
        self.compiled_before = self.programs.compile_seconds
        self.lines: list[dict[str, Any]] = []
        self.logs: list[tuple[int, MemberLog]] = []  # of each part, with the number of its first member
        self.train_seconds, self.trained_steps = 0.0, 0
        self.writer: records.MetricsWriter | None = None
        self.sinks: list[Callable[[list[dict[str, Any]]], None]] = []
        self.variance: VarianceProbe | None = None
        self.data = self._device_data()
        # How long one of them reads says nothing about it: only from here on are the processes compared.
        team.processes.wait_for_all()

    def train(self, request: StopRequest) -> RunResult:
        """Trains all parts and writes the summary."""
        length = first = 0
        stop = self.team.processes.stop_together(request)
        for part, members in enumerate(in_parts(self.config, self.everyone, self.network.num_parameters)):
            length = self._train_part(part, first, members, stop, length)
            first += len(members)
        if self.writer is not None:
            self.writer.sync()
        self.progress.finish(status="finished")
        summary = self.summary("finished")
        if self.directory is not None:
            self.directory.end(summary)
        return result_of(summary, self.lines, self.directory.path if self.directory else None)

    def summary(self, status: str) -> dict[str, Any]:
        """What is known now, as summary.json has it."""
        diverged_at = {first + member: step for first, log in self.logs for member, step in log.diverged_at.items()}
        members = member_summaries(self.everyone, self.lines, diverged_at, self.steps)
        rate = self.trained_steps / self.train_seconds if self.train_seconds > 0 else None
        return {
            "status": status,
            "optimizer": self.config.optimizer.name,
            "learning_rate": self.config.optimizer.learning_rate,
            "steps": self.logs[-1][1].step if self.logs else 0,
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
        self, part: int, first: int, members: list[Member], stop: Callable[[], int | None], length: int
    ) -> int:
        """Trains members that go together, from their newest checkpoint; returns the length of the metrics."""
        config, training = self.config, self.config.training
        arrays, seeds = build_members(config, members, self.steps, self.names)
        arrays = self.devices.put_everywhere(arrays)
        log = self._log(first, members)
        self.logs.append((first, log))
        start, state, store, lost = 0, None, None, False
        if self.directory is not None and self.checkpoints:
            folder = self.directory.path / records.CHECKPOINTS / f"part-{part}"
            store = Checkpoints(
                folder,
                keep=training.keep,
                lengths=self.devices.lengths,
                agree=self.team.processes.agree,
                message=self.progress.message,
            )
            self.stack.callback(store.close)
            like = self.devices.like(self.programs.abstract_state(arrays))
            found = store.restore_newest(like, self.directory.accepts)
            if found is not None:
                start, state, note = found
                log.recall(note)
                length = self.directory.covered(note)
                lost = length < note["metrics_length"]
        # The parts after a finished one may have metrics too: who goes on from there cuts them, and not this part.
        passed = start == self.steps and first + len(members) < len(self.everyone) and not lost
        if self.directory is not None and not passed:
            self._open_metrics(length)
        if part == 0:
            self._warn_of_much_memory(arrays)
        if state is None:
            state = self.programs.start(arrays)
        plans = [self.plans[seed] for seed in seeds]
        result = train(
            self.programs,
            arrays,
            self.data,
            self.team.feed(plans, self.dataset.train.images, self.programs.steps_per_dispatch),
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
            progress=self.progress,
            stop=stop,
            checkpoints=store,
            note=self._note,
            evaluate_first=lost and start == self.steps,
            probe=self._probe(seeds, arrays),
        )
        self.train_seconds += result.train_seconds
        self.trained_steps += result.trained_steps
        return length if passed or self.writer is None else self.writer.sync()[0]

    def _warn_of_much_memory(self, arrays: Members) -> None:
        """Says so before a state is made that takes more than half of what is free, and what would take less.

        Raises:
            RunError: it takes more than all that is free, and making it would end the program, or another one.
        """
        need, free = self.devices.memory(self.programs.abstract_state(arrays))
        if 2 * need <= free:
            return
        members, clusters = len(arrays.seeds), len(next(iter(self.plans.values())).probs)
        entry = self.config.optimizer.entry
        remedies = ["fewer clusters"] * (entry.clustered and clusters > 1)
        remedies += ["optimizer.buffer_dtype=int8"] * ("buffer_dtype" in entry.types)
        remedies += ["training.together=1"] * (members > 1) + ["a smaller model", "more devices"]
        holds = f"{clusters:,} clusters, " * entry.clustered + f"{members} members of {self.network.num_parameters:,}"
        told = (
            f"the state ({holds} parameters) takes {need / 1e9:.2g} GB on each device, of {free / 1e9:.2g} GB that are "
            f"free: less with {', '.join(remedies[:-1])} or {remedies[-1]}"
        )
        if need > free:
            raise RunError(told)
        self.progress.message(told)

    def _probe(self, seeds: Sequence[int], arrays: Members) -> tuple[str, Probe] | None:
        """What measures the between-cluster variance, where that is asked for."""
        if not self.config.training.track_variance:
            return None
        if self.variance is None:
            self.variance = VarianceProbe(self.config, self.dataset, self.network, self.plans)
        return "variance", self.variance.bind(seeds, arrays, self.data.images)

    def _log(self, first: int, members: list[Member]) -> MemberLog:
        """The members' lines, with the learning rate of each step computed as the optimizer computes it."""
        training, settings = self.config.training, self.config.optimizer
        labels: list[dict[str, int]] = [
            {"member": first + i, "seed": m.seed} if self.explicit else {"seed": m.seed} for i, m in enumerate(members)
        ]
        peaks = [m.hyperparameters.get("learning_rate", settings.learning_rate) for m in members]
        steps = np.arange(self.steps)
        factors = np.asarray(factor(training.schedule, steps, training.warmup_steps, self.steps))
        names = [f"seed {m.seed} (learning rate {peak:g})" for m, peak in zip(members, peaks)]
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
        """The metrics that belong to a checkpoint, which must reach the disk before it does."""
        length, checksum = self.writer.sync() if self.writer is not None else (0, 0)
        return {"metrics_length": length, "metrics_checksum": checksum}

    def _open_metrics(self, length: int) -> None:
        assert self.directory is not None
        if self.writer is not None:
            self.writer.close()
        path = self.directory.path / records.METRICS
        if self.team.first:
            self.writer = records.MetricsWriter(path, length=length)
            self.stack.callback(self.writer.close)
        self.team.processes.wait_for_all()  # the others read what is left
        self.lines = records.read_metrics(self.directory.path)
        self.team.processes.wait_for_all()  # before more is written

    def _device_data(self) -> LoopData:
        images = self.devices.put_training_examples(self.dataset.train.images)
        parts = {"validation": self.team.split(self.dataset.validation), "test": self.team.split(self.dataset.test)}
        splits = {name: part for name, part in parts.items() if part is not None}
        final = {name: splits.pop(name) for name in ("test",) if len(splits) == 2}
        return LoopData(
            images, splits, final, cluster_parts(self.config, self.dataset, self.dataset.test, self.devices)
        )
