"""How an exception is kept in place of a result."""

import traceback

from purgatory._failure import Failure


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


def test_the_failure_of_a_hook_begins_at_the_hook_and_not_where_it_was_caught():
    failure = caught(failing)
    assert names(failure) == ["failing"] and failure.traceback is failure.exception.__traceback__
    assert failure.retrieved is False


def test_a_failure_keeps_the_traceback_that_its_exception_had_whoever_raises_it_again():
    failure = caught(failing)
    for _ in range(3):
        try:
            raise failure.exception.with_traceback(failure.traceback)
        except ZeroDivisionError:
            pass
    assert [frame.name for frame in traceback.extract_tb(failure.traceback)] == ["failing"]


def test_an_exception_that_was_never_raised_has_no_traceback():
    failure = Failure.of_hook(ZeroDivisionError())
    assert failure.traceback is None and failure.exception.__traceback__ is None
