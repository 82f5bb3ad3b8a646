"""Finds old keys: the store passed the position of their last write long ago.

A store keeps no time for each key, only a few samples, `(time, position)`: all writes up to this
position were made before this time.

    forget keys unwritten for 60 s; at 100 s the store is at position 730, and has the samples
    (32, 210), (40, 295), (48, 400), ...    at 40 s it was at 295, so positions up to 295 are older
                                            than 60 s
    forget up to 295, keep (40, 295), (48, 400), ..., (100, 730)

So a key is forgotten at most an eighth of the age late, and never early.
"""

from collections.abc import Sequence
from typing import Final

SAMPLES: Final = 8
"""Number of samples taken within the age."""

MAX_FORGOTTEN: Final = 300
"""Limit of keys forgotten at a time."""

Samples = list[tuple[float, int]]


def horizon(
    samples: Sequence[Sequence[float]], now: float, position: int, seconds: float
) -> tuple[Samples, int]:
    """The samples to keep, and the last position that is older than `seconds`; -1 if none is known.

    Args:
        samples: the samples that the last call in any process returned.
        now: the store's time, in seconds. If it was set back, no key is forgotten for a while.
        position: the store's position; all writes up to it were made before `now`.
        seconds: the age at which keys are forgotten.
    """
    known = sorted((float(time), int(at)) for time, at in samples if time <= now)
    old = [sample for sample in known if sample[0] <= now - seconds]
    kept = known[max(len(old) - 1, 0) :]
    if not kept or kept[-1][0] <= now - seconds / SAMPLES:
        kept.append((now, position))
    return kept, old[-1][1] if old else -1
