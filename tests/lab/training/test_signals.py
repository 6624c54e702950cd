"""Wishes to stop, one inside of another."""

import signal

from discover.lab.training.signals import StopRequest


def test_a_wish_that_came_too_late_for_the_inner_one_is_handed_on():
    with StopRequest() as outer:
        with StopRequest() as inner:
            signal.raise_signal(signal.SIGTERM)
            assert (inner.signal, outer.signal) == (signal.SIGTERM, None)
        assert outer.signal == signal.SIGTERM


def test_a_wish_that_came_before_the_inner_one_is_known_to_it():
    with StopRequest():
        signal.raise_signal(signal.SIGINT)
        with StopRequest() as inner:
            assert inner.signal == signal.SIGINT


def test_handlers_are_put_back_and_nothing_is_raised_without_an_outer_one():
    before = signal.getsignal(signal.SIGTERM)
    with StopRequest():
        signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is before
