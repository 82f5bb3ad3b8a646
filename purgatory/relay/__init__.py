"""Versions of keys, shared by processes through a store: a wait completes wherever the write was
made.

    async with Relay("file:///run/app") as relay:           # or redis://..., postgresql://...
        await relay.bump("orders/7")                        # in one worker: 42
        await relay.wait("orders/7", seen=41, timeout=20)   # in another: 42
        await relay.deliver("payments/7", b"paid", ttl=600) # a reply, in one worker
        await relay.receive("payments/7", timeout=20)       # in another: b"paid"

The README in this folder explains the protocol, the promises, and how to write a store.
"""

from purgatory.relay._membership import Worker
from purgatory.relay._messages import (
    Change,
    ChangeMessage,
    Delivery,
    ReadResult,
    Settled,
    decode,
    encode,
    encode_settled,
)
from purgatory.relay._relay import Relay, RelayStatistics
from purgatory.relay._store import Store, StoreWithDeliveries, SweptStore

__all__ = [
    "Change",
    "ChangeMessage",
    "Delivery",
    "ReadResult",
    "Relay",
    "RelayStatistics",
    "Settled",
    "Store",
    "StoreWithDeliveries",
    "SweptStore",
    "Worker",
    "decode",
    "encode",
    "encode_settled",
]
