"""`TimingWheel` alone: no loop, time is an argument, and a tick is usually a second."""

import itertools
import math
import random
from collections.abc import Callable, Iterator
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest

from purgatory._core import buckets as buckets_module
from purgatory._core import wheel as wheel_module
from purgatory._core.buckets import CHUNK_CAPACITY, Bucket, TimerEntry
from purgatory._core.clock import MAX_TICK
from purgatory._core.wheel import DEFAULT_WHEEL_SIZE, TimingWheel

STARTS = [0, 20_000_000, 1_000_000_000]

at_any_time = pytest.mark.parametrize("start", STARTS)
with_any_budget = pytest.mark.parametrize("budget", [2, 3, 512])


class Named(TimerEntry):
    __slots__ = ("name",)

    def __init__(self, name: object) -> None:
        self.name = name
        self._timer_chunk = None


class WatchedWheel(TimingWheel):
    """Records its notifications, and acts on them like an owner.
    Attributes:
        armed: the starts of the buckets that were to be armed.
        times_emptied: number of notifications of an emptied chunk.
    """

    def __init__(self, tick: float = 1.0, wheel_size: int = 10) -> None:
        self.armed: list[int] = []
        self.times_emptied = 0
        super().__init__(tick, wheel_size, self.note_armed, self.note_emptied)

    def note_armed(self, bucket: Bucket) -> None:
        assert not bucket and not self.takes(bucket)
        self.armed.append(bucket.start_tick)

    def note_emptied(self) -> None:
        self.times_emptied += 1

    def put(self, name: object, when: float, now: float = 0.0) -> Named:
        entry = Named(name)
        self.add(entry, when, now)
        self._check()
        return entry

    def one_iteration(self, now: float, budget: int = 512) -> Iterator[object]:
        """One iteration of work: the names of the due entries, each requested after the previous
        one was handled."""
        self.begin_iteration(budget, now)
        while (entry := self.next_due(now)) is not None:
            assert isinstance(entry, Named) and entry._timer_chunk is None
            assert entry._timer_deadline <= now
            self._check()
            yield entry.name
        self._check()

    def all_due(self, now: float, budget: int = 512) -> list[object]:
        """All due entries, over any number of iterations."""
        due = list(self.one_iteration(now, budget))
        while self.has_overdue():
            due += self.one_iteration(now, budget)
        return due

    def layout(self) -> dict[tuple[int, int], list[object]]:
        """The level's depth and the start of each bucket that is not empty, and the names in it."""
        return {
            (bucket.level.depth, bucket.start_tick): [
                entry.name
                for chunk in bucket.chunks()
                for entry in chunk
                if isinstance(entry, Named)
            ]
            for bucket in self.buckets()
            if bucket
        }


# Buckets, levels, cascades


@at_any_time
def test_worked_example_cascades_as_written(start: int) -> None:
    wheel = WatchedWheel(wheel_size=10)
    for name in (9, 88, 222, 520, 521, 522):
        wheel.put(name, start + name, now=start)

    def layout_at(tick: int) -> dict[tuple[int, int], list[object]]:
        assert wheel.all_due(start + tick - 0.001) == []
        due = wheel.all_due(start + tick)
        assert due == ([tick] if tick in (9, 88, 222, 520, 521, 522) else [])
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
def test_level_ends_with_next_bucket_of_wider_level(
    now: int,
) -> None:
    wheel = WatchedWheel(wheel_size=20)
    depths = {now: 0, 39: 0, 40: 1, 799: 1, 800: 2, 15_999: 2, 16_000: 3}
    for due_tick in depths:
        wheel.put(due_tick, due_tick, now)
    assert {names[0]: depth for (depth, _), names in wheel.layout().items()} == depths
    assert [level.interval for level in wheel.levels] == [20, 400, 8000, 160_000]


def test_wider_levels_are_created_only_when_needed() -> None:
    wheel = WatchedWheel(wheel_size=10)
    for due_tick, levels in [(9, 2), (99, 2), (15, 2), (999_999, 6), (MAX_TICK, 6), (0, 6)]:
        wheel.put(due_tick, due_tick)
        assert len(wheel.levels) == levels


@pytest.mark.parametrize(
    ("wheel_size", "start"),
    [
        (2, 99),
        (2, 1e9 + 5),
        (10, 0),
        (10, 7),
        (10, 99),
        (20, 2e7 - 1),
        (DEFAULT_WHEEL_SIZE, 7),
        (DEFAULT_WHEEL_SIZE, 2e7 - 1),
    ],
)
def test_overflowing_entry_is_due_at_its_exact_tick(wheel_size: int, start: float) -> None:
    borders = [wheel_size**depth for depth in range(1, 5) if wheel_size**depth <= 8000]
    delays = sorted({border + step for border in borders for step in (-1, 0, 1)} | {3, 5, 2999})
    wheel = WatchedWheel(wheel_size=wheel_size)
    for delay in delays:
        wheel.put(delay, start + delay, now=start)
    due = {}
    for tick in range(delays[-1] + 2):
        for name in wheel.all_due(start + tick - 0.001) + wheel.all_due(start + tick):
            due[name] = tick
    assert due == {delay: delay for delay in delays}
    assert wheel.size == 0


def test_entry_cascades_once_per_level() -> None:
    wheel = WatchedWheel(wheel_size=10)
    wheel.put("far", 12_345)
    for tick in range(12_346):
        assert list(wheel.one_iteration(tick)) == (["far"] if tick == 12_345 else [])
    assert wheel.armed == [12_000, 12_300, 12_340, 12_345]
    assert wheel.moves == 3


def test_bucket_is_armed_once_and_closes_when_due() -> None:
    wheel = WatchedWheel()
    for name in range(100):
        wheel.put(name, 5)
    [bucket] = wheel.buckets()
    assert wheel.armed == [5] and wheel.takes(bucket)
    assert wheel.all_due(5) == list(range(100))
    assert wheel.armed == [5] and not wheel.takes(bucket) and not [*wheel.buckets()]


def test_emptied_bucket_stays_open() -> None:
    wheel = WatchedWheel()
    for name in range(5):
        wheel.remove(wheel.put(name, 5))
    assert wheel.armed == [5]
    assert wheel.all_due(5) == []
    assert not [*wheel.buckets()]


@pytest.mark.parametrize("when", [5, 55, 5555])
def test_failed_arming_changes_nothing(when: float) -> None:
    def refuse(bucket: Bucket) -> None:
        raise ZeroDivisionError

    wheel = TimingWheel(1.0, 10, refuse)
    entry = Named("refused")
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            wheel.add(entry, when, 0)
        wheel._check()
        assert (wheel.size, [*wheel.buckets()], entry._timer_chunk) == (0, [], None)


def test_failed_arming_leaves_rescheduled_entry_in_place() -> None:
    def arm(bucket: Bucket) -> None:
        if bucket.start_tick < 8:
            raise ZeroDivisionError

    wheel = TimingWheel(1.0, 10, arm)
    wheel.add(entry := Named("stays"), 8, 0)
    with pytest.raises(ZeroDivisionError):
        wheel.reschedule(entry, 7, 0)
    wheel._check()
    assert (wheel.size, entry._timer_deadline) == (1, 8)
    wheel.begin_iteration(512, 8)
    assert wheel.next_due(8) is entry


# Order


@with_any_budget
def test_entries_of_one_bucket_come_in_order(budget: int) -> None:
    wheel = WatchedWheel()
    names = itertools.count()
    for now in (0, 1, 1.5, 3, 4):
        assert wheel.all_due(now, budget) == []
        for _ in range(9):
            wheel.put(next(names), 5, now)
    assert wheel.all_due(5, budget) == list(range(45))


@pytest.mark.parametrize(("seed", "budget"), [(0, 2), (1, 3), (2, 512), (3, 2)])
def test_random_entries_are_due_in_their_own_tick(seed: int, budget: int) -> None:
    randomly = random.Random(seed)
    wheel = WatchedWheel(wheel_size=7)
    due_ticks = [int(randomly.random() ** 3 * 2000) for _ in range(300)]
    for arrival, due_tick in enumerate(due_ticks):
        wheel.add(Named((due_tick, arrival)), due_tick, 0.0)
    wheel._check()
    due: list[object] = []
    for tick in range(2000):
        for due_tick, arrival in wheel.all_due(tick, budget):  # type: ignore[misc]
            assert due_tick == tick
            due.append((due_tick, arrival))
    assert sorted(due) == sorted(zip(due_ticks, itertools.count(), strict=False))  # type: ignore[type-var]


@with_any_budget
@at_any_time
def test_stall_expires_overdue_entries_of_all_levels_once(start: int, budget: int) -> None:
    wheel = WatchedWheel(wheel_size=10)
    delays = [88, 82, 9, 521, 222, 520, 515, 9, 88, 88, 4000, 999, 1001, 5000]
    for arrival, delay in enumerate(delays):
        wheel.put((delay, arrival), start + delay, now=start)
    due = sorted(zip(delays, itertools.count(), strict=False))[:-1]
    assert sorted(wheel.all_due(start + 4321, budget)) == due  # type: ignore[type-var]
    assert [name for names in wheel.layout().values() for name in names] == [(5000, 13)]


@pytest.mark.parametrize("size", [2, 3])
def test_half_cascaded_entries_are_due_after_a_stall(size: int) -> None:
    last, names = size**3 + size**2 + size + 1, list(range(7))
    for begin in range(last):  # start of the stall
        wheel = WatchedWheel(wheel_size=size)
        for name in names:
            wheel.put(name, last)
        for tick in range(begin + 1):
            assert list(wheel.one_iteration(tick, budget=6)) == []  # ends half way
        wheel.put(7, last, now=begin)
        assert sorted(wheel.all_due(last + 100, budget=8)) == [*names, 7], begin  # type: ignore[type-var]


@pytest.mark.parametrize("wheel_size", [2, 3, 8])
def test_repeated_stalls_during_cascades_lose_nothing(wheel_size: int) -> None:
    for seed in range(5):
        randomly = random.Random(seed)
        wheel, now, count, due = WatchedWheel(wheel_size=wheel_size), 0.0, 0, list[object]()
        for _ in range(30):
            for _ in range(20):
                wheel.add(Named(count), now + randomly.random() * 4 * wheel_size**3, now)
                count += 1
            due += wheel.one_iteration(now, budget=8)
            now += randomly.choice([0, 1, wheel_size, 5 * wheel_size**2]) * randomly.random()
        assert sorted(due + wheel.all_due(now + 1000 * wheel_size**3, budget=8)) == list(
            range(count)
        )  # type: ignore[type-var]
        assert wheel.size == 0


# Budgets


@pytest.mark.parametrize("budget", [2, 7, 100])
def test_iteration_keeps_to_its_budget(budget: int) -> None:
    wheel = WatchedWheel(wheel_size=10)
    for name in range(200):
        wheel.put(name, 520 + name % 3)
    due: list[object] = []
    iterations = 0
    for now in (500, 520, 521, 522):
        while True:
            moves = wheel.moves
            some = list(wheel.one_iteration(now, budget))
            assert len(some) + wheel.moves - moves <= budget
            due += some
            iterations += 1
            if not wheel.has_overdue():
                break
    assert sorted(due) == list(range(200))  # type: ignore[type-var]
    assert iterations >= 3 * 200 / budget


def test_budget_splits_between_cascading_and_earlier_ticks() -> None:
    wheel = WatchedWheel(wheel_size=1000)
    for number in range(1000):
        wheel.add(Named(number), 5000, 0)
        wheel.add(Named(number), 4100 + number // 200, 0)
    wheel.all_due(3999)

    def moved_and_due_at(now: int) -> tuple[int, int]:
        moves = wheel.moves
        due = len(list(wheel.one_iteration(now, 40)))
        return wheel.moves - moves, due

    assert [moved_and_due_at(now) for now in (4000, 4001)] == [(40, 0), (40, 0)]
    split = [moved_and_due_at(now) for now in range(4110, 4120)]
    assert all(moved == 20 for moved, _ in split)
    assert sum(due for _, due in split) >= 10 * 20 - 10  # a due bucket costs a step
    # The tick waits while its own bucket cascades, which then has the whole budget.
    waiting = [moved_and_due_at(5000) for _ in range(100)]
    assert [due for moved, due in waiting if moved == 40] == [0] * sum(
        moved == 40 for moved, _ in waiting
    )
    assert wheel.size == 0


def test_expiry_alone_uses_the_whole_budget() -> None:
    wheel = WatchedWheel()
    for name in range(100):
        wheel.put(name, 5)
    assert [len(list(wheel.one_iteration(5, 40))) for _ in range(3)] == [
        39,
        40,
        21,
    ]  # and a step for the bucket


def test_expensive_entry_shortens_its_iteration() -> None:
    wheel = WatchedWheel()
    for name in range(100):
        wheel.put(name, 5)
    due = []
    for name in wheel.one_iteration(5, 41):
        due.append(name)
        wheel.spend(3)
    assert due == list(range(10))
    for name in wheel.one_iteration(5, 41):
        due.append(name)
        wheel.spend(1000)
    assert due == list(range(11)) and wheel.has_overdue()


def test_entry_added_to_due_tick_waits_an_iteration() -> None:
    wheel = WatchedWheel()
    wheel.put(0, 5)
    for number in range(10):
        for name in wheel.one_iteration(5):
            assert name == number
            wheel.put(number + 1, 5, now=5)
        assert wheel.has_overdue()
    assert wheel.size == 1


def test_empty_overdue_buckets_close_over_several_iterations() -> None:
    wheel = WatchedWheel(wheel_size=1000)
    wheel.put("waits", 1500)
    for name in range(1000):
        entry = Named(name)
        wheel.add(entry, 5 + name, 0)
        wheel.remove(entry)
    closed = []
    while wheel.has_overdue() or not closed:
        before = len([*wheel.buckets()])
        assert list(wheel.one_iteration(1200, 100)) == []
        closed.append(before - len([*wheel.buckets()]))
    assert sum(closed) == 1000
    assert max(closed) <= 100


def test_empty_wide_bucket_cascades_without_moves() -> None:
    wheel = WatchedWheel(wheel_size=10)
    wheel.remove(wheel.put("gone", 88))
    wheel.put("other", 500)
    assert not wheel.has_overdue()
    assert wheel.all_due(75) == []
    assert wheel.armed == [80, 500] and wheel.moves == 0
    assert [bucket.start_tick for bucket in wheel.buckets()] == [500]


# Postponing and rescheduling


@with_any_budget
def test_postponed_entry_moves_to_its_new_tick(budget: int) -> None:
    wheel = WatchedWheel()
    entries = [wheel.put(name, 5) for name in range(10)]
    for entry in entries[:5]:
        entry._timer_deadline = 7.0
    entries[5]._timer_deadline = math.inf
    assert wheel.all_due(5, budget) == [6, 7, 8, 9]
    assert wheel.moves == 6
    assert wheel.layout() == {(0, 7): list(range(5))}
    assert wheel.size == 6
    assert wheel.all_due(6, budget) == []
    assert wheel.all_due(7, budget) == list(range(5))


def test_postponed_entry_stays_until_old_bucket_is_due() -> None:
    wheel = WatchedWheel(wheel_size=10)
    entry = wheel.put("postponed", 88)
    wheel.reschedule(entry, 345.0, now=3)
    wheel._check()
    assert wheel.armed == [80]
    assert wheel.all_due(69) == []
    assert wheel.moves == 0
    assert wheel.all_due(70) == []
    assert wheel.moves == 1
    assert wheel.layout() == {(2, 300): ["postponed"]}
    assert [(tick, name) for tick in range(70, 400) for name in wheel.all_due(tick)] == [
        (345, "postponed")
    ]


@pytest.mark.parametrize(
    ("first", "then"),
    [
        (6, -math.inf),
        (6, 2),
        (6, 5),
        (66, -1),
        (66, 3),
        (66, 42),
        (666, 42),
        (math.inf, -1),
        (math.inf, 42),
    ],
)
def test_hastened_entry_is_due_once_at_new_tick(first: float, then: float) -> None:
    wheel = WatchedWheel()
    entry = wheel.put("hastened", first)
    wheel.reschedule(entry, then, now=2)
    wheel._check()
    assert (wheel.size, entry._timer_deadline) == (1, then)
    due = [tick for tick in range(2, 700) for _ in wheel.all_due(tick)]
    assert due == [max(then, 2)]


def test_draining_entry_can_be_rescheduled_both_ways() -> None:
    for now in (80, 88):
        wheel = WatchedWheel(wheel_size=10)
        entries = [wheel.put(name, 88) for name in range(20)]
        if now == 88:
            assert wheel.all_due(80) == []
        begun = list(wheel.one_iteration(now, budget=6))  # some entries
        assert wheel.has_overdue()
        wheel.reschedule(entries[18], 200, now)
        wheel.reschedule(entries[19], 85, now)
        wheel._check()
        rest = [(tick, name) for tick in range(now, 250) for name in wheel.all_due(tick, budget=6)]
        assert (200, 18) in rest and (max(85, now), 19) in rest
        assert sorted([*begun, *(name for _, name in rest)]) == list(range(20))  # type: ignore[type-var]


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        (math.nan, ValueError),
        (Decimal("NaN"), ValueError),
        (10**400, ValueError),
        (Fraction(10**400), ValueError),
        ("5", TypeError),
        (None, TypeError),
        ([5], TypeError),
    ],
    ids=lambda value: repr(value)[:12] if value != 10**400 else "huge",
)
def test_deadline_that_is_no_float_changes_nothing(bad: Any, error: type[Exception]) -> None:
    wheel = WatchedWheel()
    with pytest.raises(error, match="when "):
        wheel.add(Named("never"), bad, 0.0)
    assert (wheel.size, wheel.armed) == (0, [])
    entry = wheel.put("stays", 5)
    with pytest.raises(error, match="when "):
        wheel.reschedule(entry, bad, 0.0)
    wheel._check()
    assert wheel.all_due(5) == ["stays"]


class Odd(float):
    """A subclass may have any comparison."""

    def __le__(self, other: object) -> bool:
        raise ZeroDivisionError


@pytest.mark.parametrize("when", [7, True, Decimal(7), Fraction(7), Odd(7)], ids=repr)
def test_deadline_of_any_number_is_stored_as_float(when: Any) -> None:
    wheel = WatchedWheel()
    added, postponed, hastened = Named("added"), wheel.put("postponed", 0.5), wheel.put("late", 99)
    wheel.add(added, when, 0.0)
    wheel.reschedule(postponed, when, 0.0)
    wheel.reschedule(hastened, when, 0.0)
    assert {type(each._timer_deadline) for each in (added, postponed, hastened)} == {float}
    wheel._check()
    assert wheel.all_due(int(when) - 0.5) == []
    assert sorted(map(str, wheel.all_due(7))) == ["added", "late", "postponed"]


# Moving ahead


Meddle = Callable[[WatchedWheel, list[Named], random.Random], None]


def leave_alone(wheel: WatchedWheel, entries: list[Named], randomly: random.Random) -> None:
    pass


def cancel_and_postpone_a_few(
    wheel: WatchedWheel, entries: list[Named], randomly: random.Random
) -> None:
    for entry in randomly.sample(entries, 2):
        if entry._timer_chunk is not None:
            if randomly.random() < 0.5:
                wheel.remove(entry)
            else:
                entry._timer_deadline += randomly.choice([1, 50, 3000])


class Lateness:
    """Runs an iteration of work at every tick, and records by how many ticks each entry is late.
    In each tick, a short entry is added beside the long ones.
    """

    SHORT = 20

    def __init__(self, wheel: WatchedWheel, budget: int) -> None:
        self.wheel = wheel
        self.budget = budget
        self.by_name: dict[object, float] = {}

    def run(self, ticks: range) -> None:
        wheel = self.wheel
        for now in ticks:
            wheel.add(Named(now + self.SHORT), now + self.SHORT, now)
            moves, due = wheel.moves, 0
            wheel.begin_iteration(self.budget, now)
            while (entry := wheel.next_due(now)) is not None:
                assert isinstance(entry, Named)
                due += 1
                self.by_name[entry.name] = now - entry._timer_deadline
            assert due + wheel.moves - moves <= self.budget


@pytest.mark.parametrize("meddle", [leave_alone, cancel_and_postpone_a_few])
@pytest.mark.parametrize(
    ("order", "wheel_size"), [("in order", 8), ("reversed", 32), ("random", 8), ("random", 32)]
)
def test_large_wide_bucket_delays_no_entry(wheel_size: int, order: str, meddle: Meddle) -> None:
    randomly = random.Random(wheel_size)
    wheel = WatchedWheel(wheel_size=wheel_size)
    start = 4 * 1024 if wheel_size == 32 else 4 * 4096
    whens = [start + number * 1024 // 3000 for number in range(3000)]
    if order != "in order":
        whens.reverse() if order == "reversed" else randomly.shuffle(whens)
    entries = [Named((when, arrival)) for arrival, when in enumerate(whens)]
    for entry, when in zip(entries, whens, strict=True):
        wheel.add(entry, when, 0)
    assert len([bucket for bucket in wheel.buckets() if bucket]) == 1
    late = Lateness(wheel, budget=32)
    for now in range(start + 1024 + 3100):
        late.run(range(now, now + 1))
        if now < start:
            meddle(wheel, entries, randomly)
    wheel._check()
    assert min(late.by_name.values()) >= 0 and max(late.by_name.values()) <= 0
    if meddle is leave_alone:
        assert wheel.size == Lateness.SHORT
        assert sum(isinstance(name, tuple) for name in late.by_name) == 3000


@pytest.mark.parametrize("budget", [1, 7, 64, 512])
@pytest.mark.parametrize("wheel_size", [2, 3, 20, 512])
@pytest.mark.parametrize("tick", [1.0, 0.001])
def test_ticks_expire_in_order_after_any_stall(wheel_size: int, budget: int, tick: float) -> None:
    randomly = random.Random(f"{wheel_size} {budget}")
    wheel, now, ticks = WatchedWheel(tick, wheel_size), 7.0 * tick, list[int]()
    for _ in range(60):
        for _ in range(20):
            when = now + tick * randomly.choice([0.5, 1.5, 13, 300, 5000]) * randomly.random()
            wheel.add(Named(None), max(when, math.nextafter(now, math.inf)), now)
        now += tick * randomly.choice([0.1, 1, 13, 200, 3000]) * randomly.random()
        for _ in range(randomly.choice([1, 2, 100])):
            wheel.begin_iteration(budget, now)
            while (entry := wheel.next_due(now)) is not None:
                ticks.append(wheel.clock.due_tick(entry._timer_deadline))
        wheel._check()
    while wheel.size:
        now += tick * 100
        wheel.begin_iteration(budget, now)
        while (entry := wheel.next_due(now)) is not None:
            ticks.append(wheel.clock.due_tick(entry._timer_deadline))
    assert len(ticks) == 60 * 20
    assert ticks == sorted(ticks)


def test_overdue_entries_keep_their_own_ticks() -> None:
    wheel = WatchedWheel()
    wheel.put("reaches", 50)
    assert wheel.all_due(50) == ["reaches"]
    for when in (49, 12, 31.5, 50, 12):
        wheel.put(when, when, now=50)
    assert wheel.all_due(50) == [12, 12, 31.5, 49, 50]


# Chunks


@with_any_budget
def test_full_chunks_keep_order_and_due_ticks(budget: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (buckets_module, wheel_module):
        monkeypatch.setattr(module, "CHUNK_CAPACITY", 4)
    wheel = WatchedWheel(wheel_size=10)
    names = itertools.count()
    for now in (0, 65, 70, 70.5, 79):
        assert wheel.all_due(now, budget) == []
        for _ in range(11):
            wheel.put(next(names), 88, now)
    for name in range(30):
        wheel.put(("own", name), 85, now=79)
    assert {len(chunk) for bucket in wheel.buckets() for chunk in bucket.chunks()} <= {1, 2, 3, 4}
    assert wheel.all_due(85, budget) == [("own", name) for name in range(30)]
    assert sorted(wheel.all_due(88, budget)) == list(range(55))  # type: ignore[type-var]


def test_chunk_size_is_bounded() -> None:
    wheel = TimingWheel(1.0, 10, bool)
    count = 2 * CHUNK_CAPACITY + 10
    for name in range(count):
        wheel.add(Named(name), 88, 0)
    sizes: set[int] = set()
    while wheel.moves < count:
        wheel.begin_iteration(8192, 70)
        assert wheel.next_due(70) is None
        sizes |= {len(chunk) for bucket in wheel.buckets() for chunk in bucket.chunks()}
    assert max(sizes) == CHUNK_CAPACITY
    wheel._check()


@pytest.mark.parametrize("when", [5, 88, 5555, math.inf])
def test_emptied_full_chunks_are_dropped(when: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dictionary keeps its peak memory; a bucket may stay open for days."""
    for module in (buckets_module, wheel_module):
        monkeypatch.setattr(module, "CHUNK_CAPACITY", 4)
    wheel = WatchedWheel()
    for _ in range(50):
        entries = [wheel.put(name, when) for name in range(9)]
        for entry in entries:
            wheel.remove(entry)
    chunks = [
        chunk for bucket in (wheel._beyond_horizon, *wheel.buckets()) for chunk in bucket.chunks()
    ]
    assert len(chunks) <= 6


# Removing


def test_entry_can_be_removed_from_every_level() -> None:
    wheel = WatchedWheel(wheel_size=10)
    entries = {name: wheel.put(name, name) for name in (5, 6, 55, 56, 555, 556, math.inf)}
    for size, name in zip((6, 5, 4, 3), (5, 55, 555, math.inf), strict=True):
        wheel.remove(entries[name])
        wheel._check()
        assert wheel.size == size and entries[name]._timer_chunk is None
    assert wheel.layout() == {(0, 6): [6], (1, 50): [56], (2, 500): [556]}
    assert [(tick, name) for tick in range(600) for name in wheel.all_due(tick)] == [
        (6, 6),
        (56, 56),
        (556, 556),
    ]


def test_entry_removed_during_expiry_is_not_due() -> None:
    wheel = WatchedWheel()
    entries = [wheel.put(name, 5) for name in range(6)]
    due = []
    for name in wheel.one_iteration(5):
        due.append(name)
        if name in (0, 3):
            wheel.remove(entries[name + 1])  # type: ignore[operator]
    assert due == [0, 2, 3, 5]


@pytest.mark.parametrize(
    "removed", [slice(None), slice(0, 3), slice(5, None), slice(None, None, 2)]
)
def test_entries_removed_during_cascade_are_not_due(removed: slice) -> None:
    wheel = WatchedWheel(wheel_size=10)
    entries = [wheel.put(name, 88) for name in range(12)]
    assert list(wheel.one_iteration(80, budget=3)) == []
    assert wheel.moves == 3
    for entry in entries[removed]:
        wheel.remove(entry)
        wheel._check()
    gone = set(range(12)[removed])
    assert wheel.all_due(80, budget=6) == []
    assert sorted(wheel.all_due(88, budget=6)) == [name for name in range(12) if name not in gone]  # type: ignore[type-var]
    assert wheel.size == 0


def test_wheel_works_after_clear_during_cascade() -> None:
    wheel = WatchedWheel(wheel_size=10)
    entries = [wheel.put(name, 88) for name in range(12)]
    assert list(wheel.one_iteration(80, budget=6)) == []
    for entry in entries:
        wheel.remove(entry)
    assert wheel.is_empty()
    wheel.forget_buckets()
    wheel._check()
    wheel.put("next", 88, now=80)
    assert wheel.all_due(80, budget=6) == []
    assert wheel.all_due(88, budget=6) == ["next"]


def test_owner_is_notified_of_emptied_chunk_if_wanted() -> None:
    wheel = WatchedWheel()
    first, second, third = (
        wheel.put(name, when) for name, when in (("first", 5), ("second", 5), ("third", 77))
    )
    assert not wheel.is_empty()
    wheel.remove(first)
    assert wheel.times_emptied == 0
    wheel.remove(second)
    assert wheel.times_emptied == 1 and not wheel.is_empty()
    wheel.notify_empty = False
    wheel.remove(third)
    assert wheel.times_emptied == 1 and wheel.is_empty()
    wheel.notify_empty = True
    wheel.put("fourth", 5)
    assert wheel.all_due(5) == ["fourth"]
    assert wheel.times_emptied == 2 and wheel.is_empty()


def test_wheel_is_not_empty_while_entries_drain() -> None:
    wheel = WatchedWheel(wheel_size=10)
    for name in range(20):
        wheel.put(name, 88)
    wheel.begin_iteration(6, 70)
    wheel._check()
    assert wheel.moves == 3 and wheel.size == 20 and not wheel.is_empty()
    assert wheel.all_due(80) == []
    due = list(wheel.one_iteration(88, 6))
    assert len(due) > 0 and wheel.size == 20 - len(due) and not wheel.is_empty()
    assert sorted([*due, *wheel.all_due(88)]) == list(range(20))  # type: ignore[type-var]
    assert wheel.is_empty() and wheel.size == 0


def test_interrupted_iteration_loses_no_entry() -> None:
    interrupts = [1]

    def arm(bucket: Bucket) -> None:
        if bucket.level.depth == 0 and interrupts:
            interrupts.pop()
            raise KeyboardInterrupt

    wheel = TimingWheel(1.0, 10, arm)
    for name in range(20):
        wheel.add(Named(name), 88, 0)
    with pytest.raises(KeyboardInterrupt):  # in the middle of a cascade
        wheel.begin_iteration(100, 70)
    wheel._check()
    assert wheel.size == 20
    wheel.begin_iteration(100, 70)
    wheel._check()
    assert wheel.size == wheel.moves == 20
    for entry in [entry for bucket in wheel.buckets() for entry in bucket.chunk]:
        entry._timer_deadline = 95.0
    interrupts.append(1)
    wheel.begin_iteration(100, 88)
    with pytest.raises(KeyboardInterrupt):  # when a postponed entry is added again
        wheel.next_due(88)
    wheel._check()
    assert wheel.size == 20 and wheel.has_overdue()
    due = []
    for now in (88, 95):
        wheel.begin_iteration(100, now)
        while wheel.next_due(now) is not None:
            due.append(now)
    assert due == [95] * 20


@pytest.mark.parametrize("step", ["cascade", "expiry", "reschedule"])
def test_entry_removed_by_finalizer_is_not_moved(step: str) -> None:
    """Opening a bucket allocates, so it may run a finalizer; here `arm` acts like one."""
    victims: list[Named] = []

    def arm(bucket: Bucket) -> None:
        while victims:
            assert wheel.remove(victims.pop())

    wheel = TimingWheel(1.0, 10, arm)
    victim, other = Named("victim"), Named("other")
    for entry in (victim, other):
        wheel.add(entry, 88 if step == "cascade" else 8, 0)
    if step == "expiry":
        wheel.reschedule(victim, 50.0, 0)
    victims.append(victim)
    if step == "reschedule":
        wheel.reschedule(victim, 5.0, 0)
    wheel.begin_iteration(100, 70 if step == "cascade" else 8)
    assert wheel.next_due(70 if step == "cascade" else 8) is (None if step == "cascade" else other)
    assert not victims and victim._timer_chunk is None
    wheel._check()
    assert wheel.size == (1 if step == "cascade" else 0)


def test_removing_an_entry_twice_changes_nothing() -> None:
    wheel = WatchedWheel()
    entry, _ = wheel.put("removed", 5), wheel.put("stays", 5)
    assert [wheel.remove(entry) for _ in range(2)] == [True, False]
    wheel._check()
    assert wheel.all_due(5) == ["stays"]
    assert not wheel.remove(entry)


def test_clear_returns_entries_from_everywhere() -> None:
    wheel = WatchedWheel(wheel_size=10)
    entries = [wheel.put(name, name) for name in (5, 5.5, 55, 88, 87, 555, math.inf)]
    due = wheel.put("due", 5)
    begun = wheel.one_iteration(70, budget=6)  # leaves due entries, and a half cascade
    assert next(begun) == 5
    assert len(wheel.draining()) > 1
    assert {*wheel.clear()} == {*entries[1:], due}
    wheel._check()
    assert all(entry._timer_chunk is None for entry in [*entries, due])
    assert (wheel.size, [*wheel.buckets()], wheel.has_overdue()) == (0, [], False)
    assert wheel.clear() == []
    wheel.put("next", 88, now=70)
    assert wheel.all_due(88) == ["next"]


def test_wheel_without_buckets_arms_new_ones() -> None:
    wheel = WatchedWheel(wheel_size=10)
    for due_tick in (5, 55, 555):
        wheel.remove(wheel.put(due_tick, due_tick))
    open_ones = [*wheel.buckets()]
    assert [bucket.start_tick for bucket in open_ones] == [5, 50, 500]
    wheel.forget_buckets()
    wheel._check()
    assert not [*wheel.buckets()] and not any(wheel.takes(bucket) for bucket in open_ones)
    wheel.put("again", 5)
    assert wheel.armed == [5, 50, 500, 5]
    assert not wheel.takes(open_ones[0])  # a new bucket with the same number is a different one
    assert wheel.all_due(5) == ["again"]


# Time


@pytest.mark.parametrize("when", [math.inf, 1e300, 1e19, float(MAX_TICK)])
def test_entry_beyond_horizon_arms_no_bucket(
    when: float,
) -> None:
    wheel = WatchedWheel()
    entry = wheel.put("never", when)
    assert (wheel.size, wheel.armed, wheel.layout()) == (1, [], {})
    assert entry in wheel._beyond_horizon.chunk and wheel.is_empty()
    assert wheel.all_due(1e9) == []
    wheel.remove(entry)
    assert wheel.size == 0


@at_any_time
@pytest.mark.parametrize("late", [0, 1, 1e6, math.inf])
def test_past_deadline_is_due_at_once(start: int, late: float) -> None:
    wheel = WatchedWheel()
    wheel.put("late", start - late, now=start)
    assert wheel.all_due(start) == ["late"]


@at_any_time
@pytest.mark.parametrize("ago", [0.0, 1e-6, 0.25, 5.5])
def test_passed_instant_is_due_whatever_the_tick(start: int, ago: float) -> None:
    """This holds even if the bucket of its tick, rounded up, exists already."""
    wheel = WatchedWheel(wheel_size=10)
    now = start + 0.5
    wheel.put("ahead", now + 0.25, now)
    wheel.put("passed", now - ago, now)
    wheel.reschedule(wheel.put("hastened", now + 0.25, now), now - ago, now)
    postponed = wheel.put("postponed", now + 0.25, now)
    assert sorted(map(str, wheel.all_due(now))) == ["hastened", "passed"]
    wheel.reschedule(postponed, now + 0.28, now + 0.3)  # later than before, and passed as well
    assert wheel.all_due(now + 0.3) == ["postponed"]
    assert wheel.all_due(now + 0.499) == []
    assert wheel.all_due(start + 1) == ["ahead"]


@pytest.mark.parametrize("level", [1, 2])
def test_entry_that_passed_while_cascading_is_due(level: int) -> None:
    wheel = WatchedWheel(wheel_size=10)
    when = 8 * 10**level + 3.25
    wheel.put("late", when)
    assert wheel.all_due(when + 0.5) == []
    assert wheel.all_due(when + 0.75) == ["late"]  # when its tick begins


@pytest.mark.parametrize("tick", [0.001, 0.01, 0.25, 2.5, 1 / 3])
@at_any_time
def test_entry_is_due_within_one_tick(tick: float, start: int) -> None:
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
        for when in wheel.all_due(now):
            assert isinstance(when, float)
            assert when <= now <= when + 1.5 * tick + hair
    assert wheel.size == 0


def test_clock_that_goes_back_changes_no_tick() -> None:
    wheel = WatchedWheel()
    wheel.put("first", 9)
    assert wheel.all_due(8) == []
    wheel.put("second", 9, now=3)
    assert wheel.all_due(3) == []
    assert wheel.current_tick == 8
    assert wheel.all_due(9) == ["first", "second"]


@pytest.mark.parametrize("start", [1e9, 1000, -5])
def test_reset_wheel_works_with_another_clock(
    start: float,
) -> None:
    wheel = WatchedWheel()
    for now in (1000, start):
        for delay in (0, 5, 55, 555):
            wheel.put(now + delay, now + delay, now)
        assert sorted(wheel.all_due(now + 600)) == [now, now + 5, now + 55, now + 555]  # type: ignore[type-var]
        wheel.forget_buckets()
        wheel.reset_clock()
        wheel._check()
        assert not wheel.has_overdue()


# Arguments


@pytest.mark.parametrize("wheel_size", [1, 0, -5, 2**62 + 1, 10**400, 10**5000], ids=range(6))
def test_wheel_size_out_of_bounds_is_refused(wheel_size: int) -> None:
    with pytest.raises(
        ValueError, match="wheel_size must be between 2 and 4611686018427387904, got "
    ):
        TimingWheel(1.0, wheel_size, bool)


@pytest.mark.parametrize("wheel_size", [2, 2**62])
def test_extreme_wheel_sizes_work(wheel_size: int) -> None:
    wheel = WatchedWheel(wheel_size=wheel_size)
    for when in (1, 2, 9, 5000, 1e15):
        wheel.put(when, when)
    assert [wheel.all_due(now) for now in (1, 2, 8, 9, 4999, 5000)] == [
        [1],
        [2],
        [],
        [9],
        [],
        [5000],
    ]
    assert wheel.all_due(1e15) == [1e15]


@pytest.mark.parametrize("wheel_size", [2.5, "10", None])
def test_wheel_size_must_be_an_integer(wheel_size: object) -> None:
    with pytest.raises(TypeError):
        TimingWheel(1.0, wheel_size, bool)  # type: ignore[arg-type]


def test_bucket_repr_shows_interval_and_size() -> None:
    wheel = WatchedWheel(wheel_size=10)
    wheel.put("one", 88)
    (bucket,) = wheel.buckets()
    assert repr(bucket) == "<Bucket [80, 90) of 1>"
    assert wheel.takes(bucket)
    wheel.begin_iteration(512, 70)
    assert not wheel.takes(bucket)
