"""The watch that every process of a run keeps over the others, through signs of life that all of them see.

When the signs of one are missing for too long, the others say whose in one line and end, whatever their main threads
are waiting for: the last checkpoint is on disk, and all processes can be started again with ``--resume``.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

LOST_WORKER = 75
"""Exit code of a process that stopped because another one was lost (EX_TEMPFAIL: start all again)."""

TIMEOUT = 60.0
"""Seconds that a worker may be behind the others without progress; then it is lost.

They count from when the first of the others came further, not from when the worker itself last did: a compilation, a
long dispatch or an evaluation that all are busy with may take as long as it likes. A third of the timeout is enough
without a sign of life, which a process gives every second whatever it is busy with.
"""

BEAT = 1.0
"""Seconds between signs of life."""

PREFIX = "discover"
"""What the names of our keys in the store begin with."""

CERTAIN = 5.0
"""Seconds without a sign of life that are enough when a collective has failed already."""


class Heartbeat(threading.Thread):
    """Gives signs of life, and looks for those of the others."""

    def __init__(
        self,
        client: Any,
        index: int,
        count: int,
        timeout: float,
        clock: Callable[[], float] = time.monotonic,
        stderr: int = 2,
    ):
        super().__init__(name="discover-heartbeat", daemon=True)
        self._stderr = stderr  # where the line goes that says who is lost
        self.progress = 0
        self.suspicious = False
        self._client, self._index, self._count, self._timeout = client, index, count, timeout
        self._beats = 0
        self._over = threading.Event()
        self._clock = clock
        self._reached = clock()  # when the store last answered
        self._signs: dict[int, tuple[str, float]] = {}  # who -> (last sign, when it changed)
        self._failed: dict[int, float] = {}  # who -> when it was seen to have failed
        self._moved: dict[int, int] = {}  # who -> progress
        self._behind: dict[int, tuple[int, float]] = {}  # who -> (progress, since when others are further)

    def start(self) -> None:
        threading.Thread(target=self._guard, name="discover-heartbeat-guard", daemon=True).start()
        # At once: whoever is lost within the first second must not be remembered by the last words of an earlier run.
        with contextlib.suppress(Exception):
            self._say("alive 0 0")
        super().start()

    def run(self) -> None:
        while not self._over.wait(BEAT):
            self.turn()

    def turn(self) -> None:
        """Gives one sign of life and looks once at those of the others."""
        self._beats += 1
        try:
            self._say(f"alive {self._beats} {self.progress}")
            found = dict(self._client.key_value_dir_get(f"{PREFIX}/signs"))
            self._reached = self._clock()
        except Exception as error:
            if self._clock() - self._reached > self._patience():
                self._give_up(0, f"its coordination service does not answer ({str(error).splitlines()[0][:100]})")
            return
        for who in range(self._count):
            if who != self._index:
                self._look(who, found.get(f"{PREFIX}/signs/{who}", ""))

    def _guard(self) -> None:
        """Notices when the store never answers: then this watch itself waits, and cannot say so."""
        while not self._over.wait(BEAT):
            if self._index and self._clock() - self._reached > self._patience() + 2 * BEAT:
                silent = self._clock() - self._reached
                self._give_up(0, f"its coordination service has not answered for {silent:.0f} seconds")

    def leave(self, last_words: str) -> None:
        """Ends the watch; the others hear ``last_words``."""
        self._over.set()
        _within(2 * BEAT, lambda: self._say(last_words))

    def part(self, exit_code: int) -> None:
        """Ends this process, after :meth:`leave`, unless all others are leaving by themselves too.

        The first process stays until the others have read why it leaves.
        """
        seconds = (6 if self._index == 0 else 3) * BEAT
        until, all_leave = self._clock() + seconds, threading.Event()

        def look() -> None:
            while self._clock() < until and not all_leave.is_set():
                signs = dict(self._client.key_value_dir_get(f"{PREFIX}/signs"))
                kinds = {signs.get(f"{PREFIX}/signs/{who}", "").partition(" ")[0] for who in range(self._count)}
                if kinds <= {"failed", "done"}:
                    all_leave.set()
                time.sleep(BEAT / 5)

        _within(seconds, look)
        if all_leave.is_set():
            return
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(exit_code)

    def _say(self, sign: str) -> None:
        self._client.key_value_set(f"{PREFIX}/signs/{self._index}", sign, allow_overwrite=True)

    def _patience(self) -> float:
        return min(CERTAIN, self._timeout / 3) if self.suspicious else self._timeout / 3

    def _look(self, who: int, sign: str) -> None:
        now = self._clock()
        kind, _, rest = sign.partition(" ")
        if kind == "failed":
            # All may have failed of the same: then each says so itself, and this watch is over in a moment.
            if now - self._failed.setdefault(who, now) > 3 * BEAT:
                self._give_up(who, f"it stopped: {rest}")
            return
        if kind == "lost":
            lost, _, reason = rest.partition(" ")
            if int(lost) != self._index:
                self._give_up(int(lost), reason)
        if kind == "done":
            self._signs.pop(who, None)
            self._moved.pop(who, None)
            self._behind.pop(who, None)
            return
        before, since = self._signs.get(who, (None, now))
        if sign != before:
            self._signs[who] = (sign, now)
        elif now - since > self._patience():
            self._give_up(who, f"no sign of life for {now - since:.0f} seconds")
        if kind == "alive":
            progress = self._moved[who] = int(rest.split()[1])
            if progress >= max(self.progress, *self._moved.values()):
                self._behind.pop(who, None)
                return
            # Counted anew at every step that it takes, and only from when somebody is further than it.
            at, since = self._behind.get(who, (None, now))
            if at != progress:
                self._behind[who] = (progress, now)
            elif now - since > self._timeout + BEAT:  # its sign may be that old
                self._give_up(who, f"it has made no progress for {now - since:.0f} seconds while others wait for it")

    def _give_up(self, who: int, reason: str) -> None:
        """Says who is lost, lets the others hear of it, and ends this process."""
        text = f"worker {who} of {self._count} is lost: {reason}; worker {self._index} stops"
        _within(2 * BEAT, lambda: self._say(f"lost {who} {reason}"))
        if self._index == 0:
            time.sleep(3 * BEAT)  # the store ends with this process: the others must read it first
        end_process(text, self._stderr)


_ENDING = threading.Lock()  # taken by whichever thread is first, and never given back


def end_process(text: str, stderr: int = 2) -> None:
    """Ends this process with one line, from whatever thread."""
    with _ENDING:
        sys.stderr.flush()
        os.write(stderr, f"discover: {text}. Start all workers again with --resume\n".encode())
        os._exit(LOST_WORKER)


def _within(seconds: float, call: Callable[[], None]) -> None:
    """Makes a call that may fail, or wait for ever where the store neither answers nor is gone."""

    def attempt() -> None:
        with contextlib.suppress(Exception):
            call()

    thread = threading.Thread(target=attempt, daemon=True)
    thread.start()
    thread.join(seconds)
