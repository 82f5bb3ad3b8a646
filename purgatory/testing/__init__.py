"""For tests: a loop on virtual time."""

from purgatory.testing._virtual_time import DeadlockError, VirtualTimeLoop

__all__ = ["DeadlockError", "VirtualTimeLoop"]
