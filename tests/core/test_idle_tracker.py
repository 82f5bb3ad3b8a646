"""`IdleTracker`: each silent id is reported once and on time; active ids cost almost nothing."""

import asyncio
import socket
import time
from typing import Any

import pytest
from helpers import Spy, iterations
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from invariants import check
from loops import LOOP_FACTORIES, on_every_loop, on_virtual_time

from purgatory import IdleTracker, PurgatoryClosed
from purgatory.testing import VirtualTimeLoop


class IdleLog:
    """An `on_idle` callback that records each id and the time."""

    def __init__(self) -> None:
        self.at: list[tuple[Any, float]] = []

    def __call__(self, id_: object) -> None:
        self.at.append((id_, asyncio.get_running_loop().time()))

    @property
    def ids(self) -> list[Any]:
        return [id_ for id_, _ in self.at]


# Which id falls idle, and when


async def test_exception_of_on_idle_is_reported_alone(reports: list[dict[str, Any]]) -> None:
    log = IdleLog()
    errors = {"bad": ValueError("bad"), "cancelled": asyncio.CancelledError()}

    def on_idle(id_: str) -> None:
        log(id_)
        if id_ in errors:
            raise errors[id_]

    tracker = IdleTracker(0.01, on_idle, tick=0.01)
    for id_ in ("a", "bad", "b", "cancelled", "c"):
        tracker.touch(id_)
    while len(tracker):
        await asyncio.sleep(0.01)
    await iterations(2)
    assert sorted(log.ids) == ["a", "b", "bad", "c", "cancelled"]
    assert [report["exception"] for report in reports] == [errors["bad"], errors["cancelled"]]
    assert reports[0]["message"] == "idle: on_idle('bad') raised"


# The tracked ids


@on_virtual_time
async def test_ids_are_iterated_in_order_of_first_touch() -> None:
    tracker = IdleTracker(5, IdleLog())
    for id_ in ("b", "a", "c", "b"):
        tracker.touch(id_)
    assert list(tracker) == ["b", "a", "c"]
    assert len(tracker) == 3
    assert "a" in tracker
    assert "d" not in tracker
    assert repr(tracker) == "<IdleTracker timeout=5.0 tick=0.004 tracked=3>"
    tracker.close()
    assert repr(tracker) == "<IdleTracker timeout=5.0 tick=0.004 closed>"


# Wrong loops and threads, and closing


async def test_closed_tracker_accepts_nothing_and_leaves_no_timer() -> None:
    log = IdleLog()
    spy = Spy(asyncio.get_running_loop())
    with IdleTracker(0.005, log) as tracker:
        for id_ in range(100):
            tracker.touch(id_)
    tracker.close()
    assert len(tracker) == 0
    with pytest.raises(PurgatoryClosed, match="cannot touch 5: the idle tracker 'idle' is closed"):
        tracker.touch(5)
    assert tracker.remove(5) is False
    await iterations(2)
    assert spy.armed == 0
    await asyncio.sleep(0.02)
    assert log.at == []
    check(tracker)


def test_tracker_can_be_closed_without_its_loop() -> None:
    async def main(tracker: IdleTracker[str]) -> None:
        tracker.touch("a")

    with IdleTracker(5, IdleLog()) as tracker:
        pass
    with pytest.raises(PurgatoryClosed):
        tracker.touch("a")
    with IdleTracker(5, IdleLog()) as tracker:
        asyncio.run(main(tracker))
    assert len(tracker) == 0


# Against a model


TICK, TIMEOUT = 0.5, 20.0
IDS = st.integers(0, 15)


class AgainstADictionary(RuleBasedStateMachine):
    """A dictionary of the last touches: it knows the ids that must be idle by now, and the ids that
    cannot be."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner(loop_factory=lambda: VirtualTimeLoop(start=12.3))
        self.loop = self.runner.get_loop()
        self.problems: list[Any] = []
        self.loop.set_exception_handler(lambda _, context: self.problems.append(context))
        self.last: dict[int, float] = {}
        self.again: set[int] = set()
        self.removes: dict[int, int] = {}
        self.tracker: IdleTracker[int] = IdleTracker(TIMEOUT, self.on_idle, tick=TICK)

    def on_idle(self, id_: int) -> None:
        now = self.loop.time()
        touched = self.last.pop(id_)  # raises KeyError for an unknown id, which would be reported
        if not touched + TIMEOUT <= now <= touched + TIMEOUT + TICK + 1e-9:
            self.problems.append((id_, touched, now))
        if id_ in self.again:
            self.again.remove(id_)
            self.touch_now(id_)
        other = self.removes.pop(id_, None)
        if other is not None and self.tracker.remove(other) is not self.forget(other):
            self.problems.append(("removed", other))

    def forget(self, id_: int) -> bool:
        return self.last.pop(id_, None) is not None

    def touch_now(self, id_: int) -> None:
        self.last[id_] = self.loop.time()
        self.tracker.touch(id_)

    async def do(self, action: Any, *args: Any) -> Any:
        return action(*args)

    @rule(id_=IDS)
    def touch(self, id_: int) -> None:
        self.runner.run(self.do(self.touch_now, id_))

    @rule(id_=IDS)
    def remove(self, id_: int) -> None:
        # Asked in one step, because the loop may find first that it is idle.
        assert self.runner.run(self.do(lambda: self.tracker.remove(id_) is self.forget(id_)))

    @rule(
        seconds=st.one_of(
            st.floats(0, 3), st.floats(15, 25), st.just(TIMEOUT), st.just(TICK), st.floats(0, 1e5)
        )
    )
    def wait(self, seconds: float) -> None:
        self.runner.run(asyncio.sleep(seconds))

    @rule(seconds=st.floats(0, 100), id_=IDS)
    def stall_and_touch(self, seconds: float, id_: int) -> None:
        """Advances time while nothing runs. Ids that are overdue afterwards may be late by more
        than a tick, so they are not checked."""

        async def main() -> None:
            self.loop._set_time(self.loop.time() + seconds)  # type: ignore[attr-defined]
            now = self.loop.time()
            for other, touched in self.last.items():
                if touched + TIMEOUT < now:
                    self.last[other] = now - TIMEOUT
            self.touch_now(id_)

        self.runner.run(main())

    @rule(id_=IDS)
    def touch_again_in_on_idle(self, id_: int) -> None:
        self.again.add(id_)

    @rule(id_=IDS, other=IDS)
    def remove_another_in_on_idle(self, id_: int, other: int) -> None:
        self.removes[id_] = other

    @precondition(lambda self: self.last)
    @invariant()
    def nobody_is_overdue(self) -> None:
        now = self.loop.time()
        assert all(now <= touched + TIMEOUT + TICK + 1e-9 for touched in self.last.values())

    @invariant()
    def the_same_are_tracked(self) -> None:
        assert self.problems == []
        assert set(self.tracker) == set(self.last)
        check(self.tracker)

    def teardown(self) -> None:
        self.runner.close()


TestAgainstADictionary = AgainstADictionary.TestCase
TestAgainstADictionary.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


@on_every_loop
@pytest.mark.asyncio(
    loop_factories=[kind for kind in ("asyncio", "uvloop") if kind in LOOP_FACTORIES]
)
async def test_stall_drops_no_connection_whose_data_waits() -> None:
    writers: list[asyncio.StreamWriter] = []
    heard: set[asyncio.StreamWriter] = set()
    dropped: list[bool] = []
    tracker: IdleTracker[asyncio.StreamWriter] = IdleTracker(
        0.2, lambda writer: dropped.append(writer in heard)
    )

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        while await reader.read(100):
            heard.add(writer)
            tracker.touch(writer)
        writers.remove(writer)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        address = server.sockets[0].getsockname()
        clients = [socket.create_connection(address) for _ in range(9)]
        while len(writers) < 9:
            await asyncio.sleep(0.01)
        for writer in writers:
            tracker.touch(writer)
        for client in clients[1:]:
            client.send(b"alive")
        time.sleep(0.5)  # noqa: ASYNC251 - the loop is held up
        while len(tracker):
            await asyncio.sleep(0.01)
        assert sorted(dropped) == [False] + [True] * 8  # the silent one alone was not heard
        for client in clients:
            client.close()
        while writers:
            await asyncio.sleep(0.01)
