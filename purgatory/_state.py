"""The states of an operation. Which moves there are, and what makes them, is told in `_operations.lifecycle`."""

from enum import Enum
from typing import Final


class OperationState(Enum):
    """Where an operation stands. It leaves `PENDING` exactly once."""

    PENDING = "pending"
    COMPLETED = "completed"
    EXPIRED = "expired"
    CANCELLED = "cancelled"

    __hash__ = object.__hash__  # that of enums is a function in Python, and moves are looked up in a dictionary


PENDING: Final = OperationState.PENDING
COMPLETED: Final = OperationState.COMPLETED
EXPIRED: Final = OperationState.EXPIRED
CANCELLED: Final = OperationState.CANCELLED
