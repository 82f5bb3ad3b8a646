"""The insides of the core that tests may see; tests use public names for everything else.

`check` asserts all invariants of an object, `deadlines` counts the entries of its wheel. `is_busy`
tells whether the loop has more work for a purgatory than timers. `small_bounds` makes every bound so
small that a few dozen operations meet it, and `key_checks` reports which key a check is for.
"""

import asyncio
from collections.abc import Callable, Hashable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from purgatory._core import (
    closing,
    dispatcher,
    loop,
    purgatory,
    thresholds,
)
from purgatory._core.loop import MAX_PER_ITERATION
from purgatory._core.watch_lists import KeyCheck, keys_of

__all__ = [
    "MAX_PER_ITERATION",
    "check",
    "deadlines",
    "is_busy",
    "is_empty",
    "key_checks",
    "registrations",
    "small_bounds",
]


def check(*things: Any) -> None:
    """Asserts all invariants of purgatories, timers and trackers."""
    for each in things:
        each._check()


def deadlines(thing: Any) -> int:
    """The number of entries in its wheel."""
    return int((thing._wheel if hasattr(thing, "_wheel") else thing._loop_wheel.wheel).size)


def registrations(operation: Any) -> tuple[Hashable, ...] | None:
    """The keys under which an operation is registered; None if no purgatory has accepted it."""
    if operation._op_home is None:
        return None
    return tuple(keys_of(operation._op_keys)) if not operation.is_completed else ()


def is_busy(it: Any, on: asyncio.AbstractEventLoop) -> bool:
    """Whether work for this purgatory waits for an iteration of the loop."""
    mind = dispatcher.dispatcher_of(on)
    rest = mind._continuation_scheduled or it._loop_wheel._continuation_scheduled
    return bool(mind.queue or rest or len(it._inbox))


def is_empty(it: Any) -> bool:
    """Whether nothing of any operation is left in this purgatory."""
    return not (it._wheel.size or it._checks or it._by_key or it._async_waits)


@contextmanager
def small_bounds(steps: int = 8, stage: float = 10.0) -> Iterator[None]:
    """`steps` for an iteration, far deadlines in stages of `stage` seconds."""
    bounds: list[tuple[Any, str, float]] = [
        *(
            (module, "MAX_PER_ITERATION", steps)
            for module in (dispatcher, closing, purgatory, loop, thresholds)
        ),
        (dispatcher, "SLICE", max(steps // 4, 1)),
        (loop, "MAX_TIMER_DELAY", stage),
    ]
    with ExitStack() as stack:
        for module, name, value in bounds:
            stack.enter_context(patch.object(module, name, value))
        yield


@contextmanager
def key_checks(note: Callable[[Hashable], Hashable]) -> Iterator[None]:
    """Calls `note` with the key before a part of its check runs, and with its answer afterwards."""
    run_check = KeyCheck.run

    def run(check: Any, budget: int) -> int:
        before = note(check.key)
        try:
            return run_check(check, budget)
        finally:
            note(before)

    with patch.object(KeyCheck, "run", run):
        yield
