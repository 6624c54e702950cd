"""Ctrl-C and SIGTERM as a wish to stop, honoured between two dispatches."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any


class StopRequest:
    """While it is entered, the first SIGINT or SIGTERM is only noted; the second one interrupts at once.

    One inside of another starts with what the other has noted, and hands on what it noted too late to act on, so that
    whoever does several things in a row hears of a wish that came at the end of one of them. The outermost one sends it
    again when it ends without an error: what comes next (figures, a page) stops, too.

    Outside of the main thread, where Python allows no handlers, it notes nothing.

    Example:
        >>> try:
        ...     with StopRequest() as stop:
        ...         signal.raise_signal(signal.SIGINT)
        ...         print("not interrupted", stop.signal == signal.SIGINT)
        ... except KeyboardInterrupt:
        ...     print("afterwards")
        not interrupted True
        afterwards
    """

    SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self) -> None:
        self.signal: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is threading.main_thread():
            for number in self.SIGNALS:
                self._before[number] = signal.signal(number, self._note)
            outer = self._outer()
            if outer is not None:
                self.signal = outer.signal
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        outer = self._outer()
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}
        if self.signal is None or error is not None:
            return
        if outer is None:
            signal.raise_signal(self.signal)
        elif outer.signal is None:
            outer.signal = self.signal

    def _outer(self) -> StopRequest | None:
        """The one that this one was entered in."""
        owners = (getattr(handler, "__self__", None) for handler in self._before.values())
        return next((owner for owner in owners if isinstance(owner, StopRequest)), None)

    def _note(self, number: int, frame: FrameType | None) -> None:
        del frame
        if self.signal is not None:
            raise KeyboardInterrupt
        self.signal = number
