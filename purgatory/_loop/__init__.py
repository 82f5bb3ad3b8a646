"""What an event loop is asked for: to which loop an object belongs, one hook at a time, calls from other threads, an orderly
end.

Nothing here knows a wheel or a key.
"""

from typing import Final

MAX_PER_ITERATION: Final = 512
"""How much work is done in one iteration of the loop before others have their turn: so many operations are tried or ended, or
entries moved, about a millisecond of them."""

REGISTRATIONS_PER_STEP: Final = 8
"""To leave so many watch lists costs as much as to try an operation."""
