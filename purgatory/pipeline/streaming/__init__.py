"""The purgatory over streams: which operations completed and which expired, decided on Spark,
exactly once.

    operations                                                      signals
    operation_id  requirements           mode  registered_at deadline   key        value  at
    order-7       [(paid-7, 1), (oak, 3)] all  12:00:05      12:10:05   paid-7     1      12:00:20

    outcomes
    outcome    operation_id  decided_at  satisfied_keys
    completed  order-7       12:00:20    [paid-7, oak]

The value of a key never falls. A requirement holds from the first signal that reaches the
threshold, if that signal comes at the deadline or before; it may come before the registration. An
operation waits for all of its requirements or for any of them. It ends with that or at its
deadline, whichever comes first, and this is decided as soon as the watermark has reached that
instant. So outcomes depend on event time alone, not on the order in which rows arrive.

Rows may arrive out of order by less than the delay; that makes no difference. For rows at the
watermark or behind it:

- an operation with a deadline still ahead starts to wait at the watermark; otherwise it is
  `late`, with the reason in its row;
- a signal is `late`, and counts from the watermark on for operations that are still pending;
- a copy of an operation (the same id, before the deadline of the first) is `late`, and the first
  one counts; an id may be used again when its deadline has passed;
- a row that lacks a column is `late`.

Silence
    The slower input determines the watermark, and an input without rows does not advance. With
    ticks (`read_ticks` and `keep_time`; the program has them) an input that has been silent for
    `idle` seconds, and of which nothing is left to be read, follows the clock, `idle` behind. So
    with both inputs silent the watermark is `idle` + `delay` behind the clock when something is
    due.

    - Rows that arrive up to `idle` after their event time are not late by a tick. Later ones are
      rows behind the watermark, with the rules above.
    - A backlog is decided by its own event time, however old it is and however long it takes to
      read: an input with rows left to be read is not silent. Nor is an input that is read after a
      pause: the silence of each input is counted anew from the start of the query.
    - Old rows that are added piece by piece, with pauses longer than `idle`, are late. Use
      `--idle never` for such rows.
    - A restarted query repeats a batch with the same ticks, since these are rows of a source with
      offsets in the checkpoint.

Forgetting
    With `forget_after` the value of a key counts for that time after its last signal, in event
    time. Then it is forgotten. So an operation that is registered later waits for a new signal, and
    the first signal after that sets the value, even if it is lower than the forgotten one.
    Requirements that hold already stay so. Outcomes still depend on event time alone. By default no key is
    forgotten, as offsets and versions need it; with keys that are used once, such as `paid-7`, the
    state would then grow with each of them.

At once
    With `at_once` an operation completes as soon as it and its last signal are read, in the order
    of arrival. That is never taken back, even if an earlier signal comes later: `decided_at` is the
    earliest instant by the rows that were read. Operations still expire with the watermark.

Operations are divided into shards by their id, and each is decided in one shard; every signal goes
to every shard. So a hot key is no bottleneck: the operations that wait for it are distributed over
all shards. This is `DelayedProduce` (all partitions have reached the offset) and `DelayedFetch`
(any has data) of Kafka's purgatory.

`outcomes` is for your own streaming DataFrames; ``python -m purgatory.pipeline stream`` runs it on
files or Kafka topics.
"""

from purgatory.pipeline.streaming._checkpoint import (
    Reconciliation,
    check_out,
    check_shards,
    newest_event,
    pending,
    reconcile,
)
from purgatory.pipeline.streaming._outcomes import OPERATIONS, OUTCOMES, SIGNALS, TICKS, outcomes
from purgatory.pipeline.streaming._processor import ShardsChanged
from purgatory.pipeline.streaming._ticks import keep_time, read_ticks, write_ticks

__all__ = [
    "OPERATIONS",
    "OUTCOMES",
    "SIGNALS",
    "TICKS",
    "Reconciliation",
    "ShardsChanged",
    "check_out",
    "check_shards",
    "keep_time",
    "newest_event",
    "outcomes",
    "pending",
    "read_ticks",
    "reconcile",
    "write_ticks",
]
