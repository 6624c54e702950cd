"""The watch over other processes, on a store and a clock of the test's own: who is stopped, who is not, and when."""

import os
import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from discover.lab.training.hosts import heartbeat
from discover.lab.training.hosts.connection import _LastWords
from discover.lab.training.hosts.heartbeat import Heartbeat

TIMEOUT = 10.0
TICK = 0.25
LATE = 4.0  # seconds after the timeout within which docs/scaling.md promises the stop


class Store:
    """The part of the coordination service's client that a watch uses."""

    def __init__(self):
        self.values = {}

    def key_value_set(self, key, value, *, allow_overwrite=False):
        assert allow_overwrite or key not in self.values
        self.values[key] = value

    def key_value_dir_get(self, prefix):
        return [(key, value) for key, value in self.values.items() if key.startswith(prefix)]


class Watch(Heartbeat):
    """A watch that notes the stop instead of ending the process."""

    stopped = None

    def _give_up(self, who, reason):
        if self.stopped is None:
            self.stopped = (self._clock(), who, reason)


def simulate(progress, seconds, *, offsets=None, silent=()):
    """Lets the watches of some workers run, each once a second.

    Args:
        progress: for every worker how far it has come, as a function of the time.
        seconds: when the simulation ends.
        offsets: for every worker when in a second its turn comes, in ticks.
        silent: pairs (worker, time) after which the worker gives no sign of life.

    Returns:
        For every worker None or (when, whom, why) it stops.
    """
    now, store = [0.0], Store()
    watches = [Watch(store, i, len(progress), TIMEOUT, clock=lambda: now[0]) for i in range(len(progress))]
    offsets = offsets or range(len(progress))
    dead = dict(silent)
    for tick in range(int(seconds / TICK)):
        now[0] = tick * TICK
        for index, watch in enumerate(watches):
            watch.progress = progress[index](now[0])
            due = tick % int(1 / TICK) == offsets[index] % int(1 / TICK)
            if due and watch.stopped is None and now[0] < dead.get(index, float("inf")):
                watch.turn()
    return [watch.stopped for watch in watches]


def phases(length, late=0.0, until=float("inf")):
    """One step further after every ``length`` seconds, ``late`` seconds after the others, up to a time."""
    return lambda now: max(0, int((min(now, until) - late) // length))


def test_workers_in_the_same_phase_may_take_longer_than_the_timeout():
    assert simulate([phases(12), phases(12, late=1.5)], 100) == [None, None]


def test_a_first_phase_of_many_timeouts_stops_nobody():
    assert simulate([phases(65), phases(65, late=8)], 200) == [None, None]


@settings(max_examples=50)
@given(
    st.floats(0.5, 45),
    st.lists(st.floats(0, TIMEOUT - 0.5), min_size=2, max_size=4),
    st.lists(st.integers(0, 3), min_size=4, max_size=4),
)
def test_nobody_stops_for_a_worker_that_is_late_by_less_than_the_timeout(length, lates, offsets):
    stopped = simulate([phases(length, late) for late in lates], 120, offsets=offsets)
    assert stopped == [None] * len(lates)


@settings(max_examples=50)
@given(st.floats(0.5, 30), st.integers(2, 4), st.integers(0, 40), st.lists(st.integers(0, 3), min_size=4, max_size=4))
def test_a_hung_worker_is_named_after_the_timeout_and_soon(length, count, steps, offsets):
    hangs = length * (steps % 4 + 0.5)  # in the middle of a phase; the others finish it and wait
    waiting = length * (steps % 4 + 1) + 1e-6  # rounding must not take the last step back
    hung = steps % count
    progress = [phases(length, until=hangs if i == hung else waiting) for i in range(count)]
    stopped = simulate(progress, waiting + TIMEOUT + LATE + 5, offsets=offsets)
    for index in set(range(count)) - {hung}:
        when, who, reason = stopped[index] or pytest.fail(f"worker {index} waits for ever")
        assert who == hung
        assert "no progress" in reason
        assert waiting + TIMEOUT < when <= waiting + TIMEOUT + LATE


def test_a_worker_that_falls_back_by_many_steps_but_moves_is_not_lost():
    assert simulate([phases(1), phases(9)], 100) == [None, None]


def test_a_silent_worker_is_named_after_a_third_of_the_timeout_in_the_middle_of_a_long_phase():
    stopped = simulate([phases(100), phases(100)], 60, silent=[(1, 30.0)])
    when, who, reason = stopped[0] or pytest.fail("worker 0 waits for ever")
    assert who == 1
    assert "no sign of life" in reason
    assert 30 + TIMEOUT / 3 - 1 < when <= 30 + TIMEOUT / 3 + 2


def test_a_worker_lost_at_once_in_its_second_run_is_missed_all_the_same():
    now, store = [0.0], Store()
    for index in range(2):
        Watch(store, index, 2, TIMEOUT).leave("done")  # the first run
    lost = Watch(store, 1, 2, TIMEOUT)
    lost._over.set()  # it dies before its first turn
    lost.start()
    lost.join()
    watch = Watch(store, 0, 2, TIMEOUT, clock=lambda: now[0])
    for now[0] in range(8):
        watch.turn()
    assert watch.stopped is not None
    assert watch.stopped[1] == 1


def test_a_first_worker_that_neither_answers_nor_is_gone_is_named(monkeypatch):
    """As when it is stopped: the store keeps the call, and the watch with it, for ever."""
    monkeypatch.setattr(heartbeat, "BEAT", 0.02)
    frozen, named = threading.Event(), threading.Event()

    class Frozen(Store):
        def key_value_dir_get(self, prefix):
            frozen.wait(10)
            return []

    class Alarm(Watch):
        def _give_up(self, who, reason):
            super()._give_up(who, reason)
            named.set()

    watch = Alarm(Frozen(), 1, 2, timeout=0.3)
    began = time.monotonic()
    watch.start()
    assert named.wait(5)
    assert time.monotonic() - began < 2
    assert watch.stopped is not None
    assert watch.stopped[1] == 0
    assert "has not answered" in watch.stopped[2]
    began = time.monotonic()
    frozen.set()
    watch.leave("done")
    assert time.monotonic() - began < 2


def test_what_the_runtime_says_before_it_aborts_is_held_back_and_nothing_else(capfd):
    with _LastWords() as words:
        os.write(2, b"a warning\n")
        os.write(
            2, b"one more\nE1116 14:10:00.168149   20787 agent.cc:289] Polled an error from coordination service\n"
        )
        os.write(2, b"*** Check failure stack trace: ***\n")
        until = time.monotonic() + 5
        while b"stack trace" not in words._held and time.monotonic() < until:
            time.sleep(0.01)
        assert capfd.readouterr().err == "a warning\none more\n"
    assert "Polled an error" in capfd.readouterr().err  # it did not abort: then it is shown after all
    os.write(2, b"after\n")
    assert capfd.readouterr().err == "after\n"
