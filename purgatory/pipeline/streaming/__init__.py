"""The purgatory over streams: which operations completed and which expired, decided on Spark, exactly once.

    operations                                                      signals
    operation_id  requirements           mode  registered_at deadline   key        value  at
    order-7       [(paid-7, 1), (oak, 3)] all  12:00:05      12:10:05   paid-7     1      12:00:20

    outcomes
    outcome    operation_id  decided_at  satisfied_keys
    completed  order-7       12:00:20    [paid-7, oak]

A key keeps its value, and the value never falls. A requirement holds from the first signal whose value reaches the threshold,
if that signal comes at the deadline or before; it may come before the registration. An operation waits for all of its
requirements or for any of them. It ends with that or at its deadline, whichever comes first, and this is decided as soon as
the watermark has come so far. So outcomes depend on event time alone, not on the order in which rows arrive.

Rows may arrive out of order by less than the delay; that makes no difference. For rows at the watermark or behind it:

- an operation whose deadline is still ahead begins to wait at the watermark; otherwise it is `late`, with the reason in its
row;
- a signal is `late`, and counts from the watermark on for whatever is still to be decided;
- a copy of an operation (the same id, before the deadline of the first) is `late`, and the first one counts; an id may be used
  again when its deadline has passed;
- a row that lacks a column is `late`.

Operations are divided into shards by their id, and each is decided in one shard; every signal goes to every shard. So a hot key
is no bottleneck: the operations that wait for it are distributed over all shards. This is `DelayedProduce` (all partitions have
reached the offset) and `DelayedFetch` (any has data) of Kafka's purgatory.

`outcomes` is for your own streaming DataFrames; ``python -m purgatory.pipeline stream`` runs it on files or Kafka topics.
"""

from purgatory.pipeline.streaming._checkpoint import (
    Reconciliation,
    check_out,
    check_shards,
    newest_event,
    reconcile,
    write_ticks,
)
from purgatory.pipeline.streaming._messages import encode_operation, encode_signal
from purgatory.pipeline.streaming._outcomes import OPERATIONS, OUTCOMES, SIGNALS, TICKS, outcomes
from purgatory.pipeline.streaming._processor import ShardsChanged

__all__ = [
    "OPERATIONS",
    "OUTCOMES",
    "SIGNALS",
    "TICKS",
    "Reconciliation",
    "ShardsChanged",
    "check_out",
    "check_shards",
    "encode_operation",
    "encode_signal",
    "newest_event",
    "outcomes",
    "reconcile",
    "write_ticks",
]
