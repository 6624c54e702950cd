"""How the processes of a run find each other, and the end of that connection in one line.

When the coordination service of JAX cannot be reached, or dies with the first process, JAX's client ends its process
from a thread of its own: with a stack trace, and without asking Python. Only a handler of C's signal is still called.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator

import jax

from discover.lab.training.errors import RunError
from discover.lab.training.hosts.heartbeat import BEAT, TIMEOUT, end_process


def connect(
    coordinator: str | None, num_processes: int | None, process_id: int | None, *, timeout: float = TIMEOUT
) -> None:
    """Joins the processes of a run, with what is given or with what JAX finds out by itself (Slurm, TPU pods, MPI)."""
    given = {"--coordinator": coordinator, "--num-processes": num_processes, "--process-id": process_id}
    missing = [name for name, value in given.items() if value is None]
    if missing and len(missing) < 3 and coordinator is not None:
        raise RunError(f"--coordinator goes with --num-processes and --process-id; missing: {', '.join(missing)}")
    if coordinator is not None:
        host, _, port = coordinator.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 65536:
            raise RunError(f"--coordinator must be HOST:PORT, with a port from 1 to 65535, got {coordinator!r}")
    if num_processes is not None and num_processes < 1:
        raise RunError(f"--num-processes must be at least 1, got {num_processes}")
    if process_id is not None and num_processes is not None and not 0 <= process_id < num_processes:
        raise RunError(f"--process-id must be from 0 to {num_processes - 1}, got {process_id}")
    if timeout < 9 * BEAT:
        raise RunError(f"--worker-timeout must be at least {9 * BEAT:g} seconds, got {timeout:g}")
    where = f" at {coordinator}" if coordinator else ""
    unreachable = f"the other processes{where} could not be reached within {timeout:g} seconds"
    hint = "; start all of them, each with its own --process-id and otherwise the same options"
    try:
        with _one_line_if_aborted(unreachable + hint, RunError.exit_code):
            jax.distributed.initialize(
                coordinator,
                num_processes,
                process_id,
                initialization_timeout=max(1, int(timeout)),
                # JAX's own heartbeat ends the process without a word about who is missing: ours comes first.
                heartbeat_timeout_seconds=int(4 * timeout) + 60,
            )
    except (RuntimeError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        if isinstance(error, ValueError) and None in given.values():
            raise RunError(
                "JAX finds no Slurm, Open MPI, Kubernetes or TPU pod here that says who else there is: give "
                f"--coordinator HOST:PORT, --num-processes and --process-id ({reason})"
            ) from error
        raise RunError(f"{unreachable} ({reason})") from error


@contextlib.contextmanager
def _one_line_if_aborted(text: str, exit_code: int) -> Iterator[None]:
    """While entered, an abort ends the process with one line, and its stack trace is not shown."""
    sys.stderr.flush()
    shown = os.dup(2)
    with tempfile.TemporaryFile() as hidden:
        os.dup2(hidden.fileno(), 2)

        def aborted() -> None:
            os.write(shown, f"discover: {text}\n".encode())
            os._exit(exit_code)

        try:
            with _on_abort(aborted):
                yield
        finally:
            sys.stderr.flush()
            os.dup2(shown, 2)
            os.close(shown)
            hidden.seek(0)
            os.write(2, hidden.read())


@contextlib.contextmanager
def loss_of_first_process_in_one_line(address: str) -> Iterator[int]:
    """While entered, the abort that follows the death of the first process ends with a line that names it, and no more.

    Yields:
        Where lines can be written that must be seen, whatever happens.
    """
    host, _, port = address.rpartition(":")
    with _LastWords() as words:

        def aborted() -> None:
            try:
                for _ in range(2):  # a process that is just being ended may still answer once
                    socket.create_connection((host.strip("[]"), int(port)), timeout=2).close()
                    time.sleep(0.5)
            except OSError:
                end_process("worker 0 is lost: the coordination service that it runs is gone", words.shown)
            words.show()

        with _on_abort(aborted):
            yield words.shown


class _LastWords:
    """While entered, what is written to stderr is handed on, up to what JAX's clients say before they abort.

    They log about the coordination service only when it fails; a run that ends well all the same shows it at the end.
    """

    KNOWN = re.compile(rb"^[WEF]\d{4} [\d:.]+ +\d+ [^\n]*(coordination|distributed service)", re.MULTILINE)

    def __enter__(self) -> _LastWords:
        sys.stderr.flush()
        self.shown, self._held = os.dup(2), b""
        self._reader, writer = os.pipe()
        os.dup2(writer, 2)
        os.close(writer)
        self._thread = threading.Thread(target=self._hand_on, name="discover-stderr", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        sys.stderr.flush()
        os.dup2(self.shown, 2)  # the last writer's end: the thread reads what is left, and ends
        self._thread.join()
        self.show()
        os.close(self.shown)

    def show(self) -> None:
        """Shows what was held back."""
        held, self._held = self._held, b""
        os.write(self.shown, held)

    def _hand_on(self) -> None:
        while chunk := os.read(self._reader, 1 << 16):
            found = self.KNOWN.search(chunk)
            cut = 0 if self._held else found.start() if found else len(chunk)
            os.write(self.shown, chunk[:cut])
            self._held += chunk[cut:]
        os.close(self._reader)


@contextlib.contextmanager
def _on_abort(handle: Callable[[], None]) -> Iterator[None]:
    """While entered, an abort calls ``handle``; where that returns, the abort happens."""
    libc = ctypes.CDLL(None)
    libc.signal.restype, libc.signal.argtypes = ctypes.c_void_p, (ctypes.c_int, ctypes.c_void_p)

    @ctypes.CFUNCTYPE(None, ctypes.c_int)
    def handler(number: int) -> None:
        handle()
        libc.signal(number, None)
        os.abort()

    before = libc.signal(signal.SIGABRT, ctypes.cast(handler, ctypes.c_void_p))
    try:
        yield
    finally:
        libc.signal(signal.SIGABRT, before)
