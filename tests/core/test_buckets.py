"""Entries, chunks, buckets, levels and drains alone, without a wheel."""

import copy
import pickle

import pytest

from purgatory._core import buckets
from purgatory._core.buckets import Bucket, Chunk, Drain, Level, TimerEntry


def entries(count: int) -> list[TimerEntry]:
    return [TimerEntry() for _ in range(count)]


def chunk_of(*waiting: TimerEntry) -> Chunk:
    chunk = Chunk(None)
    for entry in waiting:
        chunk[entry] = None
        entry._timer_chunk = chunk
    return chunk


def leave(entry: TimerEntry) -> TimerEntry:
    assert entry._timer_chunk is not None
    del entry._timer_chunk[entry]
    entry._timer_chunk = None
    return entry


def drained(drain: Drain) -> list[TimerEntry]:
    """Drains all entries; each leaves its chunk, as callers must do."""
    out = []
    while (entry := drain.next_entry()) is not None:
        out.append(leave(entry))
    return out


# Entries


class Stuck(TimerEntry):
    pass


def test_entry_without_timer_expired_raises() -> None:
    with pytest.raises(TypeError, match="Stuck defines no _timer_expired"):
        Stuck()._timer_expired()


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, pickle.dumps])
def test_entry_refuses_copy_and_pickle(duplicate) -> None:
    with pytest.raises(
        TypeError,
        match=r"cannot copy or pickle <.*Stuck object at .*>: it is known by its identity",
    ):
        duplicate(Stuck())


# Chunks and buckets


def test_chunk_keeps_order_of_addition_through_removals() -> None:
    first, second, third, fourth = waiting = entries(4)
    chunk = chunk_of(*waiting)
    chunk[second] = None  # which is there already
    assert list(chunk) == waiting and len(chunk) == 4 and third in chunk and chunk
    leave(first), leave(third)
    assert list(chunk) == [second, fourth] and third not in chunk and object() not in chunk
    with pytest.raises(KeyError):
        del chunk[first]
    chunk[first] = None
    first._timer_chunk = chunk
    assert list(chunk) == [second, fourth, first]
    leave(fourth), leave(first), leave(second)
    assert not chunk and list(chunk) == []


def test_chunk_that_changes_ends_its_iteration() -> None:
    waiting = entries(3)
    iterator = iter(chunk_of(*waiting))
    assert next(iterator) is waiting[0]
    leave(waiting[1])
    with pytest.raises(RuntimeError, match="changed"):
        next(iterator)


def test_chunk_with_entries_refuses_to_be_copied() -> None:
    empty = copy.deepcopy(Chunk("the wheel"))
    assert type(empty) is Chunk and empty.wheel == "the wheel" and not empty
    with pytest.raises(TypeError, match="it is known by its identity"):
        copy.deepcopy(chunk_of(Stuck()))


def test_bucket_holds_entries_of_all_its_chunks() -> None:
    first, second, last = (chunk_of(*entries(count)) for count in (3, 2, 1))
    bucket = Bucket(Level(0, 10, 0), 7, 0, last)
    bucket.full_chunks += [first, second]
    assert len(bucket) == 6 and bucket and bucket.chunks() == [first, second, last]
    first.clear()
    last.clear()
    assert len(bucket) == 2 and bucket
    second.clear()
    assert len(bucket) == 0 and not bucket


def test_full_bucket_opens_chunk_and_drops_empty_ones(
    monkeypatch,
) -> None:
    monkeypatch.setattr(buckets, "CHUNK_CAPACITY", 2)
    wheel = object()
    first = Chunk(wheel)
    bucket = Bucket(Level(0, 10, 0), 7, 0, first)
    assert bucket.writable_chunk() is first
    for entry in entries(2):
        first[entry] = None
    second = bucket.writable_chunk()
    assert second is not first and second.wheel is wheel and bucket.writable_chunk() is second
    for entry in entries(2):
        second[entry] = None
    first.clear()
    third = bucket.writable_chunk()
    assert [id(chunk) for chunk in bucket.chunks()] == [id(second), id(third)]


def test_wide_bucket_wakes_one_width_early() -> None:
    narrow = Bucket(Level(0, 10, 0), 521, 3, Chunk(None))
    wide = Bucket(Level(1, 10, 0), 52, 3, Chunk(None))
    assert (narrow.start_tick, narrow.wake_tick) == (521, 521)
    assert (wide.start_tick, wide.wake_tick) == (520, 510)
    assert (wide.handle, wide.generation) == (None, 3)
    assert repr(wide) == "<Bucket [520, 530) of 0>"


@pytest.mark.parametrize("current_tick", [0, 1, 99, 100, 12_345])
def test_level_reaches_one_whole_wider_bucket_ahead(
    current_tick: int,
) -> None:
    level = Level(1, 10, 0)
    level.advance(current_tick)
    assert level.end_tick % level.interval == 0
    assert level.interval < level.end_tick - current_tick <= 2 * level.interval == 200


# Drains


def test_drain_gives_entries_in_order() -> None:
    waiting = entries(6)
    drain = Drain()
    assert not drain and len(drain) == 0 and drain.next_entry() is None
    drain.extend([chunk_of(*waiting[:3]), chunk_of(*waiting[3:5])])
    drain.extend([chunk_of(waiting[5])])
    assert drain and len(drain) == 6
    assert drained(drain) == waiting
    assert not drain and len(drain) == 0 and drain.chunks() == []


def test_drain_skips_removed_and_moved_entries() -> None:
    waiting = entries(9)
    drain = Drain()
    drain.extend([chunk_of(*waiting[:4]), chunk_of(*waiting[4:])])
    leave(waiting[0])
    assert drain.next_entry() is waiting[1]
    leave(waiting[1])
    for index in (2, 5):  # one of the current chunk, one of the next
        leave(waiting[index])
        chunk_of(waiting[index])
    assert len(drain) == 5
    assert drained(drain) == [waiting[index] for index in (3, 4, 6, 7, 8)]


def test_drain_of_empty_chunks_is_empty() -> None:
    drain = Drain()
    drain.extend([Chunk(None), Chunk(None)])
    assert len(drain) == 0
    assert drain.next_entry() is None
    assert not drain and drain.chunks() == []


def test_emptied_drain_can_be_extended() -> None:
    drain = Drain()
    for _ in range(3):
        waiting = entries(4)
        drain.extend([chunk_of(*waiting)])
        assert drained(drain) == waiting


def test_drain_is_empty_when_rest_has_left() -> None:
    waiting = entries(4)
    drain = Drain()
    drain.extend([chunk_of(*waiting)])
    leave(drain.next_entry() or waiting[0])
    for entry in waiting[1:]:
        leave(entry)
    assert not drain and len(drain) == 0 and drain.next_entry() is None


def test_drain_lists_current_chunk_first() -> None:
    first, second = chunk_of(*entries(2)), chunk_of(*entries(2))
    drain = Drain()
    drain.extend([first, second])
    assert [id(chunk) for chunk in drain.chunks()] == [id(first), id(second)]
    entry = drain.next_entry()
    assert entry is not None and [id(chunk) for chunk in drain.chunks()] == [id(first), id(second)]
    leave(entry)
    assert drain.next_entry() in first and len(drain) == 3


def test_drain_repeats_entry_until_it_leaves() -> None:
    waiting = entries(4)
    drain = Drain()
    drain.extend([chunk_of(*waiting[:2]), chunk_of(*waiting[2:])])
    assert [drain.next_entry() for _ in range(3)] == [waiting[0]] * 3
    assert len(drain) == 4
    assert drained(drain) == waiting
    assert not drain and drain.next_entry() is None
