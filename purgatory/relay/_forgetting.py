"""Which keys are old: those whose last write has a position that the store had passed long ago.

A store keeps no time for each key. It keeps a few samples, `(time, position)`: everything up to this position had been written
before this time.

    forget what nobody has written for 60 s; at 100 s the store is at position 730, and has the samples
    (32, 210), (40, 295), (48, 400), ...    at 40 s it was at 295, so what has a position up to 295 is older than 60 s
    forget up to 295, keep (40, 295), (48, 400), ..., (100, 730)

So a key is forgotten an eighth of that time late at most, and never early.
"""

from collections.abc import Sequence
from typing import Final

SAMPLES: Final = 8
"""How many are taken in the time after which keys are forgotten."""

MAX_FORGOTTEN: Final = 300
"""How many keys are forgotten at a time."""

Samples = list[tuple[float, int]]


def horizon(samples: Sequence[Sequence[float]], now: float, position: int, seconds: float) -> tuple[Samples, int]:
    """The samples to keep, and the last position that is older than `seconds`; -1 if none is known.

    Args:
        samples: what was returned the last time, by any process.
        now: the store's time. If it was set back, nothing is forgotten for a while.
        position: of the store; everything up to it was written before `now`.
        seconds: the age.
    """
    known = sorted((float(time), int(at)) for time, at in samples if time <= now)
    old = [sample for sample in known if sample[0] <= now - seconds]
    kept = known[max(len(old) - 1, 0) :]
    if not kept or kept[-1][0] <= now - seconds / SAMPLES:
        kept.append((now, position))
    return kept, old[-1][1] if old else -1
