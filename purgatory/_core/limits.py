"""How much work is done in one iteration of the event loop."""

from typing import Final

MAX_PER_ITERATION: Final = 512
"""The work that is done in one iteration of the loop before other callbacks can run: so many
operations are tried or ended, or entries moved, which takes about a millisecond."""

REGISTRATIONS_PER_STEP: Final = 8
"""Watch lists from which an operation can be removed at the cost of trying one."""
