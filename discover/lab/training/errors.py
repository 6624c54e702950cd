"""Ends of a run that are not "finished". Each is one line and knows the exit code of its command."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""No space, a quota that is used up, a file that may not grow any larger: the same to whoever wants to write."""


class RunError(Exception):
    """A run that cannot start or go on; the message is one line and says what to do."""

    exit_code = 2


class NonFiniteLoss(RunError):
    """The training loss is infinite or not a number."""

    exit_code = 1


class RunStopped(RunError):
    """The run was asked to stop (Ctrl-C or SIGTERM) and wrote what it needs to resume."""

    def __init__(self, message: str, signal_number: int, step: int):
        super().__init__(message)
        self.exit_code = 128 + signal_number
        self.step = step


def is_disk_full(error: BaseException) -> bool:
    """Says whether an error, or one that caused it, means that there is no space left to write to.

    The checkpoint library reports it as text inside errors of its own, hence the look at the message.
    """
    return any(
        (isinstance(one, OSError) and one.errno in _FULL) or any(os.strerror(number) in str(one) for number in _FULL)
        for one in _causes(error)
    )


def is_out_of_memory(error: BaseException) -> bool:
    """Says whether an error, or one that caused it, means that the host or the device ran out of memory."""
    return any(
        isinstance(one, MemoryError) or "RESOURCE_EXHAUSTED" in str(one) or "out of memory" in str(one).lower()
        for one in _causes(error)
    )


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
