"""`Failure`: an exception that is stored as a result."""

import traceback

from purgatory._core.failure import Failure


def failing():
    raise ZeroDivisionError("on purpose")


def caught(hook):
    try:
        hook()
    except ZeroDivisionError as error:
        return Failure.of_hook(error)
    raise AssertionError("it ended well")


def names(failure):
    return [frame.name for frame in traceback.extract_tb(failure.exception.__traceback__)]


def test_failure_traceback_begins_at_the_hook():
    failure = caught(failing)
    assert names(failure) == ["failing"] and failure.traceback is failure.exception.__traceback__
    assert failure.retrieved is False


def test_failure_keeps_traceback_however_often_it_is_raised():
    failure = caught(failing)
    for _ in range(3):
        try:
            raise failure.exception.with_traceback(failure.traceback)
        except ZeroDivisionError:
            pass
    assert [frame.name for frame in traceback.extract_tb(failure.traceback)] == ["failing"]


def test_exception_never_raised_has_no_traceback():
    failure = Failure.of_hook(ZeroDivisionError())
    assert failure.traceback is None and failure.exception.__traceback__ is None
