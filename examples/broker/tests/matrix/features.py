"""Common parts of the Python programs of this folder.

python by_aiokafka.py ADDRESS FEATURE

A program ends with 0 if its client behaves as expected. Otherwise it prints the error in its
words, or `NotOffered`.
"""

import logging
import sys
import time
from collections.abc import Callable, Mapping
from typing import Final

TIMEOUT: Final = 60.0
"""How long a client may wait for what has to come, in seconds."""
REFUSAL_TIMEOUT: Final = 8.0
"""How long a client may try what is refused, in seconds, where it does not give up by itself."""
START: Final = 1_700_000_000_000
"""The time of the first record where times matter, in milliseconds; the others follow at intervals
of a second."""
VALUES: Final = [f"{number} ".encode() * 20 for number in range(50)]

Feature = Callable[[str], None]


class NotOffered(Exception):
    """The client does not have this feature."""


def run(features: Mapping[str, Feature]) -> None:
    """The program: runs the feature that the command line names."""
    address, name = sys.argv[1:]
    logging.basicConfig(level=logging.ERROR, format="%(message)s")
    try:
        if name not in features:
            raise NotOffered(name)
        features[name](address)
    except Exception as error:
        name, text = type(error).__name__, str(error)
        print(text if text.startswith(name) else f"{name}: {text}")
        sys.exit(1)


def until(is_so: Callable[[], bool]) -> None:
    """Calls a condition, which lets its client work meanwhile, until it is true."""
    deadline = time.monotonic() + TIMEOUT
    while not is_so():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {TIMEOUT:.0f} s")


def expect(found: object, expected: object) -> None:
    """Raises if they are not equal."""
    if found != expected:
        raise ValueError(f"{found!r} instead of {expected!r}")
