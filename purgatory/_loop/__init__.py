"""What depends on the event loop alone: the loop of an object, hooks one at a time, calls from other threads, closing.

Nothing here knows a wheel or a key.
"""

from typing import Final

MAX_PER_ITERATION: Final = 512
"""The work that is done in one iteration of the loop before other callbacks can run: so many operations are tried or ended, or
entries moved, which takes about a millisecond."""

REGISTRATIONS_PER_STEP: Final = 8
"""To remove an operation from so many watch lists costs as much as to try one."""
