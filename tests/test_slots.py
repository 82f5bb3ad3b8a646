"""Slots, levels and buckets by themselves, without a wheel."""

from math import inf

import pytest

from purgatory import _slots
from purgatory._slots import Bucket, Entry, Level, Slot


def bucket_of(*entries: Entry) -> Bucket:
    bucket = Bucket(None)
    bucket.update(dict.fromkeys(entries))
    return bucket


def entries(count: int) -> list[Entry]:
    return [Entry() for _ in range(count)]


def test_a_bucket_is_walked_in_batches_from_the_front():
    first, second, third = waiting = entries(3)
    bucket = bucket_of(*waiting)
    assert bucket.batch(2) == [first, second]
    assert bucket.batch(2) == [third]
    assert bucket.batch(2) == [first, second]  # whoever is still there comes again
    assert bucket_of().batch(2) == []


def test_a_walk_goes_on_behind_what_has_left_and_reaches_what_has_come(monkeypatch):
    monkeypatch.setattr(_slots, "SNAPSHOT", 2)
    waiting = entries(5)
    bucket, seen = bucket_of(*waiting[:4]), []
    while batch := bucket.batch(2):
        seen += batch
        for entry in batch:
            del bucket[entry]
        if len(seen) == 2:
            bucket[waiting[4]] = None
    assert seen == waiting


def test_a_bucket_that_is_rewound_begins_again_at_the_front():
    waiting = entries(3)
    bucket = bucket_of(*waiting)
    bucket.batch(1)
    bucket.rewind()
    assert bucket.batch(3) == waiting


def test_the_first_bucket_of_a_slot_is_what_came_from_a_wider_one_and_empty_ones_are_let_go():
    moved, added = bucket_of(*entries(1)), bucket_of(*entries(1))
    slot = Slot(Level(0, 1, 10, 0), 7, 0)
    slot.moved += [bucket_of(), moved]
    slot.added += [bucket_of(), added]
    assert len(slot) == 2 and slot.first() is moved and slot.moved == [moved]
    moved.clear()
    assert len(slot) == 1 and slot and slot.first() is added and (slot.moved, slot.added) == ([], [added])
    added.clear()
    assert len(slot) == 0 and not slot and slot.first() is None and slot.added == []


class Told:
    """As much of a wheel as a bucket needs."""

    def __init__(self) -> None:
        self.resting, self.emptied_times = False, 0

    def emptied(self) -> None:
        self.emptied_times += 1


def test_an_entry_joins_a_bucket_is_handed_over_and_leaves_and_the_wheel_hears_of_the_last():
    wheel = Told()
    bucket, other = Bucket(wheel, 1.0, 2.0), Bucket(wheel)
    first, second = entries(2)
    for entry in (first, second):
        bucket.join(entry, 1.5)
        assert (entry._wheel_when, entry._wheel_bucket) == (1.5, bucket)
    bucket.hand_over(first, other)
    assert first._wheel_bucket is other and list(other) == [first] and list(bucket) == [second]
    other.leave(first)
    assert (first._wheel_bucket, len(other), wheel.emptied_times) == (None, 0, 1)
    wheel.resting = True
    bucket.leave(second)
    assert (second._wheel_bucket, len(bucket), wheel.emptied_times) == (None, 0, 1)


def test_a_bucket_takes_nothing_unless_it_is_told_its_bounds():
    bucket = Bucket(None)
    assert not any(bucket.after < when <= bucket.until for when in (-inf, 0.0, inf))


def test_a_slot_wakes_up_when_it_is_due_or_one_of_its_spans_before_it_is_moved():
    narrow, wide = Slot(Level(0, 1, 10, 0), 521, 0), Slot(Level(1, 10, 10, 0), 52, 0)
    assert (narrow.start_tick, narrow.wake_tick) == (521, 521)
    assert (wide.start_tick, wide.wake_tick) == (520, 510)
    assert repr(wide) == "<Slot [520, 530) of 0>"


@pytest.mark.parametrize("tick_now", [0, 1, 99, 100, 12_345])
def test_a_level_ends_where_a_slot_of_the_next_one_does_a_whole_one_ahead(tick_now):
    level = Level(1, 10, 10, 0)
    level.advance(tick_now)
    assert level.end_tick % level.reach_ticks == 0
    assert level.reach_ticks < level.end_tick - tick_now <= 2 * level.reach_ticks == 200


def test_an_entry_that_cannot_expire_says_so():
    class Stuck(Entry):
        pass

    with pytest.raises(TypeError, match="Stuck has nothing to do when it expires"):
        Stuck()._wheel_due()
