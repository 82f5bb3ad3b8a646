"""How much work is done in one iteration of the event loop."""

from typing import Final

MAX_PER_ITERATION: Final = 512
"""Limit of the work in one iteration of the loop before other callbacks can run: the number of
operations tried or ended, or of entries moved. It takes about a millisecond."""

REGISTRATIONS_PER_STEP: Final = 8
"""Watch lists from which an operation can be removed at the cost of trying one."""
