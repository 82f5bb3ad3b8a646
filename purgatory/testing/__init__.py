"""For tests: a loop on virtual time, its pytest plugin, and the checks that a store for
`purgatory.relay` has to pass."""

from purgatory.testing._stores import store_checks
from purgatory.testing._virtual_time import DeadlockError, VirtualTimeLoop

__all__ = ["DeadlockError", "VirtualTimeLoop", "store_checks"]
