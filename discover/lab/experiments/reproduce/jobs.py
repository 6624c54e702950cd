"""More processes for one reproduction: small networks leave a GPU idle between their kernels, which others can use."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

__all__ = ["more_processes"]


@contextlib.contextmanager
def more_processes(count: int, command: Sequence[str], logs: Path, say: Callable[[str], None]) -> Iterator[None]:
    """While entered, ``count`` more processes run ``discover COMMAND``; at the end they are waited for.

    They share the rows of the folder that the command names. What they print is in ``logs``.
    """
    # One process would otherwise take most of a GPU's memory for itself.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    logs.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as files:
        running = []
        for number in range(2, count + 2):
            log = files.enter_context((logs / f"process-{number}.txt").open("w"))
            line = [sys.executable, "-m", "discover", *command]
            running.append(subprocess.Popen(line, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL))
        try:
            yield
        except BaseException:
            for process in running:
                process.send_signal(signal.SIGINT)  # each ends its training as after Ctrl-C
            raise
        finally:
            codes = [process.wait() for process in running]
    for number, code in enumerate(codes, 2):
        if code:
            say(f"process {number} ended with exit code {code}: {logs / f'process-{number}.txt'}")
