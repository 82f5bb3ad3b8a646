"""Ctrl-C ends a program at any time with one line and the exit status that shells use for it."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, NoReturn

STATUS: Final = 130
"""The exit status after Ctrl-C."""
LINE: Final = "interrupted"


def end_at_once(*_: object) -> NoReturn:
    """Ends the process immediately: a signal handler for times with nothing to clean up."""
    os.write(2, f"{LINE}\n".encode())
    os._exit(STATUS)


@contextmanager
def during_imports() -> Iterator[None]:
    """Ctrl-C ends the process at once in the block, where some modules turn an exception into
    another one."""
    if threading.current_thread() is not threading.main_thread():
        yield  # which gets no signals
        return
    before = signal.signal(signal.SIGINT, end_at_once)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def deferred() -> Iterator[None]:
    """Delays Ctrl-C until the end of the block, unless something in it installs another signal
    handler."""
    if threading.current_thread() is not threading.main_thread():
        yield  # which gets no signals
        return
    pressed = []

    def note(*_: object) -> None:
        pressed.append(True)

    before = signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGINT) is note:
            signal.signal(signal.SIGINT, before)
    if pressed:
        raise KeyboardInterrupt


def is_interruption(error: BaseException | None) -> bool:
    """Whether Ctrl-C caused an error, perhaps through others: it also reaches Java, which then
    cannot be stopped properly."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error is not None
