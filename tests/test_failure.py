"""What is kept of an exception: its traceback stays, the variables of what has ended go."""

import gc
import sys
import traceback
import weakref

from purgatory._failure import Failure


class Luggage:
    pass


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
    assert failure.seen is False


def test_an_exception_that_was_never_raised_has_no_traceback_and_is_let_go_all_the_same():
    failure = Failure.of_hook(ZeroDivisionError())
    failure.let_go()
    assert failure.traceback is None and failure.exception.__traceback__ is None


def test_what_is_let_go_keeps_its_lines_and_holds_the_variables_of_the_hook_no_longer():
    def hook():
        luggage = Luggage()
        references.append(weakref.ref(luggage))
        raise ZeroDivisionError

    references = []
    gc.disable()
    try:
        failure = caught(hook)
        assert references[0]() is not None
        failure.let_go()
        assert references[0]() is None and names(failure) == ["hook"]
    finally:
        gc.enable()


def called_from(module):
    """The failure of a hook that a function of `module` has called, and that function's frame, which has a variable."""
    code = "def caller(hook, luggage):\n    frames.append(sys._getframe())\n    return caught(hook)\n"
    namespace = {"__name__": module, "caught": caught, "sys": sys, "frames": []}
    exec(code, namespace)
    return namespace["caller"](failing, 1), namespace["frames"].pop()


def test_the_variables_of_callers_go_if_they_are_ours_and_stay_if_they_are_not():
    ours, theirs = called_from("purgatory._engine"), called_from("purgatory_of_theirs")
    for failure, frame in (ours, theirs):
        assert frame.f_locals["luggage"] == 1
        failure.let_go()
    assert ours[1].f_locals == {} and theirs[1].f_locals["luggage"] == 1


def test_generators_and_coroutines_may_go_on_and_keep_their_variables():
    def generating(luggage):
        while True:
            try:
                yield luggage
            except ZeroDivisionError as error:
                failures.append(Failure(error))

    failures = []
    luggage = Luggage()
    generator = generating(luggage)
    next(generator)
    assert generator.throw(ZeroDivisionError()) is luggage
    failures[0].let_go()
    assert next(generator) is luggage


def test_a_function_that_still_runs_keeps_its_variables():
    luggage = Luggage()
    try:
        failing()
    except ZeroDivisionError as error:
        Failure(error).let_go()  # this very function is in its traceback
    assert isinstance(luggage, Luggage)
