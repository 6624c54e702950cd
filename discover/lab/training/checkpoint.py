"""Checkpoints through orbax: atomic, in the background, the last few and the best, verified when read.

A checkpoint is the state's arrays and a small JSON note. The note holds a fingerprint of the arrays, computed on the
device from their bits, so that a checkpoint whose bytes have changed on disk is recognised even where the storage
format does not notice. Nothing older is deleted before a checkpoint has been read back from the disk.
"""

from __future__ import annotations

import contextlib
import gc
import json
import logging
import math
import shutil
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

from discover.lab import records
from discover.lab.training.errors import RunError, is_disk_full, is_out_of_memory
from discover.lab.training.fingerprint import Lengths, fingerprint, fingerprint_of_file, is_on_host


class Checkpoints:
    """The checkpoints of one part of a run, in one directory.

    A state in slices (`discover.sharding.slices`) is read on another number of devices, or whole, by cutting or adding
    the zeros at the end of each slice.

    Args:
        directory: created when the first checkpoint is written.
        keep: how many of the newest are kept, besides the best one.
        lengths: what of each leaf the fingerprint is of, see :func:`discover.lab.training.fingerprint.fingerprint`.
        agree: what the first of several processes computes, for all of them.
        message: told about a checkpoint that could not be read back, or was passed over.
    """

    def __init__(
        self,
        directory: Path,
        *,
        keep: int = 3,
        lengths: Callable[[Any], Lengths] = lambda _: None,
        agree: Callable[[Callable[[], Any]], Any] = lambda compute: compute(),
        message: Callable[[str], None] = lambda _: None,
    ):
        self.directory = Path(directory).absolute()
        self._keep, self._lengths, self._agree, self._message = keep, lengths, agree, message
        self._failed = False
        self._passed: set[int] = set()
        self._written: tuple[int, list[int], Lengths] | None = None  # and not yet read back
        # Until it is closed: the library also logs from its background threads.
        self._silence = contextlib.ExitStack()
        self._silence.enter_context(_quiet())
        with self._one_line_errors():
            agree(lambda: _empty_what_cannot_be_parsed(self.directory))
            # By default it writes in the background and deletes none: we do, when the successor has been read back.
            self._manager = ocp.CheckpointManager(self.directory)

    def save(self, step: int, state: Any, note: dict[str, Any], *, score: float | None = None) -> None:
        """Starts to write a checkpoint, and returns once the state may be changed; steps only grow.

        The note is a small JSON object that comes back with it. The one with the highest score is kept.
        """
        self.wait()  # what is still being written is not listed yet
        self._make_room(step)
        leaves = _named_leaves(state)
        shapes = [list(leaf.shape) for leaf in leaves.values()]
        lengths = self._lengths(state)
        note = {**note, "fingerprint": fingerprint(leaves, lengths), "shapes": shapes}
        if score is not None and np.isfinite(score):
            note["score"] = float(score)
        if any(_on_host(x) for x in leaves.values()):
            # Host memory is written from where it lies, and the next step is about to overwrite it.
            leaves = jax.tree.map(jnp.copy, leaves)
        arguments = ocp.args.Composite(state=ocp.args.StandardSave(leaves), note=ocp.args.JsonSave(note))
        with self._one_line_errors():
            self._manager.save(step, args=arguments, force=True)
        self._written = (step, note["fingerprint"], lengths)

    def wait(self) -> None:
        """Returns when everything is on disk and was read back; raises :class:`RunError` if the disk is full."""
        with self._one_line_errors():
            self._manager.wait_until_finished()
            self._manager.check_for_errors()
        if self._written is not None:
            step, expected, lengths = self._written
            self._written = None
            wrong, superfluous = self._agree(lambda: self._look_back(step, expected, lengths))
            if wrong is not None:
                self._message(f"checkpoint {step} cannot be read back ({wrong}); those before it are kept")
                self._passed.add(step)
                return
            with self._one_line_errors():
                for old in superfluous:
                    self._manager.delete(old)

    def _look_back(self, step: int, expected: list[int], lengths: Lengths) -> tuple[str | None, list[int]]:
        """What is wrong with a checkpoint that was just written, and the older ones that it makes superfluous."""
        try:
            found = fingerprint_of_file(self.directory / str(step) / "state", lengths)
            if found != expected or self._note(step).get("fingerprint") != expected:
                return "it holds something else", []
        except Exception as error:  # see `restore`
            return _reason(error), []
        kept = {*self.steps()[-self._keep :], self.best_step()}
        return None, [old for old in self._manager.all_steps() if old < step and old not in kept]

    def _make_room(self, step: int) -> None:
        """Deletes what is in the place of a step that is about to be written: passed over, or no checkpoint at all."""
        path, listed = self.directory / str(step), step in self._manager.all_steps()
        self._agree(lambda: _remove_unfinished(path.with_name(f"{step}.orbax-checkpoint-tmp")))
        if self._agree(path.exists):
            with self._one_line_errors():
                self._manager.delete(step) if listed else self._agree(lambda: _remove(path))
                self._manager.reload()
        self._passed.discard(step)

    def _note(self, step: int) -> dict[str, Any]:
        """The note of a step, without its arrays; an error of any kind where it is damaged."""
        return dict(records.read_json(self.directory / str(step) / "note" / "metadata"))

    def steps(self) -> list[int]:
        """The steps that have a complete checkpoint, oldest first, without those that were passed over."""
        return sorted(set(self._manager.all_steps()) - self._passed)

    def best_step(self) -> int | None:
        """The step with the highest score, or None where none has one."""
        scored = [(score, step) for step in self.steps() if (score := self._score(step)) is not None]
        return max(scored)[1] if scored else None

    def _score(self, step: int) -> float | None:
        with contextlib.suppress(Exception):  # it has none, or is damaged: then it is not the best
            return float(self._note(step)["score"])
        return None

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
            for path in (self.directory / str(step)).rglob("*"):
                if not path.is_dir():
                    records.check_ordinary(path)
            note = self._note(step)
            stored = [tuple(shape) for shape in note.pop("shapes")]
            wanted = {name: to_read(shape, leaf) for (name, leaf), shape in zip(targets.items(), stored)}
            arguments = ocp.args.Composite(state=ocp.args.StandardRestore(wanted, strict=False))
            read: Any = self._manager.restore(step, args=arguments)["state"]
            leaves = {name: as_wanted(read[name], leaf) for name, leaf in targets.items()}
            expected = note.pop("fingerprint")
            same = fingerprint(leaves, self._lengths(like)) == expected
        except Exception as error:  # the storage layers raise many kinds, and none of them should end a run here
            self._failed = True
            if is_out_of_memory(error):
                told = f"out of memory while reading checkpoint {step} ({_reason(error)})"
                raise RunError(f"{told}; nothing was deleted: free some memory and resume") from error
            raise DamagedCheckpoint(f"checkpoint {step} cannot be read ({_reason(error)})") from error
        if not same:
            raise DamagedCheckpoint(f"checkpoint {step} is damaged (its contents have changed)")
        note.pop("score", None)
        return jax.tree.unflatten(jax.tree.structure(like), list(leaves.values())), note

    def restore_newest(
        self, like: Any, accept: Callable[[dict[str, Any]], str | None] = lambda note: None
    ) -> tuple[int, Any, dict[str, Any]] | None:
        """Reads the newest checkpoint that is whole, passing over (and naming) others on the way.

        What is passed over stays on the disk until its step is written again, or newer ones take its place: the
        trouble may be with the disk or the network, and gone the next time.

        Args:
            like: see :meth:`restore`.
            accept: looks at a note and says what is wrong with the records that belong to it, or None. Where they are
                wrong for all, the newest is taken all the same: better without its records than from the start.

        Returns:
            (step, state, note), or None where there is none.
        """
        unreadable = ""
        newest: int | None = None  # that is whole, but for its records
        for step in reversed(self.steps()):
            try:
                state, note = self.restore(step, like)
                wrong = accept(note)
                if wrong is None:
                    return step, state, note
                reason = f"checkpoint {step} does not match its records ({wrong})"
                newest = step if newest is None else newest
            except DamagedCheckpoint as error:
                reason = unreadable = str(error)
            self._passed.add(step)
            if before := self.steps():
                self._message(f"{reason}; going back to step {before[-1]}")
            elif newest is not None:
                self._passed.discard(newest)
                self._message(f"{reason}; going on from step {newest} without the lines that are lost")
                return newest, *self.restore(newest, like)
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


def _empty_what_cannot_be_parsed(directory: Path) -> None:
    """The library passes over a checkpoint's description that is no JSON, but not over one that is nested too deep."""
    for path in directory.glob("*/_CHECKPOINT_METADATA"):
        try:
            json.loads(path.read_bytes())
        except RecursionError:
            path.write_bytes(b"")
        except (ValueError, OSError):
            pass


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def _remove_unfinished(path: Path, seconds: float = 5.0) -> None:
    """Deletes what an attempt that failed has left. Its other writers may still be deleting files."""
    late = time.monotonic() + seconds
    while path.exists() and time.monotonic() < late:
        shutil.rmtree(path, ignore_errors=True)
        time.sleep(0.01)


def _reason(error: Exception) -> str:
    return str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__


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
    if sharding is not None and is_on_host(wanted):  # what the storage reads to there jax takes for a device's
        sharding = sharding.with_memory_kind("device")
    return jax.ShapeDtypeStruct(shape, wanted.dtype, sharding=sharding)


def as_wanted(array: jax.Array, wanted: Any) -> jax.Array:
    """The array with the shape that is wanted: with zeros at the end where slices are longer, or reshaped."""
    if array.shape == tuple(wanted.shape):
        return jax.device_put(array, wanted.sharding) if is_on_host(wanted) else array
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
        code = getattr(problem.object, "cr_code", None)  # of a coroutine that nobody waits for any more
        if "Event loop is closed" not in str(problem.exc_value) and "orbax" not in getattr(code, "co_filename", ""):
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
