"""Entries, chunks, buckets, levels and drains by themselves, without a wheel."""

import copy
import pickle

import pytest

from purgatory._wheel import buckets
from purgatory._wheel.buckets import Bucket, Chunk, Drain, Level, TimerEntry


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
    """All that come out, each of which leaves, as it has to."""
    out = []
    while (entry := drain.next_entry()) is not None:
        out.append(leave(entry))
    return out


# Entries


class Stuck(TimerEntry):
    pass


def test_an_entry_that_cannot_expire_says_so() -> None:
    with pytest.raises(TypeError, match="Stuck has nothing to do when it expires"):
        Stuck()._timer_expired()


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, pickle.dumps])
def test_an_entry_is_neither_copied_nor_pickled(duplicate) -> None:
    with pytest.raises(TypeError, match=r"cannot copy or pickle <.*Stuck object at .*>: it is known by its identity"):
        duplicate(Stuck())


# Chunks and buckets


def test_a_bucket_holds_what_its_chunks_hold_the_full_ones_first() -> None:
    first, second, last = (chunk_of(*entries(count)) for count in (3, 2, 1))
    bucket = Bucket(Level(0, 1, 10, 0), 7, 0, last)
    bucket.full_chunks += [first, second]
    assert len(bucket) == 6 and bucket and bucket.chunks() == [first, second, last]
    first.clear()
    last.clear()
    assert len(bucket) == 2 and bucket
    second.clear()
    assert len(bucket) == 0 and not bucket


def test_a_bucket_whose_chunk_is_full_takes_entries_in_a_new_one_and_keeps_none_that_were_emptied(monkeypatch) -> None:
    monkeypatch.setattr(buckets, "CHUNK_CAPACITY", 2)
    wheel = object()
    first = Chunk(wheel)
    bucket = Bucket(Level(0, 1, 10, 0), 7, 0, first)
    assert bucket.writable_chunk() is first
    first.update(dict.fromkeys(entries(2)))
    second = bucket.writable_chunk()
    assert second is not first and second.wheel is wheel and bucket.writable_chunk() is second
    second.update(dict.fromkeys(entries(2)))
    first.clear()
    third = bucket.writable_chunk()
    assert [id(chunk) for chunk in bucket.chunks()] == [id(second), id(third)]


def test_a_bucket_wakes_up_when_it_is_due_or_one_of_its_widths_before_it_cascades() -> None:
    narrow = Bucket(Level(0, 1, 10, 0), 521, 3, Chunk(None))
    wide = Bucket(Level(1, 10, 10, 0), 52, 3, Chunk(None))
    assert (narrow.start_tick, narrow.wake_tick) == (521, 521)
    assert (wide.start_tick, wide.wake_tick) == (520, 510)
    assert (wide.handle, wide.generation) == (None, 3)
    assert repr(wide) == "<Bucket [520, 530) of 0>"


@pytest.mark.parametrize("current_tick", [0, 1, 99, 100, 12_345])
def test_a_level_ends_where_a_bucket_of_the_next_one_does_a_whole_one_ahead(current_tick: int) -> None:
    level = Level(1, 10, 10, 0)
    level.advance(current_tick)
    assert level.end_tick % level.interval == 0
    assert level.interval < level.end_tick - current_tick <= 2 * level.interval == 200


# Drains


def test_a_drain_gives_the_entries_of_its_chunks_in_order() -> None:
    waiting = entries(6)
    drain = Drain()
    assert not drain and len(drain) == 0 and drain.next_entry() is None
    drain.extend([chunk_of(*waiting[:3]), chunk_of(*waiting[3:5])])
    drain.extend([chunk_of(waiting[5])])
    assert drain and len(drain) == 6
    assert drained(drain) == waiting
    assert not drain and len(drain) == 0 and drain.chunks() == []


def test_what_has_left_or_was_moved_elsewhere_does_not_come_out_of_a_drain() -> None:
    waiting = entries(9)
    drain = Drain()
    drain.extend([chunk_of(*waiting[:4]), chunk_of(*waiting[4:])])
    leave(waiting[0])
    assert drain.next_entry() is waiting[1]
    leave(waiting[1])
    for index in (2, 5):  # one of the chunk that is being emptied, and one of the chunk behind it
        leave(waiting[index])
        chunk_of(waiting[index])
    assert len(drain) == 5
    assert drained(drain) == [waiting[index] for index in (3, 4, 6, 7, 8)]


def test_a_drain_of_empty_chunks_gives_nothing_and_forgets_them() -> None:
    drain = Drain()
    drain.extend([Chunk(None), Chunk(None)])
    assert drain and len(drain) == 0  # there may be more to come
    assert drain.next_entry() is None
    assert not drain and drain.chunks() == []


def test_a_drain_that_was_emptied_serves_again() -> None:
    drain = Drain()
    for _ in range(3):
        waiting = entries(4)
        drain.extend([chunk_of(*waiting)])
        assert drained(drain) == waiting


def test_a_drain_whose_rest_has_left_has_nothing_more_to_come() -> None:
    waiting = entries(4)
    drain = Drain()
    drain.extend([chunk_of(*waiting)])
    leave(drain.next_entry() or waiting[0])
    for entry in waiting[1:]:
        leave(entry)
    assert not drain and len(drain) == 0 and drain.next_entry() is None


def test_what_is_left_of_a_drain_begins_with_the_chunk_that_is_being_emptied() -> None:
    first, second = chunk_of(*entries(2)), chunk_of(*entries(2))
    drain = Drain()
    drain.extend([first, second])
    assert [id(chunk) for chunk in drain.chunks()] == [id(first), id(second)]
    entry = drain.next_entry()
    assert entry is not None and [id(chunk) for chunk in drain.chunks()] == [id(first), id(second)]
    leave(entry)
    assert drain.next_entry() in first and len(drain) == 3


def test_a_drain_that_is_rewound_gives_again_what_is_still_there() -> None:
    waiting = entries(4)
    drain = Drain()
    drain.rewind()
    drain.extend([chunk_of(*waiting[:2]), chunk_of(*waiting[2:])])
    assert drain.next_entry() is waiting[0]  # which does not leave
    drain.rewind()
    assert drained(drain) == waiting
    drain.rewind()
    assert not drain and drain.next_entry() is None
