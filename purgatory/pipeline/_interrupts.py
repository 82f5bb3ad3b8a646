"""Ctrl-C ends a program with one line and the exit status that shells have for it, whenever it is pressed."""

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
    """Ends the process where it is: a signal handler for a time in which there is nothing to put in order."""
    os.write(2, f"{LINE}\n".encode())
    os._exit(STATUS)


@contextmanager
def deferred() -> Iterator[None]:
    """Lets Ctrl-C count only at the end of the block, or when something in it handles the signal in its own way."""
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
    """Whether an error came of Ctrl-C, perhaps over others: Java is interrupted, too, and then cannot be stopped any more."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error is not None
