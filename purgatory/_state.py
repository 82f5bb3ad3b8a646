"""Where an operation stands.

                       force_complete
               ┌──────────────────────────> COMPLETED   on_complete
               │       deadline
    PENDING ───┼──────────────────────────> EXPIRED     on_complete, on_expiration
               │       cancel, aclose, a try that raised
               └──────────────────────────> CANCELLED

Only `PENDING` can be left, and once: that is all that the compare-and-set (`_life.claim`) asks.
"""

from enum import Enum
from typing import Final


class OperationState(Enum):
    """Where an operation stands. It leaves `PENDING` exactly once."""

    PENDING = "pending"
    COMPLETED = "completed"
    EXPIRED = "expired"
    CANCELLED = "cancelled"


PENDING: Final = OperationState.PENDING
COMPLETED: Final = OperationState.COMPLETED
EXPIRED: Final = OperationState.EXPIRED
CANCELLED: Final = OperationState.CANCELLED
