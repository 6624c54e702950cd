"""The training loop: dispatches, evaluations, checkpoints, and every way a run can end.

The loop knows nothing of data sets, models or optimizers: it calls compiled programs with batches that it is handed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from discover.lab.training.checkpoint import Checkpoints
from discover.lab.training.errors import NonFiniteLoss, RunStopped
from discover.lab.training.metrics import MemberLog
from discover.lab.training.programs import Members, Programs
from discover.lab.training.progress import Progress
from discover.lab.training.step import StepBatch, TrainState

Feed = Callable[[int, int], StepBatch]
"""``feed(first, count)``: the batches of those steps on the device, leaves [steps_per_dispatch, S, ...]."""

Probe = Callable[[int, TrainState], Mapping[str, Any]]
"""``probe(step, state)``: measurements of all members, arrays [M] by name; it must not change the state."""


@dataclass(frozen=True)
class LoopSettings:
    """When things happen, in steps; see ``experiments.config.TrainingConfig``."""

    total_steps: int
    eval_every: int = 0
    checkpoint_every: int = 0
    on_nonfinite: str = "stop"
    probe_every: int = 0

    def next_stop(self, step: int, steps_per_dispatch: int) -> int:
        """The step at which the dispatch that begins at ``step`` ends.

        Ends are at whole multiples, wherever the run was resumed, so that evaluations and checkpoints keep their place.
        """
        periods = (steps_per_dispatch, self.eval_every, self.checkpoint_every, self.probe_every)
        return min([self.total_steps, *((step // period + 1) * period for period in periods if period)])


class ClusterPart(NamedTuple):
    """Examples of one cluster, filled up with others of label −1, which do not count."""

    name: str
    size: int
    images: jax.Array
    labels: jax.Array


@dataclass(frozen=True)
class LoopData:
    """The data on the device."""

    images: jax.Array  # the training examples, [n, ...]
    splits: Mapping[str, tuple[jax.Array, jax.Array]]  # evaluated periodically and at the end
    final_splits: Mapping[str, tuple[jax.Array, jax.Array]]  # evaluated at the end only
    clusters: Sequence[ClusterPart] = ()  # of the test split, evaluated at the end, one by one


@dataclass
class LoopResult:
    """How long it took since the start or the resumption."""

    train_seconds: float  # without compiling, evaluating and saving
    trained_steps: int


def train(
    programs: Programs,
    members: Members,
    data: LoopData,
    feed: Feed,
    settings: LoopSettings,
    log: MemberLog,
    *,
    state: TrainState,
    start: int,
    progress: Progress,
    stop: Callable[[], int | None],
    checkpoints: Checkpoints | None = None,
    note: Callable[[], dict[str, Any]] = dict,
    probe: tuple[str, Probe] | None = None,
    evaluate_first: bool = False,
) -> LoopResult:
    """Trains from step ``start`` to the end.

    Args:
        state: after ``start`` steps; its memory is reused.
        start: steps already done.
        progress: is told.
        stop: is asked once after every dispatch for the signal to stop at, if there was one.
        checkpoints: where they go; None writes none.
        note: what a checkpoint should remember besides the log's own pending numbers.
        probe: the kind of its lines in the metrics, and what measures; called every ``settings.probe_every`` steps.
        evaluate_first: whether the evaluation at ``start`` is missing from the metrics, and is to be made again.

    Raises:
        NonFiniteLoss: a member's loss (or parameter) is no longer finite, unless members are dropped; or all were.
        RunStopped: ``stop`` was requested; the state is in a checkpoint.
        RunError: the disk is full.
    """
    total, step = settings.total_steps, start
    waiting: tuple[int, int, Any] | None = None
    clock = _Clock()
    log.step = step
    progress.start(step=step, total_steps=total, members=len(members.seeds))

    def consume() -> None:
        """Reads the numbers of the dispatch before; waits for the device if it must."""
        nonlocal waiting
        if waiting is None:
            return
        first, count, metrics = waiting
        waiting = None
        loss, accuracy = np.asarray(metrics.loss)[:count], np.asarray(metrics.accuracy)[:count]
        clock.steps += count
        for member in log.add(first, loss, accuracy):
            text = f"the loss of {log.names[member]} is no longer finite at step {log.diverged_at[member]}"
            if settings.on_nonfinite == "stop":
                raise _nonfinite(text, checkpoints)
            if len(log.diverged_at) == len(log.labels):
                raise _nonfinite(f"{text}, and no other is left" if len(log.labels) > 1 else text, checkpoints)
            progress.message(f"{text}; it is dropped and the others go on")
        log.step = first + count
        alive = [m for m in range(len(log.labels)) if m not in log.diverged_at]
        progress.advance(
            step=log.step,
            loss=float(np.mean(loss[:, alive])),
            accuracy=float(np.mean(accuracy[:, alive])),
            steps_per_second=clock.rate(),
        )

    def evaluate() -> float | None:
        """Evaluates what is due; the score is the mean accuracy on the first split."""
        splits = {**data.splits, **(data.final_splits if step == total else {})}
        score = None
        for name, (images, labels) in splits.items():
            metrics = jax.tree.map(np.asarray, programs.evaluate(state, images, labels))
            log.evaluated(step, name, metrics)
            alive = [m for m in range(len(log.labels)) if m not in log.diverged_at]
            accuracy = float(np.mean(metrics.accuracy[alive]))
            progress.evaluated(step=step, split=name, loss=float(np.mean(metrics.loss[alive])), accuracy=accuracy)
            score = accuracy if score is None else score
        if step == total:
            judge_clusters()
        return score

    def judge_clusters() -> None:
        sums: dict[str, tuple[int, Any]] = {}
        for part in data.clusters:
            metrics = jax.tree.map(np.asarray, programs.evaluate(state, part.images, part.labels))
            # Means over the whole part, in which the examples that fill it up count as nothing.
            own = jax.tree.map(lambda mean, part=part: mean * len(part.labels), metrics)
            size, before = sums.get(part.name, (0, None))
            added = own if before is None else jax.tree.map(np.add, before, own)
            sums[part.name] = (size + part.size, added)
        for name, (size, added) in sums.items():
            log.evaluated(step, "test", jax.tree.map(lambda total, size=size: total / size, added), cluster=name)

    def save(score: float | None) -> None:
        if checkpoints is None:
            return
        if settings.on_nonfinite == "stop":
            for member in np.flatnonzero(~np.asarray(_finite_members(state.params))):
                log.diverged_at[int(member)] = step
                text = f"the parameters of {log.names[int(member)]} are no longer finite at step {step}"
                raise _nonfinite(text, checkpoints)
        checkpoints.save(step, state, {**log.note(), **note(), "step": step}, score=score)

    if evaluate_first:
        evaluate()
    while step < total:
        upto = settings.next_stop(step, programs.steps_per_dispatch)
        batches = feed(step, upto - step)
        if clock.began is None:
            # Compiling is no part of the steps per second.
            programs.prepare_advance(state, members, batches, data.images)
            clock.resume()
        state, metrics = programs.advance(state, members, batches, data.images, step, upto - step)
        consume()
        waiting = (step, upto - step, metrics)
        step = upto
        ended = step == total
        evaluates = ended or (settings.eval_every and step % settings.eval_every == 0)
        saves = ended or (settings.checkpoint_every and step % settings.checkpoint_every == 0)
        probes = probe is not None and settings.probe_every and step % settings.probe_every == 0
        stopping = stop()
        if evaluates or saves or probes or stopping is not None:
            consume()
            clock.pause()
            if probe is not None and probes:
                log.measured(step, probe[0], probe[1](step, state))
            score = evaluate() if evaluates else None
            if saves or stopping is not None:
                save(score)
        if stopping is not None and not ended:
            if checkpoints is not None:
                checkpoints.wait()
            progress.finish(status="stopped")
            kept = "resume to go on from there" if checkpoints is not None else "no checkpoint was asked for"
            raise RunStopped(f"stopped at step {step} of {total}; {kept}", stopping, step)
    if checkpoints is not None:
        checkpoints.wait()
    return LoopResult(clock.seconds, clock.steps)


class _Clock:
    """Seconds of training, without what lies between pause and resume."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.steps = 0
        self.began: float | None = None

    def resume(self) -> None:
        self.began = time.perf_counter()

    def pause(self) -> None:
        if self.began is not None:
            self.seconds += time.perf_counter() - self.began
            self.began = None

    def rate(self) -> float:
        running = 0.0 if self.began is None else time.perf_counter() - self.began
        seconds = self.seconds + running
        return self.steps / seconds if seconds > 0 else 0.0


@jax.jit
def _finite_members(params: Any) -> jax.Array:
    """bool [M]: whether all parameters of a member are finite."""
    leaves = [jnp.all(jnp.isfinite(x), axis=tuple(range(1, x.ndim))) for x in jax.tree.leaves(params)]
    return jnp.all(jnp.stack(leaves), axis=0)


def _nonfinite(text: str, checkpoints: Checkpoints | None) -> NonFiniteLoss:
    kept = ""
    if checkpoints is not None:
        checkpoints.wait()
        steps = checkpoints.steps()
        kept = f"; the last good checkpoint is at step {steps[-1]}" if steps else "; there was no checkpoint yet"
    return NonFiniteLoss(f"{text}{kept}. A lower learning rate or optimizer.clip_norm may help")
