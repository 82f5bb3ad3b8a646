"""The errors of this library.

    PurgatoryError
    ├── OperationTimeout    (also a TimeoutError)   the deadline came first
    ├── OperationCancelled                          the operation was cancelled, so it has no result
    ├── OperationReused     (also a RuntimeError)   an operation can be used once
    ├── PurgatoryFull                               max_pending operations wait already
    ├── PurgatoryClosed     (also a RuntimeError)   aclose() was called
    ├── RelayUnavailable    (also a ConnectionError)  the store cannot be reached
    └── WrongLoop           (also a RuntimeError)   used from another event loop or thread

A message says what could not be done, the value, and the state that forbids it. Arguments that are
wrong in themselves (NaN, no keys, a negative size) are a `ValueError` or a `TypeError`, as in the
standard library; a result that is requested too early is `asyncio.InvalidStateError`, as with
`asyncio.Future`.
"""


class PurgatoryError(Exception):
    """The base class of all errors of this library."""


class OperationTimeout(PurgatoryError, TimeoutError):
    """The deadline came first. It is a `TimeoutError`, so code written for asyncio's timeouts
    catches it."""


class OperationCancelled(PurgatoryError):
    """Raised in tasks that await an operation that was cancelled.

    It is not an `asyncio.CancelledError`: the operation was cancelled, the task that awaits it was
    not.
    """


class OperationReused(PurgatoryError, RuntimeError):
    """An operation was given to a purgatory a second time, or after it had ended."""


class PurgatoryFull(PurgatoryError):
    """`max_pending` operations are already pending."""


class PurgatoryClosed(PurgatoryError, RuntimeError):
    """The purgatory accepts no operations any more."""


class RelayUnavailable(PurgatoryError, ConnectionError):
    """The store of a `purgatory.relay` could not be reached, or gave no answer in time. A write may
    have been made."""


class WrongLoop(PurgatoryError, RuntimeError):
    """An object that is bound to one event loop was used from another loop, from another thread, or
    outside any loop."""


def how_to_install(extra: str) -> str:
    """How to get what an extra brings, for the text of an `ImportError`: from a clone, until there
    is a release on PyPI."""
    return (
        f"pip install '.[{extra}]' in a clone of the repository (there is no release on PyPI yet)"
    )
