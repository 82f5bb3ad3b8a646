"""In which thread a loop runs now, without asking asyncio each time.

Each call of a purgatory has to know whether it comes from its loop's thread, while its loop runs. asyncio tells by
`_get_running_loop()`, which on CPython 3.11 asks the operating system for the process at each call: 80 ns, twice in a cycle
of 1 us. A thread's own number costs a third of that. So once asyncio has told that a loop runs here, that is remembered until
this run of the loop has ended:

    first call in a run       get_ident() != home.thread_id    asyncio is asked, and the run gets a `Home`
    each other one            get_ident() == home.thread_id    that is all
    the run has ended         home.thread_id = 0               asyncio is asked again

How is the end of a run heard of? While a loop runs, the hooks of its thread for asynchronous generators are methods of the loop
(`sys.set_asyncgen_hooks`); at the end it sets them back. Then the thread lets go of the method, and a weak reference tells.
A loop that has no such hooks, or runs where nobody counts references, is a *stranger*: asyncio is asked each time, as always.

Whoever keeps the hooks of a run (`sys.get_asyncgen_hooks()`) beyond its end keeps the home as well: until they are let go of,
or asyncio has told of another run in this thread, a call from outside that run is taken for one from within. So is one from a
loop that runs within the run of another one, which asyncio forbids and `nest_asyncio` allows.
"""

import os
import sys
from asyncio import AbstractEventLoop
from threading import get_ident
from typing import Any, Final, final
from weakref import ref

COUNTS_REFERENCES: Final = sys.implementation.name == "cpython"
"""Whether what nobody has any more is gone at once."""


@final
class Home:
    """A run of a loop, or a loop whose runs are not known.

    Where each nanosecond counts, `get_ident() != home.thread_id and running_loop() is not home.stranger` is written out: then
    asyncio has to be asked for another home, or the call refused.
    """

    __slots__ = ("_run", "stranger", "thread_id")

    def __init__(self, thread_id: int, stranger: Any) -> None:
        self.thread_id = thread_id
        """The thread in which the loop runs; 0, which no thread has, when that is over or not known."""
        self.stranger = stranger
        """The loop, if its runs are not known; else what no loop is."""
        self._run: ref[Any] | None = None


NO_LOOP: Final = object()
"""In place of a stranger. Not `None`, which is where no loop runs."""

NO_HOME: Final = Home(0, NO_LOOP)
"""Of whom no loop has been found yet."""

_homes: Final[dict[int, Home]] = {}
"""The home of the loop that runs in each thread, as far as somebody has asked."""


def home_of(loop: AbstractEventLoop) -> Home:
    """The home of `loop`, which is running in this thread: the same one as long as this run lasts."""
    hook = sys.get_asyncgen_hooks().firstiter
    if not COUNTS_REFERENCES or getattr(hook, "__self__", None) is not loop:
        return Home(0, loop)
    thread_id = get_ident()
    home = _homes.get(thread_id)
    if home is None or home._run is None or home._run() is not hook:
        if home is not None:
            home.thread_id = 0  # of a run that this one interrupts, or whose hooks somebody has kept
        home = _homes[thread_id] = Home(thread_id, NO_LOOP)

        def run_has_ended(_: object, home: Home = home) -> None:
            home.thread_id = 0
            if _homes.get(thread_id) is home:
                del _homes[thread_id]

        home._run = ref(hook, run_has_ended)
    return home


def _forget_all() -> None:
    """In a child process no loop runs yet, though its only thread has the number of one that has run a loop."""
    for home in _homes.values():
        home.thread_id = 0
    _homes.clear()


if hasattr(os, "register_at_fork"):  # pragma: no branch
    os.register_at_fork(after_in_child=_forget_all)
