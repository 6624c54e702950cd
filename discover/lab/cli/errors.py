"""How the command line ends: an exit code, and one line on stderr where something is wrong."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import signal
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

from discover.lab.text import printable, shortened

BAD_INPUT = 2
INTERRUPTED = 130


class CommandError(Exception):
    """Something the caller can put right; the message is one line."""

    exit_code = BAD_INPUT


class Terminated(BaseException):
    """SIGTERM, where nobody waits for it to stop in a better way."""

    exit_code = 128 + signal.SIGTERM


@contextlib.contextmanager
def naming(directory: Path) -> Iterator[None]:
    """Lets an error that nobody has thought of say in which folder: records may be damaged and yet be JSON."""
    try:
        yield
    except Exception as error:
        if not hasattr(error, "exit_code"):
            error.add_note(f"in {directory}")
        raise


@contextlib.contextmanager
def stoppable(directory: Path, how: str = "again", *, show_step: bool = False) -> Iterator[None]:
    """Says after Ctrl-C or SIGTERM, in one line, how to go on in ``directory``: with the same command, ``how``."""
    try:
        with naming(directory):
            yield
    except (KeyboardInterrupt, Terminated, Exception) as error:
        code = getattr(error, "exit_code", INTERRUPTED if isinstance(error, KeyboardInterrupt) else 0)
        if code <= 128:  # anything but a signal
            raise
        step = getattr(error, "step", 0) if show_step else 0
        stopped = CommandError(
            f"stopped{f' at step {step}' if step else ''}, and nothing is lost: run the same command {how} to continue "
            f"in {directory}"
        )
        stopped.exit_code = code
        raise stopped from None


def run_command(command: Any, arguments: Sequence[str] | None = None) -> int:
    """Runs a typer command and turns every error into one line and an exit code.

    Errors that carry an ``exit_code`` (configuration, training, usage) say what is wrong and what would be right.
    Anything else is a bug, or something that nobody has thought of: the line says so, and how to see the traceback,
    which ``DISCOVER_DEBUG=1`` shows for all of them.
    """
    try:
        result = command.main(
            args=None if arguments is None else list(arguments), prog_name="discover", standalone_mode=False
        )
        if result == INTERRUPTED:  # what typer makes of Ctrl-C
            return _fail("stopped", INTERRUPTED)
        return result if isinstance(result, int) else 0
    except KeyboardInterrupt:
        return _fail("stopped", INTERRUPTED)
    except Terminated as error:
        return _fail("stopped", error.exit_code)
    except BrokenPipeError:  # the reader of our output went away (`discover presets | head`)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return INTERRUPTED
    except Exception as error:
        if os.environ.get("DISCOVER_DEBUG"):
            raise
        code = getattr(error, "exit_code", None)
        if hasattr(error, "format_message"):  # a usage error of typer's, whichever parser it is built on
            context = getattr(error, "ctx", None)
            path = context.command_path if context is not None else "discover"
            # Typer's own text for a group without a command is its whole help.
            return _fail(f"{error.format_message().strip().rstrip('.')} (see {path} --help)", BAD_INPUT)  # pyright: ignore
        if type(error).__name__ == "Abort":
            return _fail("stopped", INTERRUPTED)
        if isinstance(error, OSError):
            return _fail(describe_os_error(error), BAD_INPUT)
        if isinstance(code, int):
            return _fail(getattr(error, "on_command_line", str(error)), code)
        return _fail(describe_unexpected(error), BAD_INPUT)


def unwind_on_signals() -> None:
    """Lets SIGTERM end the program as Ctrl-C does, so that it takes its lock files with it.

    Python runs a signal's handler between any two instructions, also inside a destructor or a callback of the garbage
    collector, where an exception is printed and forgotten. Such a signal is sent again a moment later.
    """

    def terminate(*_: object) -> NoReturn:
        raise Terminated

    before = sys.unraisablehook

    def send_again(unraisable: Any) -> None:
        swallowed = {KeyboardInterrupt: signal.SIGINT, Terminated: signal.SIGTERM}.get(unraisable.exc_type)
        if swallowed is None:
            before(unraisable)
            return
        # To this thread, so that it wakes from waiting, where the system can say so.
        to_thread = getattr(signal, "pthread_kill", lambda _, number: signal.raise_signal(number))
        later = threading.Timer(0.02, to_thread, [threading.get_ident(), swallowed])
        later.daemon = True
        later.start()

    signal.signal(signal.SIGTERM, terminate)
    sys.unraisablehook = send_again


def warn_in_lines() -> None:
    """Shows a warning as one line, without the place in the code, which is nothing to the caller."""

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        sys.stderr.write(f"discover: {printable(str(message))}\n")

    if not os.environ.get("DISCOVER_DEBUG"):
        warnings.showwarning = show


def quiet_late_writers() -> None:
    """Keeps one known aftermath of a failed checkpoint off the terminal.

    When a checkpoint cannot be written (a full disk), the storage library's other writers finish after their event
    loop is closed and each prints a traceback about it, or asyncio logs that nobody asked for their error. The error
    itself is reported by us, in one line.
    """
    logging.getLogger("asyncio").addFilter(lambda record: "never retrieved" not in record.getMessage())
    before = sys.unraisablehook

    def hook(unraisable: Any) -> None:
        error = unraisable.exc_value
        if isinstance(error, RuntimeError) and str(error) == "Event loop is closed":
            return
        # The other readers of a checkpoint of which one part was damaged: each would say so again.
        if "orbax" in getattr(getattr(unraisable.object, "cr_code", None), "co_filename", ""):
            return
        before(unraisable)

    sys.unraisablehook = hook


def describe_os_error(error: OSError) -> str:
    """One line for an error of the file system."""
    where = f": {error.filename}" if error.filename else _notes(error)  # what fails to be written has no name
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        what = "a file may not grow that large here" if error.errno == errno.EFBIG else "the disk is full"
        return f"{what}{where}; free some space and run the same command again"
    return f"{error.strerror or error}{where}"


def describe_unexpected(error: Exception) -> str:
    """One line for an error that nobody has thought of: what, in which of our files, and how to see more."""
    first = (str(error).strip().splitlines() or [""])[0][:300]
    what = f"{type(error).__name__}: {first}" if first else type(error).__name__
    if isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in first:
        what = f"out of memory ({what})"
    return f"{what}{_notes(error)} (DISCOVER_DEBUG=1 shows where)"


def _notes(error: Exception) -> str:
    return "".join(f" {note}" for note in getattr(error, "__notes__", ()))


def _fail(message: str, code: int) -> int:
    line = shortened(printable(" ".join(str(message).split())))
    sys.stderr.write(f"discover: {line}\n")
    return code
