"""Many images decoded by several processes, in order."""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import itertools
import os
import queue
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from discover.lab.data.images import decode_worker
from discover.lab.data.errors import DataError, check_at_least

File = tuple[str, bytes | str]  # the name, and the contents or why there are none
Decoded = tuple[str, NDArray[np.uint8] | str]  # the name, and the pixels or why there are none

_CHUNK = 128
_CHUNK_BYTES = 8 << 20


def default_workers() -> int:
    """As many as there are cores to run on, at most 32."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, 32)


def decode_many(
    files: Iterable[File], *, size: int | None = None, channels: int = 3, workers: int | None = None
) -> Iterator[Decoded]:
    """Decode image files, several at a time.

    Args:
        files: (name, contents), read only as fast as they are decoded; or (name, why it cannot be read), passed on.
        size: the side to resize to, after a central square cut; None to keep each image's own size.
        channels: 3 for color, 1 for gray.
        workers: how many processes; 1 decodes in this one. As many as there are cores if absent.

    Yields:
        (name, uint8 [H, W, C]), or (name, what is wrong with it), in the order of `files`.
    """
    workers = default_workers() if workers is None else check_at_least("workers", workers, 1)
    if channels not in (1, 3):
        raise DataError(f"channels must be 1 or 3, got {channels}")
    if size is not None:
        check_at_least("image_size", size, 1)
    # Processes are worth their start only for more than a handful.
    files = iter(files)
    first = list(itertools.islice(files, 2 * _CHUNK))
    if workers == 1 or len(first) < 2 * _CHUNK:
        for name, contents in itertools.chain(first, files):
            yield name, _decode_here(contents, size, channels)
        return
    yield from _decode_apart(itertools.chain(first, files), size, channels, workers)


def _decode_here(contents: bytes | str, size: int | None, channels: int) -> NDArray[np.uint8] | str:
    if isinstance(contents, str):
        return contents
    try:
        return decode_worker.decode(contents, size, channels)
    except decode_worker.Unreadable as error:
        return str(error)


def _decode_apart(files: Iterator[File], size: int | None, channels: int, workers: int) -> Iterator[Decoded]:
    # -P: the folder of the worker's file, whose names are ours, must not come first on its import path.
    command = [sys.executable, "-P", str(Path(decode_worker.__file__))]
    processes = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(workers)]
    idle: queue.SimpleQueue[subprocess.Popen] = queue.SimpleQueue()
    for process in processes:
        idle.put(process)

    def work(chunk: list[File]) -> list[Decoded]:
        process = idle.get()
        try:
            return _ask(process, chunk, size, channels)
        finally:
            idle.put(process)

    try:
        with concurrent.futures.ThreadPoolExecutor(workers) as pool:
            pending: collections.deque[concurrent.futures.Future[list[Decoded]]] = collections.deque()
            try:
                for chunk in _chunks(files):
                    pending.append(pool.submit(work, chunk))
                    if len(pending) > 2 * workers:
                        yield from pending.popleft().result()
                while pending:
                    yield from pending.popleft().result()
            finally:
                for future in pending:
                    future.cancel()
    finally:
        for process in processes:
            assert process.stdin is not None
            assert process.stdout is not None
            for pipe in (process.stdin, process.stdout):
                with contextlib.suppress(OSError):  # the other end is gone; there is nothing left to say to it
                    pipe.close()
            process.wait()


def _ask(process: subprocess.Popen, chunk: list[File], size: int | None, channels: int) -> list[Decoded]:
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        contents = [b"" if isinstance(data, str) else data for _, data in chunk]
        decode_worker.send(process.stdin, {"size": size, "channels": channels}, *contents)
        answer = decode_worker.receive(process.stdout)
    except OSError:
        answer = None
    if answer is None:
        raise DataError(f"a decoding process ended unexpectedly between {chunk[0][0]} and {chunk[-1][0]}")
    head, pixels = answer
    results: list[Decoded] = []
    for (name, data), shape, raw in zip(chunk, head["shapes"], pixels):
        if isinstance(data, str) or isinstance(shape, str):
            results.append((name, data if isinstance(data, str) else shape))
        else:
            results.append((name, np.frombuffer(raw, dtype=np.uint8).reshape(shape)))
    return results


def _chunks(files: Iterator[File]) -> Iterator[list[File]]:
    chunk: list[File] = []
    held = 0
    for name, contents in files:
        chunk.append((name, contents))
        held += len(contents)
        if len(chunk) == _CHUNK or held > _CHUNK_BYTES:
            yield chunk
            chunk, held = [], 0
    if chunk:
        yield chunk
