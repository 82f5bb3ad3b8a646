"""The event time of a stream, and the ticks that advance it while inputs are silent. Without Spark.

The slowest input determines a stream's event time, and an input without rows does not advance. So
after `idle` seconds of silence, a tick replaces the missing rows:

    12:00:00  the last signal is read; operations keep coming; `idle` is 60 s, `delay` is 10 s
    12:01:07  a batch finds no signal, and none is left to be read: signals are idle
              a tick of 12:00:07 for signals; the watermark becomes 11:59:57

An input with rows left to be read is not silent, however long it takes to read them, so the clock
never expires a backlog. A tick is `idle` behind the last look that found nothing left, not behind
the clock: rows that came in between are still to be read. Only signals may have one `idle` behind
the clock, if a batch reads all that is there: Spark looks for them after it has found the tick, so
the batch with the tick has them all.

A tick is only needed when it lets something become due. So an idle stream without anything pending
gets no ticks, and runs no batches.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import unquote

from purgatory.pipeline.streaming._rows import NOTHING_DUE

INPUTS: Final = ("operations", "signals")
OBSERVED_INPUTS: Final = {name: f"purgatory_{name}" for name in INPUTS}
"""The names of the observed metrics of each input: `rows` and `newest`, in milliseconds."""
OBSERVED_DUE: Final = "due_"
"""The prefix of the observed metrics with the next instant at which a shard has to decide."""
TICK_INTERVAL: Final = 1000
"""Milliseconds between two ticks, at least: each is a file."""


@dataclass(slots=True)
class InputTime:
    """The state of an input. Instants are in milliseconds since 1970."""

    silent_since: int
    """The start of the last batch with rows of this input, or of the query."""
    newest: int | None = None
    """The latest event time of its rows and ticks since the start of the query."""
    read_up_at: int | None = None
    """The last look that found no unread rows; None if a later look found rows."""

    def tick(self, idle: int, now: int | None) -> int | None:
        """The event time that the input has by its silence; None if it is not idle.

        Args:
            now: None if rows that have come since the last look might not be read with the tick.
        """
        if self.read_up_at is None or self.read_up_at - self.silent_since < idle:
            return None
        return (self.read_up_at if now is None else max(self.read_up_at, now)) - idle


@dataclass(frozen=True, slots=True)
class StreamTime:
    """The event time of a stream. Instants are in seconds since 1970."""

    watermark: float | None
    """None if there is none yet."""
    held_back_by: str | None
    """The slowest input, if it is silent."""
    silent_since: float | None
    """The time of its last rows, or the start of the query."""

    def describe(self, now: float, overdue: int) -> str:
        """One line for people.

        Args:
            now: seconds since 1970.
            overdue: pending operations with a deadline before `now`.
        """
        if self.watermark is None:
            line = "no event time yet"
        else:
            behind = max(now - self.watermark, 0.0)
            line = f"event time is {_clock(self.watermark)}, {behind:,.1f} s behind the clock"
        if self.held_back_by is not None and self.silent_since is not None:
            line += f"; held back by {self.held_back_by}, silent since {_clock(self.silent_since)}"
        return f"{line}; {overdue} pending operations are overdue" if overdue else line


class Timekeeper:
    """Follows one run of a query on `outcomes`.

    Args:
        ticks: the folder of ticks, by which their source is recognised.
        idle: seconds of silence after which an input is idle; None for never.
        delay: argument of `outcomes`, in seconds.
        reads_all: whether each batch reads all rows that are there.
        due: for each shard when it has something to decide next, in milliseconds; None if nothing.
    """

    def __init__(
        self,
        ticks: str,
        *,
        idle: float | None,
        delay: float,
        reads_all: bool = False,
        due: Mapping[int, int | None] | None = None,
    ) -> None:
        self.inputs: dict[str, InputTime] = {}
        """Empty before the first look."""
        parts = ["", *ticks.rstrip("/").split("/")[-2:]]
        self._suffixes = tuple(_plain("/".join(each) + "]") for each in (parts, ["", parts[-1]]))
        self._idle = None if idle is None else round(idle * 1000)
        self._delay = round(delay * 1000)
        self._due = {shard: NOTHING_DUE if at is None else at for shard, at in (due or {}).items()}
        self._reads_all = reads_all
        self._watermark = 0
        self._next_tick_at = 0

    def update(self, progress: Mapping[str, Any]) -> None:
        """Records Spark's progress of a batch, or of a look for new rows that found none."""
        looked_at = _millis(progress["timestamp"])
        if not self.inputs:
            self.inputs = {name: InputTime(looked_at) for name in INPUTS}
        observed = {
            name: metrics(row) for name, row in (progress.get("observedMetrics") or {}).items()
        }
        for name, sources in self._sources(progress["sources"]).items():
            known = self.inputs[name]
            rows = observed.get(OBSERVED_INPUTS[name])
            if rows is not None and rows["rows"]:
                known.silent_since = looked_at
            if rows is not None and rows["newest"] is not None:
                known.newest = max(known.newest or 0, rows["newest"])
            known.read_up_at = looked_at if all(map(_is_read_up, sources)) else None
        for name, at in observed.get("purgatory_outcomes", {}).items():
            if name.startswith(OBSERVED_DUE) and at is not None:
                self._due[int(name.removeprefix(OBSERVED_DUE))] = at
        if watermark := progress["eventTime"].get("watermark"):
            self._watermark = max(self._watermark, _millis(watermark))

    def _sources(self, sources: list[Any]) -> dict[str, list[Any]]:
        """The sources of each input: sources of operations come before the ticks, sources of
        signals after them. A source that both inputs read comes first only."""
        names = [_plain(source["description"]) for source in sources]
        # With a relative name such as `.` only the last part is in the description.
        found_at = (
            number
            for suffix in self._suffixes
            for number, name in enumerate(names)
            if name.endswith(suffix)
        )
        if (at := next(found_at, None)) is None:
            raise ValueError(f"expected a query with the ticks of read_ticks, got sources {names}")
        found = sources[:at], sources[at + 1 :]
        return {
            name: each or other
            for name, each, other in zip(INPUTS, found, reversed(found), strict=True)
        }

    def take_ticks(self, now: int) -> dict[str, int]:
        """The ticks that are needed now, by input, in milliseconds since 1970; counts them as
        written. None within a second of earlier ones.

        Args:
            now: the clock, in milliseconds since 1970.
        """
        if self._idle is None or not self.inputs or now < self._next_tick_at:
            return {}
        clocked = INPUTS[1:] if self._reads_all else ()
        reached = {name: each.newest or 0 for name, each in self.inputs.items()}
        ticks = {
            name: at
            for name, each in self.inputs.items()
            if (at := each.tick(self._idle, now if name in clocked else None)) is not None
            and at > reached[name]
        }
        before = max(self._watermark, min(reached.values()) - self._delay)
        after = min((reached | ticks).values()) - self._delay
        if not any(before < due <= after for due in self._due.values()):
            return {}
        for name, at in ticks.items():
            self.inputs[name].newest = at
        self._next_tick_at = now + TICK_INTERVAL
        return ticks

    def now(self) -> StreamTime:
        """The event time, and the input that holds it back."""
        watermark = self._watermark / 1000 if self._watermark else None
        if not self.inputs:
            return StreamTime(watermark, None, None)
        slowest = min(INPUTS, key=lambda name: self.inputs[name].newest or 0)
        known = self.inputs[slowest]
        if known.read_up_at is None or known.read_up_at == known.silent_since:
            return StreamTime(watermark, None, None)
        return StreamTime(watermark, slowest, known.silent_since / 1000)

    def next_tick_at(self) -> int | None:
        """The earliest instant at which a tick may be needed, in milliseconds; None if nothing is
        due at any time, or no input is ever idle."""
        if self._idle is None or (due := self.next_due) is None:
            return None
        return max(due + self._delay + self._idle, self._next_tick_at)

    @property
    def next_due(self) -> int | None:
        """When something is to be decided next, in milliseconds; None if nothing is."""
        due = min(self._due.values(), default=NOTHING_DUE)
        return None if due == NOTHING_DUE else due


def metrics(observed: Any) -> dict[str, Any]:
    """Observed metrics by name, from a row in Spark's progress. Spark Connect gives the values and
    a schema."""
    found: dict[str, Any] = observed.asDict()
    if "schema" not in found:
        return found
    names = (field["name"] for field in found["schema"]["fields"])
    return dict(zip(names, found["values"], strict=True))


def _is_read_up(source: Mapping[str, Any]) -> bool:
    """Whether a look at a source found no unread rows."""
    start, end, latest = (source[f"{name}Offset"] for name in ("start", "end", "latest"))
    return bool(start == end if latest in (None, "null") else latest == end)


def _plain(name: str) -> str:
    """A folder's name without the escapes of patterns and URIs."""
    return unquote(name.replace("\\", ""))


def _clock(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(" ", "seconds").removesuffix("+00:00") + " UTC"


def _millis(instant: str) -> int:
    return round(datetime.fromisoformat(instant).astimezone(UTC).timestamp() * 1000)
