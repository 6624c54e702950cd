"""Wishes to stop, one inside of another, and those that come too late for all of them."""

import signal
from collections.abc import Iterator

import pytest

from discover.lab.training.signals import StopRequest


@pytest.fixture
def sent_again() -> Iterator[list[int]]:
    """The signals that reach whoever handled them before any wish to stop was waited for."""
    found: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: found.append(number))
    yield found
    signal.signal(signal.SIGTERM, before)


def test_a_wish_that_came_too_late_for_the_inner_one_is_handed_on(sent_again):
    with StopRequest() as outer:
        with StopRequest() as inner:
            signal.raise_signal(signal.SIGTERM)
            assert (inner.signal, outer.signal) == (signal.SIGTERM, None)
        assert outer.signal == signal.SIGTERM
        assert not sent_again
    assert sent_again == [signal.SIGTERM]


def test_a_wish_that_came_before_the_inner_one_is_known_to_it(sent_again):
    with StopRequest():
        signal.raise_signal(signal.SIGTERM)
        with StopRequest() as inner:
            assert inner.signal == signal.SIGTERM
    assert sent_again == [signal.SIGTERM]


def test_handlers_are_put_back_and_without_a_wish_nothing_is_sent(sent_again):
    before = signal.getsignal(signal.SIGTERM)
    with StopRequest():
        assert signal.getsignal(signal.SIGTERM) is not before
    assert signal.getsignal(signal.SIGTERM) is before
    assert not sent_again


def answer(number):
    with StopRequest():
        signal.raise_signal(number)
        raise ZeroDivisionError


def test_a_wish_that_was_answered_with_an_error_is_not_sent_again(sent_again):
    with pytest.raises(ZeroDivisionError):
        answer(signal.SIGTERM)
    assert not sent_again
