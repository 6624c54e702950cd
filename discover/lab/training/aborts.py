"""The aborts of JAX's coordination client, turned into one line.

When the coordination service cannot be reached, or dies with the first process, that client ends its process from a
thread of its own: with a stack trace, and without asking Python. Only a handler of C's signal is still called.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator

from discover.lab.training.watch import end_process


@contextlib.contextmanager
def connecting(text: str, exit_code: int) -> Iterator[None]:
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
def connected(address: str) -> Iterator[None]:
    """While entered, the abort that follows the death of the first process ends with a line that names it.

    Args:
        address: HOST:PORT of the coordination service.
    """
    host, _, port = address.rpartition(":")

    def aborted() -> None:
        try:
            for _ in range(2):  # a process that is just being ended may still answer once
                socket.create_connection((host.strip("[]"), int(port)), timeout=2).close()
                time.sleep(0.5)
        except OSError:
            end_process("worker 0 is lost: the coordination service that it runs is gone")

    with _on_abort(aborted):
        yield


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
