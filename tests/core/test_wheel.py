"""`TimingWheel` alone: no loop, time is an argument, and a tick is usually a second."""

import math
import random
from collections.abc import Callable, Iterator

import pytest
from invariants import check

from purgatory._core.wheel import Bucket, TimerEntry, TimingWheel

STARTS = [0, 20_000_000, 1_000_000_000]

at_any_time = pytest.mark.parametrize("start", STARTS)
with_any_budget = pytest.mark.parametrize("budget", [2, 3, 512])


class Named(TimerEntry):
    __slots__ = ("name",)

    def __init__(self, name: object) -> None:
        self.name = name
        self._timer_bucket = None


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
        check(self)
        return entry

    def one_iteration(self, now: float, budget: int = 512) -> Iterator[object]:
        """One iteration of work: the names of the due entries, each requested after the previous
        one was handled."""
        self.begin_iteration(budget, now)
        while (entry := self.next_due(now)) is not None:
            assert isinstance(entry, Named) and entry._timer_bucket is None
            assert entry._timer_deadline <= now
            check(self)
            yield entry.name
        check(self)

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
                entry.name for entry in bucket.entries() if isinstance(entry, Named)
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
def test_level_ends_with_next_bucket_of_wider_level(now: int) -> None:
    wheel = WatchedWheel(wheel_size=20)
    depths = {now: 0, 39: 0, 40: 1, 799: 1, 800: 2, 15_999: 2, 16_000: 3}
    for due_tick in depths:
        wheel.put(due_tick, due_tick, now)
    assert {names[0]: depth for (depth, _), names in wheel.layout().items()} == depths
    assert [level.interval for level in wheel.levels] == [20, 400, 8000, 160_000]


# Budgets


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


# Moving ahead


Meddle = Callable[[WatchedWheel, list[Named], random.Random], None]


def leave_alone(wheel: WatchedWheel, entries: list[Named], randomly: random.Random) -> None:
    pass


def cancel_and_postpone_a_few(
    wheel: WatchedWheel, entries: list[Named], randomly: random.Random
) -> None:
    for entry in randomly.sample(entries, 2):
        if entry._timer_bucket is not None:
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
    check(wheel)
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
        check(wheel)
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
