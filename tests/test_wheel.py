"""`Wheel` by itself: no loop, time is an argument, and most of the time a tick is a second."""

import itertools
import math
import random
from collections.abc import Callable, Iterator

import pytest

from purgatory import _levels
from purgatory._clock import MAX_TICK
from purgatory._slots import FULL, SNAPSHOT, Entry, Slot
from purgatory._wheel import DEFAULT_WHEEL_SIZE, PATIENCE, Wheel

STARTS = [0, 20_000_000, 1_000_000_000]

at_any_time = pytest.mark.parametrize("start", STARTS)
in_portions = pytest.mark.parametrize("portion", [1, 3, 512])


class Named(Entry):
    __slots__ = ("name",)

    def __init__(self, name: object) -> None:
        self.name = name


class WatchedWheel(Wheel):
    """Remembers what its owner is told, and does what an owner does."""

    def __init__(self, tick: float = 1.0, wheel_size: int = 10) -> None:
        super().__init__(tick, wheel_size)
        self.told: list[tuple[str, int]] = []
        self.told_emptied = 0

    def opened(self, slot: Slot) -> None:
        assert slot.handle is None
        slot.handle = self
        self.told.append(("opened", slot.start_tick))

    def closed(self, slot: Slot) -> None:
        if slot.handle is not None:
            slot.handle = None
            self.told.append(("closed", slot.start_tick))

    def emptied(self) -> None:
        self.told_emptied += 1

    def put(self, name: object, when: float, now: float = 0.0) -> Named:
        entry = Named(name)
        self.add(entry, when, now)
        self._check()
        return entry

    def fire(self, entry: Entry) -> object:
        assert isinstance(entry, Named)
        self.remove(entry)
        return entry.name

    def one_turn(self, now: float, portion: int = 512) -> Iterator[object]:
        """One turn of work: the names of what fires, each asked for when the one before has been dealt with."""
        self.begin_turn(portion)
        while entries := self.due(now):
            bucket = self.draining()
            for entry in entries:
                if entry in bucket:
                    yield self.fire(entry)
                    self._check()
        self._check()

    def all_turns(self, now: float, portion: int = 512) -> list[object]:
        """All that is due, however many turns it takes."""
        fired = list(self.one_turn(now, portion))
        while self.is_behind():
            fired += self.one_turn(now, portion)
        return fired

    def layout(self) -> dict[tuple[int, int], list[object]]:
        """The depth of the level and the start of each slot that is not empty, and the names in it."""
        return {
            (slot.level.depth, slot.start_tick): [
                entry.name for bucket in slot.moved + slot.added for entry in bucket if isinstance(entry, Named)
            ]
            for slot in self.slots()
            if slot
        }


# Buckets, levels, cascades


@at_any_time
def test_the_worked_example_lands_and_cascades_as_told_and_never_fires_early(start: int) -> None:
    wheel = WatchedWheel(wheel_size=10)
    for name in (9, 88, 222, 520, 521, 522):
        wheel.put(name, start + name, now=start)

    def layout_at(tick: int) -> dict[tuple[int, int], list[object]]:
        assert wheel.all_turns(start + tick - 0.001) == []
        fired = wheel.all_turns(start + tick)
        assert fired == ([tick] if tick in (9, 88, 222, 520, 521, 522) else [])
        return {(depth, first - start): names for (depth, first), names in wheel.layout().items()}

    far = {(2, 500): [520, 521, 522]}
    expected = {
        0: {(0, 9): [9], (1, 80): [88], (2, 200): [222], **far},
        8: {(0, 9): [9], (1, 80): [88], (2, 200): [222], **far},
        9: {(1, 80): [88], (2, 200): [222], **far},
        69: {(1, 80): [88], (2, 200): [222], **far},
        70: {(0, 88): [88], (2, 200): [222], **far},
        88: {(2, 200): [222], **far},
        99: {(2, 200): [222], **far},
        100: {(1, 220): [222], **far},
        209: {(1, 220): [222], **far},
        210: {(0, 222): [222], **far},
        222: far,
        399: far,
        400: {(1, 520): [520, 521, 522]},
        509: {(1, 520): [520, 521, 522]},
        510: {(0, 520): [520], (0, 521): [521], (0, 522): [522]},
        520: {(0, 521): [521], (0, 522): [522]},
        521: {(0, 522): [522]},
        522: {},
    }
    assert {tick: layout_at(tick) for tick in expected} == expected


@pytest.mark.parametrize("now", [0, 7, 19])
def test_each_level_of_twenty_reaches_to_the_end_of_the_next_slot_of_the_level_above(now: int) -> None:
    wheel = WatchedWheel(wheel_size=20)
    depths = {now: 0, 39: 0, 40: 1, 799: 1, 800: 2, 15_999: 2, 16_000: 3}
    for due_tick in depths:
        wheel.put(due_tick, due_tick, now)
    assert {names[0]: depth for (depth, _), names in wheel.layout().items()} == depths
    assert [level.reach_ticks for level in wheel.levels] == [20, 400, 8000, 160_000]


def test_levels_beyond_the_second_are_made_when_they_are_needed_and_only_then() -> None:
    wheel = WatchedWheel(wheel_size=10)
    for due_tick, levels in [(9, 2), (99, 2), (15, 2), (999_999, 6), (MAX_TICK, 6), (0, 6)]:
        wheel.put(due_tick, due_tick)
        assert len(wheel.levels) == levels


@pytest.mark.parametrize("wheel_size", [2, 10, 20, DEFAULT_WHEEL_SIZE])
@pytest.mark.parametrize("start", [0, 7, 99, 2e7 - 1, 1e9 + 5])
def test_an_overflow_to_the_next_level_fires_at_its_tick_and_no_earlier(wheel_size: int, start: float) -> None:
    borders = [wheel_size**depth for depth in range(1, 5) if wheel_size**depth <= 8000]
    delays = sorted({border + step for border in borders for step in (-1, 0, 1)} | {3, 5, 2999})
    wheel = WatchedWheel(wheel_size=wheel_size)
    for delay in delays:
        wheel.put(delay, start + delay, now=start)
    fired = {}
    for tick in range(delays[-1] + 2):
        for name in wheel.all_turns(start + tick - 0.001) + wheel.all_turns(start + tick):
            fired[name] = tick
    assert fired == {delay: delay for delay in delays}
    assert len(wheel) == 0


def test_an_entry_waits_through_at_most_one_slot_of_each_level() -> None:
    wheel = WatchedWheel(wheel_size=10)
    wheel.put("far", 12_345)
    for tick in range(12_346):
        assert list(wheel.one_turn(tick)) == (["far"] if tick == 12_345 else [])
    starts = (12_000, 12_300, 12_340, 12_345)
    assert [start for what, start in wheel.told if what == "opened"] == [*starts]
    assert [start for what, start in wheel.told if what == "closed"] == [*starts]
    assert wheel.moves == 3


def test_a_slot_is_announced_once_whatever_joins_it_and_taken_back_when_it_is_due() -> None:
    wheel = WatchedWheel()
    for name in range(100):
        wheel.put(name, 5)
    assert wheel.told == [("opened", 5)]
    assert wheel.all_turns(5) == list(range(100))
    assert wheel.told == [("opened", 5), ("closed", 5)]


# Order


@in_portions
def test_entries_of_one_tick_fire_in_the_order_in_which_they_came_on_any_level(portion: int) -> None:
    wheel = WatchedWheel(wheel_size=10)
    names = itertools.count()
    for now in (0, 50, 79, 79.5, 80, 80.5, 84, 87, 88):
        fired = wheel.all_turns(now, portion) if now < 88 else []
        assert fired == []
        for _ in range(5):
            wheel.put(next(names), 88, now)
    assert wheel.all_turns(88, portion) == list(range(45))


@pytest.mark.parametrize("portion", [1, 3, 10])
def test_what_joins_in_the_middle_of_a_cascade_takes_its_place_at_the_end(portion: int) -> None:
    wheel = WatchedWheel(wheel_size=10)
    names = itertools.count()
    for _ in range(20):
        wheel.put(next(names), 88)
    for _ in range(20):
        assert list(wheel.one_turn(80, portion)) == []
        wheel.put(next(names), 88, now=80)
    assert wheel.all_turns(88, portion) == list(range(40))


@pytest.mark.parametrize("portion", [1, 3, 10])
def test_what_joins_a_tick_that_is_being_emptied_takes_its_place_at_the_end(portion: int) -> None:
    wheel = WatchedWheel()
    names = itertools.count()
    for _ in range(20):
        wheel.put(next(names), 5)
    fired: list[object] = []
    for _ in range(5):
        fired += wheel.one_turn(5, portion)
        wheel.put(next(names), 5, now=5)
    assert fired + wheel.all_turns(5, portion) == list(range(25))


@in_portions
@at_any_time
def test_after_a_stall_all_that_is_due_in_all_levels_fires_at_once_in_order(start: int, portion: int) -> None:
    wheel = WatchedWheel(wheel_size=10)
    delays = [88, 82, 9, 521, 222, 520, 515, 9, 88, 88, 4000, 999, 1001, 5000]
    for arrival, delay in enumerate(delays):
        wheel.put((delay, arrival), start + delay, now=start)
    due = sorted(zip(delays, itertools.count(), strict=False))[:-1]
    assert wheel.all_turns(start + 4321, portion) == due
    assert [name for names in wheel.layout().values() for name in names] == [(5000, 13)]


@in_portions
def test_after_a_stall_old_entries_fire_before_those_that_came_since(portion: int) -> None:
    wheel = WatchedWheel(wheel_size=10)
    for due_tick in (3, 55, 560):
        wheel.put(due_tick, due_tick)
    wheel.put("late", 2, now=1000)
    wheel.put("new", 1000, now=1000)
    assert wheel.all_turns(1000, portion) == [3, 55, 560, "late", "new"]


@pytest.mark.parametrize("seed", range(5))
@in_portions
def test_hundreds_of_entries_fire_by_tick_and_then_by_arrival_at_their_tick(seed: int, portion: int) -> None:
    randomly = random.Random(seed)
    wheel = WatchedWheel(wheel_size=7)
    due_ticks = [int(randomly.random() ** 3 * 2000) for _ in range(300)]
    for arrival, due_tick in enumerate(due_ticks):
        entry = Named((due_tick, arrival))
        wheel.add(entry, due_tick, 0.0)
    wheel._check()
    fired: list[object] = []
    for tick in range(2000):
        for due_tick, arrival in wheel.all_turns(tick, portion):  # type: ignore[misc]
            assert due_tick == tick
            fired.append((due_tick, arrival))
    assert fired == sorted(zip(due_ticks, itertools.count(), strict=False))


def test_a_bucket_larger_than_a_snapshot_fires_whole_and_in_order() -> None:
    wheel = Wheel(1.0, 10)
    names = list(range(2 * SNAPSHOT + 10))
    for name in names:
        wheel.add(Named(name), 88, 0)
    fired = []
    for now in [80] * 50 + [88] * 50:
        wheel.begin_turn(512)
        while entries := wheel.due(now):
            for entry in entries:
                wheel.remove(entry)
                fired.append(entry.name)  # type: ignore[attr-defined]
    assert fired == names


# Portions


@pytest.mark.parametrize("portion", [1, 7, 100])
def test_a_turn_returns_and_moves_no_more_entries_than_its_portion(portion: int) -> None:
    wheel = WatchedWheel(wheel_size=10)
    for name in range(200):
        wheel.put(name, 520 + name % 3)
    fired: list[object] = []
    turns = 0
    for now in (500, 520, 521, 522):
        while True:
            moves = wheel.moves
            some = list(wheel.one_turn(now, portion))
            assert len(some) + wheel.moves - moves <= portion
            fired += some
            turns += 1
            if not wheel.is_behind():
                break
    assert fired == sorted(range(200), key=lambda name: name % 3)
    assert turns >= 3 * 200 / portion


def test_an_entry_added_to_the_tick_being_emptied_waits_for_the_next_turn_and_does_not_loop() -> None:
    wheel = WatchedWheel()
    wheel.put(0, 5)
    for number in range(10):
        for name in wheel.one_turn(5):
            assert name == number
            wheel.put(number + 1, 5, now=5)
        assert wheel.is_behind()
    assert len(wheel) == 1


@pytest.mark.parametrize("portion", [1, 5, 512])
def test_an_entry_that_is_not_to_fire_after_all_is_put_back_to_its_new_tick(portion: int) -> None:
    wheel = WatchedWheel()
    entries = [wheel.put(name, 5) for name in range(10)]
    for entry in entries[:5]:
        entry._wheel_when = 7.0
    entries[5]._wheel_when = math.inf
    put_back = 0
    while not put_back or wheel.is_behind():
        wheel.begin_turn(portion)
        while batch := wheel.due(5):
            for entry in batch:
                if entry._wheel_when > 5:
                    wheel.put_back(entry)
                    put_back += 1
                else:
                    wheel.remove(entry)
                wheel._check()
    assert put_back == 6
    assert wheel.layout() == {(0, 7): list(range(5))}
    assert len(wheel) == 6
    assert wheel.all_turns(6) == []
    assert wheel.all_turns(7) == list(range(5))


def test_postponing_in_place_moves_an_entry_only_when_its_old_slot_is_moved() -> None:
    wheel = WatchedWheel(wheel_size=10)
    entry = wheel.put("postponed", 88)
    entry._wheel_when = 345.0
    assert wheel.all_turns(69) == []
    assert wheel.moves == 0
    assert wheel.all_turns(70) == []
    assert wheel.moves == 1
    assert wheel.layout() == {(2, 300): ["postponed"]}
    assert [(tick, name) for tick in range(70, 400) for name in wheel.all_turns(tick)] == [(345, "postponed")]


# Moving ahead


Meddle = Callable[[WatchedWheel, list[Named], random.Random], None]


def leave_alone(wheel: WatchedWheel, entries: list[Named], randomly: random.Random) -> None:
    pass


def cancel_and_postpone_a_few(wheel: WatchedWheel, entries: list[Named], randomly: random.Random) -> None:
    for entry in randomly.sample(entries, 2):
        if entry._wheel_bucket is not None:
            if randomly.random() < 0.5:
                wheel.remove(entry)
            else:
                entry._wheel_when += randomly.choice([1, 50, 3000])


class Lateness:
    """Has a turn of a wheel at every tick, and notes how many ticks after its deadline each entry fires.

    In each tick, a short entry is added beside those that wait for long.
    """

    SHORT = 20

    def __init__(self, wheel: WatchedWheel, portion: int) -> None:
        self.wheel = wheel
        self.portion = portion
        self.by_name: dict[object, int] = {}

    def run(self, ticks: range) -> None:
        wheel = self.wheel
        for now in ticks:
            wheel.add(Named(now + self.SHORT), now + self.SHORT, now)
            moves = wheel.moves
            wheel.begin_turn(self.portion)
            handled = 0
            while entries := wheel.due(now):
                for entry in entries:
                    handled += 1
                    if entry._wheel_when > now:
                        wheel.put_back(entry)
                        moves += 1
                    else:
                        self.by_name[wheel.fire(entry)] = now - entry._wheel_when
            assert handled + wheel.moves - moves <= self.portion


@pytest.mark.parametrize("meddle", [leave_alone, cancel_and_postpone_a_few])
@pytest.mark.parametrize("order", ["in order", "reversed", "random"])
@pytest.mark.parametrize("wheel_size", [8, 32])
def test_thousands_that_share_a_wide_slot_make_nobody_late(wheel_size: int, order: str, meddle: Meddle) -> None:
    randomly = random.Random(wheel_size)
    wheel = WatchedWheel(wheel_size=wheel_size)
    start = 4 * 1024 if wheel_size == 32 else 4 * 4096
    whens = [start + number * 1024 // 3000 for number in range(3000)]
    if order != "in order":
        whens.reverse() if order == "reversed" else randomly.shuffle(whens)
    entries = [Named((when, arrival)) for arrival, when in enumerate(whens)]
    for entry, when in zip(entries, whens, strict=True):
        wheel.add(entry, when, 0)
    assert len([slot for slot in wheel.slots() if slot]) == 1
    late = Lateness(wheel, portion=32)
    for now in range(start + 1024 + 3100):
        late.run(range(now, now + 1))
        if now < start:
            meddle(wheel, entries, randomly)
    wheel._check()
    assert max(late.by_name.values()) <= 0
    if meddle is leave_alone:
        assert len(wheel) == Lateness.SHORT
        fired = [name for name in late.by_name if isinstance(name, tuple)]
        assert fired == sorted(fired)
        assert len(fired) == 3000


def test_what_is_due_goes_first_even_when_a_stall_has_left_thousands_to_move() -> None:
    wheel = WatchedWheel(wheel_size=32)
    for number in range(5000):
        wheel.add(Named(("long", number)), 4096 + (number * 7) % 1024, 0)
    late = Lateness(wheel, portion=64)
    late.run(range(20))
    late.run(range(4200, 5200))
    short = {name: by for name, by in late.by_name.items() if isinstance(name, int) and name >= 4200}
    assert max(short.values()) <= 1  # those that were started when it was over; PATIENCE is shorter than SHORT
    assert sum(isinstance(name, tuple) for name in late.by_name) == 5000
    wheel._check()


def test_moving_takes_a_quarter_of_a_portion_and_all_of_it_when_half_of_the_time_has_passed() -> None:
    wheel = WatchedWheel(wheel_size=1000)
    for number in range(1000):
        wheel.add(Named(number), 5000, 0)

    def moved_and_fired_at(now: int) -> tuple[int, int]:
        moves = wheel.moves
        fired = len(list(wheel.one_turn(now, 40)))
        return wheel.moves - moves, fired

    moved = [moved_and_fired_at(now)[0] for now in (3999, 4000, 4001, 4499, 4500, 4501, 4999)]
    assert moved == [0, 10, 10, 10, 40, 40, 40]
    caught_up = [moved_and_fired_at(now) for now in range(5000, 5010)]
    assert caught_up == [(40, 0)] * PATIENCE + [(20, 20)] * 2  # it has begun, so moving comes first


def test_a_wide_slot_that_was_emptied_in_time_needs_no_turn() -> None:
    wheel = WatchedWheel(wheel_size=10)
    wheel.remove(wheel.put("gone", 88))
    wheel.put("other", 500)
    assert not wheel.is_behind()
    assert wheel.all_turns(75) == []
    assert wheel.told == [("opened", 80), ("opened", 500), ("closed", 80)]


# Buckets


@in_portions
def test_full_buckets_change_nothing_of_the_order(portion: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_levels, "FULL", 4)
    wheel = WatchedWheel(wheel_size=10)
    names = itertools.count()
    for now in (0, 65, 70, 70.5, 79, 84, 87):
        assert wheel.all_turns(now, portion) == []
        for _ in range(11):
            wheel.put(next(names), 88, now)
    assert {len(bucket) for slot in wheel.slots() for bucket in slot.moved + slot.added} <= {1, 2, 3, 4}
    assert wheel.all_turns(88, portion) == list(range(77))


def test_no_bucket_grows_without_bound_whatever_joins_it() -> None:
    wheel = Wheel(1.0, 10)
    count = 2 * FULL + 10
    for name in range(count):
        wheel.add(Named(name), 88, 0)
    sizes: set[int] = set()
    for now in [70] * 20 + [80] * 20:
        wheel.begin_turn(8192)
        assert wheel.due(now) == []
        sizes |= {len(bucket) for slot in wheel.slots() for bucket in slot.moved + slot.added}
    assert wheel.moves == count
    assert max(sizes) == FULL


def test_whether_anything_waits_costs_no_look_at_every_empty_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = 0

    def look(slot: Slot) -> bool:
        nonlocal looks
        looks += 1
        return bool(len(slot))

    wheel = WatchedWheel(wheel_size=8192)
    wheel.put("waits", 9000)
    for name in range(2000):
        wheel.add(entry := Named(name), 5 + name, 0)
        wheel.remove(entry)
    monkeypatch.setattr(Slot, "__bool__", look)
    assert not wheel.is_empty()
    assert looks <= 2001
    looks = 0
    for turn in range(100):
        entry = Named("short")
        wheel.add(entry, 5 + 10 * turn, 0)
        wheel.remove(entry)
        assert not wheel.is_empty()
    assert looks <= 200
    wheel._check()


def test_a_slot_that_was_found_empty_is_found_again_when_something_joins_it() -> None:
    wheel = WatchedWheel()
    wheel.remove(wheel.put("first", 5))
    assert wheel.is_empty()
    wheel._check()
    assert wheel.last is wheel.never  # or the next entry would join it unseen
    entry = wheel.put("second", 5)
    assert not wheel.is_empty()
    assert wheel.told == [("opened", 5)]
    wheel.remove(entry)
    assert wheel.is_empty()


def test_thousands_of_empty_slots_after_a_stall_are_let_go_in_portions() -> None:
    wheel = WatchedWheel(wheel_size=1000)
    wheel.put("waits", 1500)
    for name in range(1000):
        entry = Named(name)
        wheel.add(entry, 5 + name, 0)
        wheel.remove(entry)
    closed = []
    while wheel.is_behind() or not closed:
        told = len(wheel.told)
        assert list(wheel.one_turn(1200, 100)) == []
        closed.append(len(wheel.told) - told)
    assert sum(closed) == 1000
    assert max(closed) <= 100


# Removing


def test_an_entry_can_be_removed_from_wherever_it_waits() -> None:
    wheel = WatchedWheel(wheel_size=10)
    entries = {name: wheel.put(name, name) for name in (5, 6, 55, 56, 555, 556, math.inf)}
    for size, name in zip((6, 5, 4, 3), (5, 55, 555, math.inf), strict=True):
        wheel.remove(entries[name])
        wheel._check()
        assert len(wheel) == size
    assert wheel.layout() == {(0, 6): [6], (1, 50): [56], (2, 500): [556]}
    assert [(tick, name) for tick in range(600) for name in wheel.all_turns(tick)] == [(6, 6), (56, 56), (556, 556)]


def test_an_entry_removed_by_one_that_fires_before_it_does_not_fire() -> None:
    wheel = WatchedWheel()
    entries = [wheel.put(name, 5) for name in range(6)]
    fired = []
    for name in wheel.one_turn(5):
        fired.append(name)
        if name in (0, 3):
            wheel.remove(entries[name + 1])  # type: ignore[operator]
    assert fired == [0, 2, 3, 5]


@pytest.mark.parametrize("removed", [slice(None), slice(0, 3), slice(5, None), slice(None, None, 2)])
def test_entries_removed_in_the_middle_of_a_cascade_are_gone(removed: slice) -> None:
    wheel = WatchedWheel(wheel_size=10)
    entries = [wheel.put(name, 88) for name in range(12)]
    assert list(wheel.one_turn(80, portion=3)) == []
    for entry in entries[removed]:
        wheel.remove(entry)
        wheel._check()
    gone = set(range(12)[removed])
    assert wheel.all_turns(80, portion=3) == []
    assert wheel.all_turns(88, portion=3) == [name for name in range(12) if name not in gone]
    assert len(wheel) == 0


def test_a_wheel_emptied_and_cleared_in_the_middle_of_a_cascade_goes_on_working() -> None:
    wheel = WatchedWheel(wheel_size=10)
    entries = [wheel.put(name, 88) for name in range(12)]
    assert list(wheel.one_turn(80, portion=3)) == []
    for entry in entries:
        wheel.remove(entry)
    if wheel.is_empty():
        wheel.clear()
        wheel._check()
    wheel.put("next", 88, now=80)
    assert wheel.all_turns(80, portion=3) == []
    assert wheel.all_turns(88, portion=3) == ["next"]


def test_the_owner_is_told_when_a_bucket_is_emptied_unless_it_knows_already() -> None:
    wheel = WatchedWheel()
    first, second, third = (wheel.put(name, when) for name, when in (("first", 5), ("second", 5), ("third", 7)))
    wheel.remove(first)
    assert wheel.told_emptied == 0
    wheel.remove(second)
    assert wheel.told_emptied == 1
    assert not wheel.is_empty()
    wheel.resting = True
    wheel.remove(third)
    assert wheel.told_emptied == 1
    assert wheel.is_empty()


def test_an_emptied_slot_stays_open_for_the_next_entry() -> None:
    wheel = WatchedWheel()
    for name in range(5):
        wheel.remove(wheel.put(name, 5))
    assert wheel.told == [("opened", 5)]
    assert wheel.all_turns(5) == []
    assert wheel.told == [("opened", 5), ("closed", 5)]


def test_clearing_closes_every_slot_and_leaves_what_never_fires() -> None:
    wheel = WatchedWheel(wheel_size=10)
    wheel.put("never", math.inf)
    for due_tick in (5, 55, 555):
        wheel.remove(wheel.put(due_tick, due_tick))
    assert wheel.is_empty()
    wheel.clear()
    wheel._check()
    assert sorted(wheel.told) == sorted((what, start) for start in (5, 50, 500) for what in ("opened", "closed"))
    assert not list(wheel.slots())
    assert len(wheel) == 1
    wheel.put("again", 5)
    assert wheel.all_turns(5) == ["again"]


# Time


@pytest.mark.parametrize("when", [math.inf, 1e300, 1e19, float(MAX_TICK)])
def test_an_entry_too_far_away_to_fire_waits_in_no_bucket_that_anyone_is_woken_for(when: float) -> None:
    wheel = WatchedWheel()
    entry = wheel.put("never", when)
    assert (len(wheel), wheel.is_empty(), wheel.told, wheel.layout()) == (1, True, [], {})
    assert entry in wheel.never
    assert wheel.all_turns(1e9) == []
    wheel.remove(entry)
    assert len(wheel) == 0


@at_any_time
@pytest.mark.parametrize("late", [0, 1, 1e6, math.inf])
def test_a_deadline_in_the_past_is_due_at_once(start: int, late: float) -> None:
    wheel = WatchedWheel()
    wheel.put("late", start - late, now=start)
    assert wheel.all_turns(start) == ["late"]


@pytest.mark.parametrize("tick", [0.001, 0.01, 0.25, 2.5, 1 / 3])
@at_any_time
def test_an_entry_fires_between_its_deadline_and_one_tick_later(tick: float, start: int) -> None:
    randomly = random.Random(1)
    wheel = WatchedWheel(tick, wheel_size=4)
    whens = [start + randomly.random() * 100 * tick for _ in range(100)] + [
        wheel.clock.instant(wheel.clock.tick_at(start) + step) for step in range(100)
    ]
    for when in whens:
        wheel.put(when, when, now=start)
    hair = 4 * math.ulp(float(start)) + 1e-12
    for half_tick in range(210):
        now = start + half_tick * tick / 2
        for when in wheel.all_turns(now):
            assert isinstance(when, float)
            assert when - hair <= now <= when + 1.5 * tick + hair
    assert len(wheel) == 0


def test_time_that_is_told_to_go_back_is_taken_to_stand_still() -> None:
    wheel = WatchedWheel()
    wheel.put("first", 9)
    assert wheel.all_turns(8) == []
    wheel.put("second", 9, now=3)
    assert wheel.all_turns(3) == []
    assert wheel.tick_now == 8
    assert wheel.all_turns(9) == ["first", "second"]


def test_a_deadline_is_never_nan_and_nothing_changes() -> None:
    wheel = WatchedWheel()
    with pytest.raises(ValueError, match="NaN"):
        wheel.put("never", math.nan)
    assert (len(wheel), wheel.told) == (0, [])


# Arguments


@pytest.mark.parametrize("wheel_size", [1, 0, -5])
def test_a_wheel_has_at_least_two_buckets(wheel_size: int) -> None:
    with pytest.raises(ValueError, match=f"wheel_size must be at least 2, not {wheel_size}"):
        Wheel(1.0, wheel_size)


@pytest.mark.parametrize("wheel_size", [2.5, "10", None])
def test_the_size_of_a_wheel_is_an_integer(wheel_size: object) -> None:
    with pytest.raises(TypeError):
        Wheel(1.0, wheel_size)  # type: ignore[arg-type]


def test_an_entry_says_that_it_has_nothing_to_do_and_a_slot_what_it_holds() -> None:
    wheel = WatchedWheel(wheel_size=10)
    entry = wheel.put("one", 88)
    with pytest.raises(TypeError, match="Named has nothing to do when it expires"):
        entry._wheel_due()
    (slot,) = wheel.slots()
    assert repr(slot) == "<Slot [80, 90) of 1>"
    assert slot in wheel


@pytest.mark.parametrize("size", [2, 3])
def test_what_a_stall_finds_half_moved_still_fires_in_the_order_in_which_it_came(size: int) -> None:
    last, names = size**3 + size**2 + size + 1, list(range(7))
    for begin in range(last):  # of the stall
        wheel = WatchedWheel(wheel_size=size)
        for name in names:
            wheel.put(name, last)
        for tick in range(begin + 1):
            assert list(wheel.one_turn(tick, portion=3)) == []  # a portion that ends half way
        wheel.put(7, last, now=begin)
        assert wheel.all_turns(last + 100, portion=4) == [*names, 7], begin
