"""Several processes that train one network: what they agree on, and what they do when one of them is gone.

Everything goes through the coordination service of ``jax.distributed``, which the first process runs: a small store
of keys and values that all of them see. There a process leaves a sign of life every second, how far it has come, and,
where it must stop alone, why. `heartbeat` watches the signs of the others.

Not ``jax.experimental.multihost_utils``: its collectives carry arrays of known shapes, not words or errors, and would
have to be compiled first.
"""

from __future__ import annotations

import atexit
import contextlib
import json
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import jax

from discover.lab.training.errors import RunError
from discover.lab.training.hosts.connection import loss_of_first_process_in_one_line
from discover.lab.training.hosts.heartbeat import BEAT, CERTAIN, PREFIX, TIMEOUT, Heartbeat
from discover.lab.training.signals import StopRequest

T = TypeVar("T")

_AHEAD = 3  # dispatches between the announcement of a stop and the stop
_WEEK = 7 * 24 * 3600 * 1000  # milliseconds; whoever is lost before that is noticed by the watch


class Processes:
    """The processes of one run, as one of them sees them. With a single process it does nothing."""

    def __init__(self, *, timeout: float = TIMEOUT):
        self.index, self.count, self.timeout = jax.process_index(), jax.process_count(), timeout
        self._client: Any = None
        self._gathered = 0
        self._watch: Heartbeat | None = None
        if self.count > 1:
            from jax._src import distributed  # the store of keys and values has no public name

            self._client = distributed.global_state.client
            self._address = distributed.global_state.coordinator_address or ":0"

    @property
    def first(self) -> bool:
        """Whether this is the process that writes the records."""
        return self.index == 0

    def gather(self, value: T) -> list[T]:
        """What every process says, in their order; returns when all have said it."""
        if self._client is None:
            return [value]
        key = f"{PREFIX}/gathered/{self._gathered}"
        self._gathered += 1
        self._client.key_value_set(f"{key}/{self.index}", json.dumps(value))
        found = (self._client.blocking_key_value_get(f"{key}/{who}", _WEEK) for who in range(self.count))
        return [json.loads(text) for text in found]

    def agree(self, compute: Callable[[], T]) -> T:
        """What the first process computes, for all of them; what it raises is raised by all."""
        if self._client is None:
            return compute()
        said: dict[str, Any] = {}
        if self.first:
            try:
                said = {"value": compute()}
            except RunError as error:
                said = {"error": str(error), "code": error.exit_code}
        said = self.gather(said)[0]
        if "error" in said:
            raised = RunError(said["error"])
            raised.exit_code = said["code"]
            raise raised
        return said["value"]

    def wait_for_all(self) -> None:
        """Returns when all processes are here."""
        self.gather(None)

    def stop_together(self, own: StopRequest) -> Callable[[], int | None]:
        """Asks for the first signal that any process got, so that all act on it after the same dispatch.

        Returns:
            What is to be called once after every dispatch. Hosts run at most two dispatches apart, since each waits for
            the numbers of the one before the last; so a stop announced for three dispatches ahead reaches everyone in
            time.
        """
        if self._client is None:
            return lambda: own.signal
        client, key, calls, announced = self._client, f"{PREFIX}/stop", 0, False

        def signal() -> int | None:
            nonlocal calls, announced
            calls += 1
            self.beat()
            if own.signal is not None and not announced:
                announced = True
                with contextlib.suppress(Exception):  # somebody else was quicker: theirs counts
                    client.key_value_set(key, json.dumps([calls + _AHEAD, own.signal]))
            try:
                at, number = json.loads(client.key_value_try_get(key))
            except Exception:
                return None
            return number if calls >= at else None

        return signal

    def beat(self) -> None:
        """Notes that this process has come one step further, at a place that all processes pass equally often."""
        if self._watch is not None:
            self._watch.progress += 1

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """While entered, this process gives signs of life and stops when another one's are missing."""
        if self._client is None:
            yield
            return
        # Also around what follows an error: when the first process dies, a collective may fail before JAX aborts.
        with contextlib.nullcontext(2) if self.first else loss_of_first_process_in_one_line(self._address) as stderr:
            self._watch = watch = Heartbeat(self._client, self.index, self.count, self.timeout, stderr=stderr)
            watch.start()
            try:
                yield
            except BaseException as error:
                self._leave_after(error, watch)
                raise
            else:
                watch.leave("done")
            finally:
                self._watch = None

    def _leave_after(self, error: BaseException, watch: Heartbeat) -> None:
        """Tells the others why this process stops, unless the reason is that one of them is gone."""
        if getattr(error, "exit_code", None) is None and not isinstance(error, KeyboardInterrupt):
            # It may be a collective that failed because somebody is gone: then the watch soon knows who.
            watch.suspicious = True
            watch.join(CERTAIN + 5 * BEAT)
        watch.leave(f"failed {' '.join(str(error).split())[:300] or type(error).__name__}")
        # Registered last, so it comes before JAX's own end, which would wait for all others for minutes.
        atexit.register(watch.part, getattr(error, "exit_code", 1))
