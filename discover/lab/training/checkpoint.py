"""Checkpoints through orbax: atomic, in the background, the last few and the best, verified when read.

A checkpoint is the state's arrays and a small JSON note. The note holds a fingerprint of the arrays, computed on the
device from their bits, so that a checkpoint whose bytes have changed on disk is recognised even where the storage
format does not notice.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import math
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from jax.sharding import NamedSharding, PartitionSpec
from orbax.checkpoint import checkpoint_managers as policies

from discover.lab.training.errors import RunError, is_disk_full, is_out_of_memory
from discover.lab.training.fingerprint import Lengths, fingerprint


class Checkpoints:
    """The checkpoints of one part of a run, in one directory.

    A state in slices (`discover.sharding.slices`) is read on another number of devices, or whole, by cutting or adding
    the zeros at the end of each slice.

    Args:
        directory: created when the first checkpoint is written.
        keep: how many of the newest are kept, besides the best one.
        lengths: what of each leaf the fingerprint is of, see :func:`discover.lab.training.fingerprint.fingerprint`.
    """

    def __init__(self, directory: Path, *, keep: int = 3, lengths: Callable[[Any], Lengths] | None = None):
        self.directory = Path(directory).absolute()
        self._lengths: Callable[[Any], Lengths] = lengths if lengths is not None else lambda _: None
        best = policies.BestN(
            get_metric_fn=lambda metrics: metrics["score"], n=1, keep_checkpoints_without_metrics=False
        )
        options = ocp.CheckpointManagerOptions(
            preservation_policy=policies.AnyPreservationPolicy([policies.LatestN(keep), best]),
            best_fn=lambda metrics: metrics["score"],  # without it the scores are not written
            enable_async_checkpointing=True,
            # A step is written twice only where the first one was passed over, and then it is deleted before.
            save_interval_steps=1,
        )
        # Until it is closed: the library also logs from its background threads.
        self._failed = False
        self._passed: set[int] = set()
        self._silence = contextlib.ExitStack()
        self._silence.enter_context(_quiet())
        with self._one_line_errors():
            self._manager = ocp.CheckpointManager(self.directory, options=options)

    def save(self, step: int, state: Any, note: dict[str, Any], *, score: float | None = None) -> None:
        """Starts to write a checkpoint, and returns once the state may be changed.

        Args:
            step: its name; steps only grow.
            state: any tree of arrays.
            note: a small JSON object that comes back with it.
            score: the higher the better; the best one is kept. None: never the best.
        """
        if step in self._passed:
            self.wait()  # what is still being written is not listed yet
            with self._one_line_errors(), _quiet():
                self._manager.delete(step)
                self._manager.reload()
            self._passed.discard(step)
        leaves = _named_leaves(state)
        shapes = [list(leaf.shape) for leaf in leaves.values()]
        note = {**note, "fingerprint": fingerprint(leaves, self._lengths(state)), "shapes": shapes}
        if any(_on_host(x) for x in leaves.values()):
            # Host memory is written from where it lies, and the next step is about to overwrite it.
            leaves = jax.tree.map(jnp.copy, leaves)
        arguments = ocp.args.Composite(state=ocp.args.StandardSave(leaves), note=ocp.args.JsonSave(note))
        metrics = None if score is None or not np.isfinite(score) else {"score": float(score)}
        with self._one_line_errors(), _quiet():
            self._manager.save(step, args=arguments, metrics=metrics, force=True)

    def wait(self) -> None:
        """Returns when everything is on disk; raises :class:`RunError` if the disk is full."""
        with self._one_line_errors(), _quiet():
            self._manager.wait_until_finished()
            self._manager.check_for_errors()

    def steps(self) -> list[int]:
        """The steps that have a complete checkpoint, oldest first, without those that were passed over."""
        return sorted(set(self._manager.all_steps()) - self._passed)

    def best_step(self) -> int | None:
        """The step with the highest score, or None where none has one."""
        with _quiet():
            metrics: list[tuple[Any, int]] = [(self._manager.metrics(step), step) for step in self.steps()]
        scored = [(found["score"], step) for found, step in metrics if found]
        return max(scored)[1] if scored else None

    def restore(self, step: int, like: Any) -> tuple[Any, dict[str, Any]]:
        """Reads one checkpoint.

        Args:
            step: one of :meth:`steps`.
            like: a tree of the same structure, of arrays or ``jax.ShapeDtypeStruct``; says where arrays go.

        Raises:
            DamagedCheckpoint: it cannot be read, does not fit, or its bits have changed.
            RunError: the memory does not suffice to read it, which says nothing about the checkpoint.
        """
        targets = _named_leaves(like)
        try:
            with _quiet():
                small: Any = self._manager.restore(step, args=ocp.args.Composite(note=ocp.args.JsonRestore()))
                note = dict(small["note"])
                stored = [tuple(shape) for shape in note.pop("shapes")]
                wanted = {name: to_read(shape, leaf) for (name, leaf), shape in zip(targets.items(), stored)}
                arguments = ocp.args.Composite(state=ocp.args.StandardRestore(wanted, strict=False))
                read: Any = self._manager.restore(step, args=arguments)["state"]
            leaves = {name: as_wanted(read[name], leaf) for name, leaf in targets.items()}
            expected = note.pop("fingerprint")
            same = fingerprint(leaves, self._lengths(like)) == expected
        except Exception as error:  # the storage layers raise many kinds, and none of them should end a run here
            self._failed = True
            reason = str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__
            if is_out_of_memory(error):
                raise RunError(
                    f"out of memory while reading checkpoint {step} ({reason}); nothing was deleted: "
                    "free some memory and resume"
                ) from error
            raise DamagedCheckpoint(f"checkpoint {step} cannot be read ({reason})") from error
        if not same:
            raise DamagedCheckpoint(f"checkpoint {step} is damaged (its contents have changed)")
        return jax.tree.unflatten(jax.tree.structure(like), list(leaves.values())), note

    def restore_newest(
        self, like: Any, *, message: Callable[[str], None], accept: Callable[[dict[str, Any]], str | None]
    ) -> tuple[int, Any, dict[str, Any]] | None:
        """Reads the newest checkpoint that is whole, passing over (and naming) others on the way.

        What is passed over stays on the disk until its step is written again, or newer ones take its place: the
        trouble may be with the disk or the network, and gone the next time.

        Args:
            like: see :meth:`restore`.
            message: told about each checkpoint that was passed over.
            accept: looks at a note and says what is wrong with it, or None.

        Returns:
            (step, state, note), or None where there is none, or none that its records still cover.
        """
        unreadable = ""
        for step in reversed(self.steps()):
            try:
                state, note = self.restore(step, like)
                wrong = accept(note)
                if wrong is None:
                    return step, state, note
                reason = f"checkpoint {step} does not match its records ({wrong})"
            except DamagedCheckpoint as error:
                reason = unreadable = str(error)
            self._passed.add(step)
            before = self.steps()
            if before or not unreadable:
                message(f"{reason}; going back to {f'step {before[-1]}' if before else 'the start'}")
        if unreadable:
            raise RunError(
                f"no checkpoint in {self.directory} can be used: {unreadable}; nothing was deleted: "
                "try again, or remove that folder to train from the start"
            )
        return None

    def close(self) -> None:
        """Waits for the writing to end and lets go of the threads; errors were raised by :meth:`wait`."""
        with self._silence:
            with contextlib.suppress(Exception):
                self._manager.close()
            if self._failed:
                # The other parts of a failed read or write still want to report to an event loop that is gone.
                time.sleep(0.1)
                gc.collect()

    @contextlib.contextmanager
    def _one_line_errors(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self._failed = True
            if is_disk_full(error):
                raise RunError(
                    f"no space left on the disk for a checkpoint in {self.directory.parent.name}/"
                    f"{self.directory.name}: free some space and resume"
                ) from error
            raise


class DamagedCheckpoint(Exception):
    """A checkpoint that cannot be used; the message is one line."""


def to_read(stored: tuple[int, ...], wanted: Any) -> jax.ShapeDtypeStruct:
    """What to ask the storage for, given the shape that it holds and the array that is wanted in the end.

    The same, unless one of the two is in slices (for another number of devices, or for none): then the slices are
    read as long as needed, or the whole array is read as it is.
    """
    shape, sharding = tuple(wanted.shape), getattr(wanted, "sharding", None)
    same = next((i for i, (a, b) in enumerate(zip(stored, shape)) if a != b), min(len(stored), len(shape)))
    if stored[same:] and all(size == 1 for size in stored[same + 1 :]):  # slices, to be read as long as needed
        shape = (*shape[:same], math.prod(shape[same:]), *stored[same + 1 :])
    elif shape[same:] and all(size == 1 for size in shape[same + 1 :]):  # whole, to be cut afterwards
        shape = stored
        if isinstance(sharding, NamedSharding):
            sharding = NamedSharding(sharding.mesh, PartitionSpec())
    return jax.ShapeDtypeStruct(shape, wanted.dtype, sharding=sharding)


def as_wanted(array: jax.Array, wanted: Any) -> jax.Array:
    """The array with the shape that is wanted: with zeros at the end where slices are longer, or reshaped."""
    if array.shape == tuple(wanted.shape):
        return array
    missing = math.prod(wanted.shape) - array.size
    if missing:
        same = next(i for i, (a, b) in enumerate(zip((*array.shape, 0), wanted.shape)) if a != b)
        tail = math.prod(wanted.shape[same:])

        def cut(x: jax.Array) -> jax.Array:
            rows = x.reshape(*x.shape[:same], -1)
            padding = ((0, 0),) * same + ((0, tail - rows.shape[-1]),)
            return jnp.pad(rows, padding).reshape(wanted.shape)

        return jax.jit(cut, out_shardings=wanted.sharding)(array)
    return jax.jit(lambda x: x.reshape(wanted.shape), out_shardings=wanted.sharding)(array)


def _named_leaves(tree: Any) -> dict[str, Any]:
    """Leaves by number and path: readable on disk, and independent of the classes that make up the state."""
    paths = jax.tree_util.tree_flatten_with_path(tree)[0]
    return {
        f"{number:04d}.{jax.tree_util.keystr(path, simple=True, separator='.')}": leaf
        for number, (path, leaf) in enumerate(paths)
    }


def _on_host(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and any(device.platform == "cpu" for device in leaf.devices())


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keeps the storage library's running commentary out of the terminal; its errors are raised, not logged."""

    def from_elsewhere(record: logging.LogRecord) -> bool:
        return "orbax" not in record.pathname

    def retrieved(record: logging.LogRecord) -> bool:
        return "never retrieved" not in record.getMessage()

    def unraisable(problem: Any) -> None:
        if "Event loop is closed" not in str(problem.exc_value):
            hook(problem)

    filters = [(logging.getLogger("absl"), from_elsewhere), (logging.getLogger("asyncio"), retrieved)]
    for logger, kept in filters:
        logger.addFilter(kept)
    hook, sys.unraisablehook = sys.unraisablehook, unraisable
    try:
        yield
    finally:
        if sys.unraisablehook is unraisable:
            sys.unraisablehook = hook
        for logger, kept in filters:
            logger.removeFilter(kept)
