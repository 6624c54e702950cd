"""Several processes that train one network: what they agree on, and what they do when one of them is gone.

Everything goes through the coordination service of ``jax.distributed``, which the first process runs: a small store
of keys and values that all of them see. There a process leaves a sign of life every second, how far it has come, and,
where it must stop alone, why. A thread watches the signs of the others. When one is missing for too long, it says whose
in one line and ends its process, whatever the main thread is waiting for: the last checkpoint is on disk, and all
processes can be started again with ``--resume``.
"""

from __future__ import annotations

import atexit
import contextlib
import json
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import jax

from discover.lab.training.aborts import connected, connecting
from discover.lab.training.errors import RunError
from discover.lab.training.signals import StopRequest
from discover.lab.training.watch import BEAT, CERTAIN, PREFIX, Watch

T = TypeVar("T")

TIMEOUT = 60.0
"""Seconds that a worker may be behind the others without progress; then it is lost.

They count from when the first of the others came further, not from when the worker itself last did: a compilation, a
long dispatch or an evaluation that all are busy with may take as long as it likes. A third of the timeout is enough
without a sign of life, which a process gives every second whatever it is busy with.
"""

_WEEK = 7 * 24 * 3600 * 1000  # milliseconds; whoever is lost before that is noticed by the watch


def connect(
    coordinator: str | None, num_processes: int | None, process_id: int | None, *, timeout: float = TIMEOUT
) -> Processes:
    """Joins the processes of a run, with what is given or with what JAX finds out by itself (Slurm, TPU pods, MPI).

    Args:
        coordinator: HOST:PORT of the first process.
        num_processes: how many there are.
        process_id: which one this is, from 0.
        timeout: see :data:`TIMEOUT`.

    Raises:
        RunError: the values cannot be, or the others could not be reached.
    """
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
        with connecting(unreachable + hint, RunError.exit_code):
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
    return Processes(timeout=timeout)


class Processes:
    """The processes of one run, as one of them sees them. With a single process it does nothing.

    Args:
        timeout: see :data:`TIMEOUT`.
    """

    def __init__(self, *, timeout: float = TIMEOUT):
        self.index, self.count, self.timeout = jax.process_index(), jax.process_count(), timeout
        self._client: Any = None
        self._agreed = 0
        self._watch: Watch | None = None
        if self.count > 1:
            from jax._src import distributed  # the store of keys and values has no public name

            self._client = distributed.global_state.client
            self._address = distributed.global_state.coordinator_address or ":0"

    @property
    def first(self) -> bool:
        """Whether this is the process that writes the records."""
        return self.index == 0

    def agree(self, compute: Callable[[], T]) -> T:
        """What the first process computes, for all of them; what it raises is raised by all.

        Args:
            compute: called on the first process only; returns a JSON value, or raises :class:`RunError`.
        """
        if self._client is None:
            return compute()
        key = f"{PREFIX}/agreed/{self._agreed}"
        self._agreed += 1
        if self.first:
            try:
                value = compute()
            except RunError as error:
                self._client.key_value_set(key, json.dumps({"error": str(error), "code": error.exit_code}))
                raise
            self._client.key_value_set(key, json.dumps({"value": value}))
            return value
        found = json.loads(self._client.blocking_key_value_get(key, _WEEK))
        if "error" in found:
            raised = RunError(found["error"])
            raised.exit_code = found["code"]
            raise raised
        return found["value"]

    def gather(self, value: T) -> list[T]:
        """What every process says, in their order.

        Args:
            value: this process's, a JSON value.
        """
        if self._client is None:
            return [value]
        key = f"{PREFIX}/gathered/{self._agreed}"
        self._agreed += 1
        self._client.key_value_set(f"{key}/{self.index}", json.dumps(value))
        found = (self._client.blocking_key_value_get(f"{key}/{who}", _WEEK) for who in range(self.count))
        return [json.loads(text) for text in found]

    def barrier(self) -> None:
        """Returns when all processes are here."""
        if self._client is not None:
            self._agreed += 1
            self._client.wait_at_barrier(f"{PREFIX}-{self._agreed}", _WEEK)

    def stop_request(self) -> StopRequest:
        """A wish to stop that all processes hear of, and act on after the same dispatch."""
        return StopRequest() if self._client is None else SharedStop(self._client, self.beat)

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
        self._watch = watch = Watch(self._client, self.index, self.count, self.timeout)
        watch.start()
        # Also around what follows an error: when the first process dies, a collective may fail before JAX aborts.
        with connected(self._address) if not self.first else contextlib.nullcontext():
            try:
                yield
            except BaseException as error:
                self._leave_after(error, watch)
                raise
            else:
                watch.leave("done")
            finally:
                self._watch = None

    def _leave_after(self, error: BaseException, watch: Watch) -> None:
        """Tells the others why this process stops, unless the reason is that one of them is gone."""
        if getattr(error, "exit_code", None) is None and not isinstance(error, KeyboardInterrupt):
            # It may be a collective that failed because somebody is gone: then the watch soon knows who.
            watch.suspicious = True
            watch.join(CERTAIN + 5 * BEAT)
        watch.leave(f"failed {' '.join(str(error).split())[:300] or type(error).__name__}")
        # Registered last, so it comes before JAX's own end, which would wait for all others for minutes.
        atexit.register(watch.part, getattr(error, "exit_code", 1))


class SharedStop(StopRequest):
    """The first signal that any process gets, honoured by all of them between the same two dispatches.

    ``signal`` is to be read once after every dispatch. Hosts run at most two dispatches apart, since each waits for
    the numbers of the one before the last; so a stop announced for three dispatches ahead reaches everyone in time.
    """

    AHEAD = 3

    def __init__(self, client: Any, beat: Callable[[], None]):
        self._client, self._beat, self._reads, self._own = client, beat, 0, None
        self._announced = False
        super().__init__()

    @property
    def signal(self) -> int | None:
        self._reads += 1
        self._beat()
        key = f"{PREFIX}/stop"
        if self._own is not None and not self._announced:
            self._announced = True
            with contextlib.suppress(Exception):  # somebody else was quicker: theirs counts
                self._client.key_value_set(key, json.dumps([self._reads + self.AHEAD, self._own]))
        try:
            at, number = json.loads(self._client.key_value_try_get(key))
        except Exception:
            return None
        return number if self._reads >= at else None

    @signal.setter
    def signal(self, value: int | None) -> None:  # pyright: ignore
        self._own = value

    def _note(self, number: int, frame: Any) -> None:
        del frame
        if self._own is not None:
            raise KeyboardInterrupt
        self._own = number
