"""The states of an operation. `operation` defines the changes between them."""

from enum import Enum
from typing import Final

from purgatory._core.kernel import constants


class OperationState(Enum):
    """The state of an operation. It leaves `PENDING` exactly once."""

    PENDING = "pending"
    COMPLETED = "completed"
    EXPIRED = "expired"
    CANCELLED = "cancelled"

    # The hash of enums is a function in Python, and states are keys of a dictionary.
    __hash__ = object.__hash__


PENDING: Final = OperationState.PENDING
COMPLETED: Final = OperationState.COMPLETED
EXPIRED: Final = OperationState.EXPIRED
CANCELLED: Final = OperationState.CANCELLED

constants(PENDING=PENDING, COMPLETED=COMPLETED, EXPIRED=EXPIRED, CANCELLED=CANCELLED)
