"""Ctrl-C and SIGTERM as a wish to stop, honoured between two dispatches."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any


class StopRequest:
    """While it is entered, the first SIGINT or SIGTERM is only noted; the second one interrupts at once.

    One inside of another starts with what the other has noted, and hands on what it noted too late to act on, so that
    whoever does several things in a row hears of a wish that came at the end of one of them.

    Outside of the main thread, where Python allows no handlers, it notes nothing.

    Example:
        >>> with StopRequest() as stop:
        ...     signal.raise_signal(signal.SIGTERM)
        ...     print(stop.signal == signal.SIGTERM)
        True
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
        if outer is not None and outer.signal is None and error is None:
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
