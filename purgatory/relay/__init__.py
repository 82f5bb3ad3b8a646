"""Versions of keys, shared by processes through a store: a wait completes wherever the write was made.

    async with Relay("file:///run/app") as relay:           # or redis://..., postgresql://...
        await relay.bump("orders/7")                        # in one worker: 42
        await relay.wait("orders/7", seen=41, timeout=20)   # in another: 42

The README beside this file tells how it works, what it promises, and how to write a store.
"""

from purgatory.relay._membership import Worker
from purgatory.relay._messages import Announcement, Change, ChangeMessage, ReadResult, decode, encode
from purgatory.relay._relay import Relay, RelayStatistics
from purgatory.relay._store import Store

__all__ = [
    "Announcement",
    "Change",
    "ChangeMessage",
    "ReadResult",
    "Relay",
    "RelayStatistics",
    "Store",
    "Worker",
    "decode",
    "encode",
]
