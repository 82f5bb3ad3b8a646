"""Silent inputs: which ticks they get, and that these never expire rows still to be read.

`Stream` is Spark's loop in a few lines: two inputs with rows that arrive after their event time,
batches of a limited size, a watermark that is the least of both, ticks that are rows like any
other, and kills after which the last batch is repeated.
"""

import json
import random
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, NamedTuple

import pytest
from helpers import THOROUGHNESS
from hypothesis import given, settings
from hypothesis import strategies as st
from orders import traffic
from pyspark.sql import Row
from shards import LABEL, Operation, Outcome, Signal, Stored, by_definition

from purgatory.pipeline.streaming._rows import NOTHING_DUE
from purgatory.pipeline.streaming._timekeeper import (
    INPUTS,
    OBSERVED_INPUTS,
    StreamTime,
    Timekeeper,
    metrics,
)

START = 1_767_268_800_000  # 2026-01-01 12:00 UTC, in milliseconds
SECOND = 1000
EVERYTHING = 10**9
DAY = 86_400 * SECOND
LONG = pytest.mark.timeout(1200)  # Hypothesis calls a timeout flaky
FOLDER = "hdfs://host/state%20of%20x/ticks"


def iso(at: int) -> str:
    return datetime.fromtimestamp(at / 1000, UTC).isoformat(timespec="milliseconds")


def source(name: str, start: int, end: int, latest: int | None = None) -> dict[str, Any]:
    """A source in Spark's progress, with offsets as JSON."""
    return {
        "description": f"FileStreamSource[hdfs://host/{name}]",
        "startOffset": json.dumps(start),
        "endOffset": json.dumps(end),
        "latestOffset": json.dumps(latest),
    }


def progress(
    at: int,
    operations: dict[str, Any],
    signals: dict[str, Any],
    counted: list[tuple[int, int | None]] | None = None,
    watermark: int = 0,
    due: int | None = None,
) -> dict[str, Any]:
    """Spark's progress of a trigger at an instant, with the number and the newest instant of the
    rows of each input; of one that found nothing if they are None."""
    observed = {}
    if counted is not None:
        observed = {
            OBSERVED_INPUTS[name]: Row(rows=count, newest=at)
            for name, (count, at) in zip(INPUTS, counted, strict=True)
        }
        observed["purgatory_outcomes"] = Row(registered=0, due_6=due)
    return {
        "timestamp": iso(at),
        "sources": [operations, source("state of x/ticks", 0, 0), signals],
        "observedMetrics": observed,
        "eventTime": {"watermark": iso(watermark)},
    }


READ, UNREAD = source("a", 1, 1), source("a", 1, 2)
NOW = START + 3600 * SECOND


def keeper(due: int | None = NOW - 200 * SECOND, idle: float | None = 60) -> Timekeeper:
    return Timekeeper(FOLDER, idle=idle, delay=10, due={LABEL: due})


def after(seconds: float) -> int:
    return NOW + round(seconds * SECOND)


@pytest.mark.parametrize(
    "ticks", [FOLDER, "state of x/ticks", "./ticks", r"hdfs://a/state\ of x/ticks"]
)
def test_source_of_ticks_is_found_by_its_folder(ticks):
    silent = Timekeeper(ticks, idle=60, delay=10, due={LABEL: NOW - 200 * SECOND})
    silent.update(progress(NOW, READ, UNREAD))
    silent.update(progress(after(60), READ, UNREAD))

    assert silent.inputs["operations"].read_up_at == after(60)
    assert silent.inputs["signals"].read_up_at is None


def test_metrics_through_spark_connect_have_names():
    schema = {"fields": [{"name": "rows"}, {"name": "newest"}]}

    assert metrics(Row(values=[3, None], schema=schema)) == {"rows": 3, "newest": None}
    assert metrics(Row(rows=3, newest=None)) == {"rows": 3, "newest": None}


def test_query_without_ticks_is_refused():
    with pytest.raises(ValueError, match="expected a query with the ticks of read_ticks, got"):
        Timekeeper("other", idle=60, delay=10).update(progress(NOW, READ, READ))


def test_next_tick_is_known_before_anything_is_due():
    assert keeper(due=None).next_tick_at() is None
    assert keeper(idle=None).next_tick_at() is None

    silent = keeper(due=after(5))
    assert silent.next_tick_at() == after(75)  # the delay and `idle` later
    for second in (0, 75):
        silent.update(progress(after(second), READ, READ))
    assert silent.take_ticks(after(75))
    assert silent.next_tick_at() == after(76)


def test_input_read_to_latest_offset_is_idle():
    shared = source("a", 1, 2, 2)  # with rows of the other input
    silent = keeper()
    for second in (0, 60):
        silent.update(progress(after(second), shared, shared, [(0, None)] * 2))

    assert silent.take_ticks(after(20_000)) == dict.fromkeys(INPUTS, NOW)
    behind = source("a", 1, 2, 3)
    silent = keeper()
    for second in (0, 60):
        silent.update(progress(after(second), behind, behind, [(1, NOW)] * 2))

    assert silent.take_ticks(after(20_000)) == {}


def test_event_time_names_silent_input_and_its_silence():
    silent = keeper()
    assert silent.now() == StreamTime(None, None, None)
    silent.update(progress(NOW, UNREAD, UNREAD, [(3, NOW)] * 2))
    assert silent.now() == StreamTime(None, None, None)

    silent.update(progress(after(5), UNREAD, READ, [(3, after(5)), (0, None)], watermark=NOW))
    assert silent.now() == StreamTime(NOW / 1000, "signals", NOW / 1000)


def test_event_time_is_described_in_one_line():
    assert StreamTime(None, None, None).describe(0, 0) == "no event time yet"
    held = StreamTime(START / 1000, "signals", START / 1000 + 7)
    assert held.describe(START / 1000 + 67.25, 3) == (
        "event time is 2026-01-01 12:00:00 UTC, 67.2 s behind the clock; held back by signals, "
        "silent since 2026-01-01 12:00:07 UTC; 3 pending operations are overdue"
    )


# -- against the definition


class Arrival(NamedTuple):
    at: int
    """When the row can be read, in milliseconds."""
    row: Any


class Stream:
    """Spark's loop over one shard. Instants are in milliseconds, in rows in microseconds."""

    def __init__(
        self, arrivals: dict[str, list[Arrival]], limit: int, idle: int, delay: int
    ) -> None:
        self.arrivals, self.limit, self.idle, self.delay = arrivals, limit, idle, delay
        self.clock = START
        self.shard = Stored()
        self.decided: list[Outcome] = []
        self.read = dict.fromkeys(INPUTS, 0)
        self.ticks: list[tuple[str, int]] = []
        self.ticks_read = 0
        self.watermark = 0
        self.batch: dict[str, Any] | None = None
        """The batch that was begun, as the log has it."""
        self.last_watermark = -1
        self.start()

    def start(self) -> None:
        """Starts the query, from its checkpoint."""
        reads_all, due = self.limit >= EVERYTHING, {LABEL: self.due()}
        idle, delay = self.idle / 1000, self.delay / 1000
        self.keeper = Timekeeper(FOLDER, idle=idle, delay=delay, reads_all=reads_all, due=due)
        self.newest = dict.fromkeys(INPUTS, 0)

    def trigger(self, seconds: float, killed: bool) -> None:
        """One batch, or one look. If killed, nothing of it remains but its entry in the log, and
        perhaps ticks."""
        began = self.clock
        if self.batch is None:
            ends = {
                name: min(
                    self.read[name] + self.limit,
                    sum(each.at <= began for each in self.arrivals[name]),
                )
                for name in INPUTS
            }
            now = (ends, len(self.ticks), self.watermark)
            if now == (self.read, self.ticks_read, self.last_watermark):
                self.tell(began, ends, None)
                self.clock += round(seconds * SECOND)
                return
            self.batch = {"ends": ends, "ticks": len(self.ticks), "watermark": self.watermark}
        middle = began + round(seconds * SECOND / 2)
        self.ticks += self.keeper.take_ticks(middle).items()
        self.clock += round(seconds * SECOND)
        if killed:  # nothing of it was committed
            return
        now = self.batch["watermark"] * 1000
        new = [row for name in INPUTS for row in self.rows(name, self.batch["ends"])]
        self.decided += self.shard.step(*new, before=now, now=now)
        ends, ticks, self.batch = self.batch["ends"], self.batch["ticks"], None
        self.last_watermark = self.watermark
        counted = []
        for name in INPUTS:
            times = [self.at(row) // 1000 for row in self.rows(name, ends)]
            counted.append((len(times), max(times, default=None)))
            times += [at for input_, at in self.ticks[self.ticks_read : ticks] if input_ == name]
            self.newest[name] = max(self.newest[name], *times, 0)
        self.watermark = max(self.watermark, min(self.newest.values()) - self.delay)
        self.tell(began, ends, counted)
        self.read, self.ticks_read = ends, ticks

    def rows(self, name: str, ends: dict[str, int]) -> list[Any]:
        arrived = self.arrivals[name][self.read[name] : ends[name]]
        return [each.row for each in arrived if each.row is not None]

    def tell(self, began: int, ends: dict[str, int], counted: Any) -> None:
        sources = [source(name, self.read[name], ends[name]) for name in INPUTS]
        watermark, due = max(self.last_watermark, 0), self.due()
        due = NOTHING_DUE if due is None else due
        self.keeper.update(progress(began, *sources, counted, watermark, due))
        self.ticks += self.keeper.take_ticks(self.clock).items()

    def due(self) -> int | None:
        return None if self.shard.next_at is None else -(-self.shard.next_at // 1000)

    @staticmethod
    def at(row: Any) -> int:
        return row.registered_at if isinstance(row, Operation) else row.at


def arrivals(
    chance: random.Random, rows: list[Any], idle: int, delay: int, silences: list[tuple[int, int]]
) -> Iterator[Arrival]:
    """Rows outside the silences, and others that are filtered out. They come by files, each of up
    to `idle`, and out of order by less than `delay`."""
    period = chance.randint(1, idle)
    sent = sorted(
        (Stream.at(row) // 1000 + chance.randrange(max(delay, 1)), number)
        for number, row in enumerate(rows)
    )
    for at, number in sent:
        if not any(begin <= at < end for begin, end in silences):
            arrives_at = -(-at // period) * period
            for _ in range(chance.choice((0, 0, 0, 9))):
                yield Arrival(arrives_at, None)
            yield Arrival(arrives_at, rows[number])


def with_silences(seed: int, pauses: bool) -> None:
    """Either input is silent at random; batches take up to a minute; the query is killed at
    random."""
    chance = random.Random(seed)
    seconds = chance.choice((60, 600, 7200))
    idle, delay = chance.choice(((5, 1), (60, 10), (20, 0))) if seconds > 60 else (5, 1)
    idle, delay = idle * SECOND, delay * SECOND
    inputs: dict[str, list[Arrival]] = {}
    made = traffic(chance.randint(0, 40), chance.randint(0, 80), seconds=seconds, keys=3, seed=seed)
    events = map(Operation._make, made.operations), map(Signal._make, made.signals)
    for name, rows in zip(INPUTS, map(list, events), strict=True):
        silences = []
        for _ in range(chance.randint(0, 3)):
            begin = START + chance.randrange(seconds * SECOND)
            silences.append((begin, begin + chance.randrange(seconds * SECOND)))
        inputs[name] = list(arrivals(chance, rows, idle, delay, silences))
    stream = Stream(inputs, chance.choice((1, 5, EVERYTHING, EVERYTHING)), idle, delay)
    if pauses:
        stream.clock += chance.randrange(2 * DAY)
    end = max(stream.clock, START + 2 * seconds * SECOND) + 2 * idle + 2 * delay
    triggers = 0
    while stream.clock < end or stream.batch is not None or triggers < 400:
        killed = pauses and chance.random() < 0.1
        stream.trigger(chance.choice((0.2, 1, 1, 3, chance.uniform(0, 60))), killed)
        if killed or (pauses and chance.random() < 0.02):
            stream.clock += chance.randrange(0, 3 * seconds * SECOND)
            stream.start()
        triggers += 1
    rows = {name: [each.row for each in arrived if each.row] for name, arrived in inputs.items()}
    assert sorted(stream.decided, key=str) == by_definition(rows["operations"], rows["signals"])


@pytest.mark.parametrize(
    "examples", [15, pytest.param(150 * THOROUGHNESS, marks=[pytest.mark.slow, LONG])]
)
def test_random_silences_decide_as_the_definition(examples):
    settings(max_examples=examples)(given(st.integers(0, 10**9), st.booleans())(with_silences))()
