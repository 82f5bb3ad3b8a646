"""The protocol against a store and a channel that do everything wrong, one step at a time.

The store here is a dictionary. Between any two steps its messages may be lost, repeated, delayed
and reordered, the connection may break, reads may fail before or after the store has answered, and
the store may lose everything or go backwards.
"""

import os
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from purgatory.relay import _follower
from purgatory.relay._follower import MAX_KEYS_PER_READ, MAX_OUT_OF_ORDER, Follower, ReadRequest
from purgatory.relay._messages import ChangeMessage, Hint, ReadResult

KEYS = ("a", "b", "c", "d", "e")


class DictStore:
    """A store in a dictionary, which remembers all versions that it has ever had."""

    def __init__(self) -> None:
        self.epochs = 1
        self.position = 0
        self.versions: dict[str, int] = {}
        self.positions: dict[str, int] = {}
        self.history: dict[str, list[int]] = {key: [0] for key in KEYS}

    @property
    def epoch(self) -> str:
        return f"epoch{self.epochs}"

    def write(self, key: str, floor: int, increment: int) -> ChangeMessage:
        before, after = self.versions.get(key, 0), self.position
        version = max(before, floor) + increment
        if version > before:
            self.position += 1
            self.versions[key], self.positions[key] = version, self.position
            self.history[key].append(version)
        return ChangeMessage(self.epoch, after, self.position, {key: version})

    def read(self, keys: tuple[str, ...], since: int | None, limit: int = 1000) -> ReadResult:
        changed = sorted(
            (at, key) for key, at in self.positions.items() if since is not None and at > since
        )
        position = changed[limit - 1][0] if len(changed) > limit else self.position
        names = [*(key for _, key in changed[:limit]), *keys]
        versions = {key: self.versions.get(key, 0) for key in names}
        return ReadResult(self.epoch, position, versions, len(changed) > limit, self.position)

    def renew(self, epoch: str) -> bool:
        if self.epoch != epoch:
            return False
        self.epochs += 1
        return True

    def record(self) -> None:
        for key in KEYS:
            self.history[key].append(self.versions.get(key, 0))


@dataclass
class Wait:
    """A call of `Relay.wait`, as a follower sees it."""

    key: str
    seen: int
    epoch: str | None
    began: int  # index in the history of its key
    result: int | None = None


@dataclass
class Process:
    """A follower, its channel and its waits."""

    channel: list[Any] = field(default_factory=list)
    is_subscribed: bool = False
    waits: list[Wait] = field(default_factory=list)
    request: ReadRequest | None = None
    result: ReadResult | None = None
    changed: list[str] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.follower = Follower(
            self.on_advance,
            self.on_epoch_change,
            self.on_ahead,
            self.changed.append,
            self.dropped.append,
        )

    def wait(self, key: str, seen: int, began: int) -> None:
        self.follower.add_waiter(key, seen)
        wait = Wait(key, seen, self.follower.epoch, began)
        self.waits.append(wait)
        version = self.follower._version(self.follower.followed[key])
        if version is not None and version > seen:
            self.end(wait, version)

    def end(self, wait: Wait, version: int) -> None:
        wait.result = version
        self.follower.remove_waiter(wait.key)

    def pending(self, key: str) -> list[Wait]:
        return [wait for wait in self.waits if wait.key == key and wait.result is None]

    def on_advance(self, key: str, version: int) -> None:
        for wait in self.pending(key):
            if version > wait.seen:
                self.end(wait, version)

    def on_epoch_change(self, key: str, version: int) -> None:
        epoch = self.follower.epoch
        for wait in self.pending(key):
            if wait.epoch != epoch or version > wait.seen:
                self.end(wait, version)
            else:
                self.follower.remove_waiter(key)
                self.follower.add_waiter(key, wait.seen)
                wait.epoch = epoch

    def on_ahead(self, key: str, version: int) -> None:
        for wait in self.pending(key):
            if wait.seen > version:
                self.end(wait, version)


PROCESSES = st.integers(0, 1)


class Simulation(RuleBasedStateMachine):
    """Two processes and a store."""

    @initialize()
    def begin(self) -> None:
        self.store = DictStore()
        self.processes = [Process(), Process()]
        for at in range(2):
            self.connect(at, "on_subscribed")
            self.read(at, "all")

    def publish(self, message: Any) -> None:
        for process in self.processes:
            if process.is_subscribed:
                process.channel.append(message)

    @rule(
        at=PROCESSES,
        key=st.sampled_from(KEYS),
        floor=st.sampled_from([0, 0, 0, 6]),
        increment=st.integers(0, 2),
        answered=st.booleans(),
    )
    def write(self, at: int, key: str, floor: int, increment: int, answered: bool) -> None:
        follower = self.processes[at].follower
        latest = follower.latest
        message = self.store.write(key, floor, increment)
        self.publish(message)
        if answered:
            follower.on_written(message, latest)

    @rule(at=PROCESSES, key=st.sampled_from(KEYS), behind=st.sampled_from([0, 0, 0, 1, 3, -1]))
    def wait(self, at: int, key: str, behind: int) -> None:
        seen = max(0, self.store.versions.get(key, 0) - behind)
        self.processes[at].wait(key, seen, len(self.store.history[key]) - 1)

    @rule(at=PROCESSES, count=st.sampled_from([1, 0, 0]))
    def give_up(self, at: int, count: int) -> None:
        process = self.processes[at]
        for wait in [wait for wait in process.waits if wait.result is None][:count]:
            process.waits.remove(wait)
            process.follower.remove_waiter(wait.key)

    @rule(at=PROCESSES, index=st.integers(0, 9), repeat=st.booleans(), lose=st.booleans())
    def deliver(self, at: int, index: int, repeat: bool, lose: bool) -> None:
        process = self.processes[at]
        if not process.channel:
            return
        index %= len(process.channel)
        message = process.channel[index] if repeat else process.channel.pop(index)
        if isinstance(message, ChangeMessage):
            if not lose:
                process.follower.on_message(message)
        elif index == 0 and message[0] == at:  # no probe overtakes messages
            process.follower.on_probe(message[1])

    @rule(at=PROCESSES, lose=st.integers(-1, 3))
    def deliver_all(self, at: int, lose: int) -> None:
        for number in range(len(self.processes[at].channel)):
            self.deliver(at, 0, repeat=False, lose=number == lose)

    @rule(at=PROCESSES, event=st.sampled_from(["on_subscribed", "on_disconnected", "cut"]))
    def connect(self, at: int, event: str) -> None:
        """A subscription, or its end, which goes unnoticed if it is cut."""
        process = self.processes[at]
        process.is_subscribed = event == "on_subscribed"
        if event == "on_disconnected":
            process.channel.clear()
        if event != "cut":
            getattr(process.follower, event)()
            assert process.follower.is_subscribed is process.is_subscribed
            assert not process.follower.is_current

    @rule(at=PROCESSES)
    def drop_idle(self, at: int) -> None:
        self.processes[at].follower.drop_idle()

    @rule(at=PROCESSES)
    def resync(self, at: int) -> None:
        self.processes[at].follower.resync()

    @rule(at=PROCESSES, steps=st.sampled_from(["all", "all", "request", "read", "fail"]))
    def read(self, at: int, steps: str) -> None:
        """A read, or a part of one."""
        process = self.processes[at]
        if process.request is None:
            if process.follower.needs_read:
                process.request = process.follower.begin_read()
            if steps == "request":
                return
        if process.result is None:
            self.read_store(at, limit=2)
            if steps == "read":
                return
        self.end_read(at, fails=steps == "fail")

    def read_store(self, at: int, limit: int) -> None:
        process = self.processes[at]
        if process.request is not None and process.result is None:
            epoch = process.follower.epoch_to_end
            if epoch is not None:
                if self.store.renew(epoch):
                    position = self.store.position
                    self.publish(ChangeMessage(self.store.epoch, position, position, {}))
                process.follower.epoch_to_end = None
            process.result = self.store.read(process.request.keys, process.request.since, limit)

    def end_read(self, at: int, fails: bool) -> None:
        process = self.processes[at]
        if process.request is None or (process.result is None and not fails):
            return
        request, result = process.request, process.result
        process.request = process.result = None
        if fails or result is None:
            process.follower.on_read_failed(request)
            return
        process.follower.on_read(request, result)
        if request.since is not None:
            probe = process.follower.begin_probe()
            if process.is_subscribed:
                process.channel.append((at, probe))

    def read_until_current(self, at: int) -> None:
        self.end_read(at, fails=True)
        follower = self.processes[at].follower
        for _ in range(100):
            if follower.needs_read:
                self.read(at, "all")
        assert not follower.needs_read

    @rule(chance=st.integers(0, 5))
    def flush(self, chance: int) -> None:
        if not chance:
            store = self.store
            store.position, store.versions, store.positions = 0, {}, {}
            store.epochs += 1
            store.record()

    @rule(keys=st.lists(st.sampled_from(KEYS), min_size=1, max_size=4), chance=st.integers(0, 2))
    def roll_back(self, keys: list[str], chance: int) -> None:
        """The store goes back to its state before some writes, of which each process has received
        something.

        A process that had received none of them might write as many, before anyone could notice.
        """
        processes, store = self.processes, self.store
        if chance or any(process.follower.epoch_to_end for process in processes):
            return
        position, versions, positions = store.position, dict(store.versions), dict(store.positions)
        for key in keys:
            self.wait(0, key, 0)
            self.wait(1, key, -1)
            self.write(0, key, 0, 1, answered=True)
        for at in range(2):
            self.deliver_all(at, lose=-1)
        if all(process.follower.position > position for process in processes):
            store.position, store.versions, store.positions = position, versions, positions
            store.record()
            for at in range(2):
                self.connect(at, "on_disconnected")
                self.end_read(at, fails=True)

    @rule(keys=st.lists(st.sampled_from(KEYS), min_size=1, max_size=3), chance=st.integers(0, 4))
    def delete_rows(self, keys: list[str], chance: int) -> None:
        if not chance:
            for key in keys:
                self.store.versions.pop(key, None)
                self.store.positions.pop(key, None)
            self.store.record()

    def teardown(self) -> None:
        """All messages are lost from now on; both processes read all they need, after a resync."""
        if not hasattr(self, "store"):
            return
        for _ in range(2):  # each process sees the other's writes at its next resync
            for at, process in enumerate(self.processes):
                if not process.follower.is_subscribed:
                    self.connect(at, "on_subscribed")
                process.follower.recheck()
                process.is_subscribed = False
                process.channel.clear()
                self.read_until_current(at)
                assert process.follower.is_current
                process.follower.on_probe(process.follower.begin_probe())

        for process in self.processes:
            follower = process.follower
            assert follower.epoch == self.store.epoch
            assert follower.position == self.store.position
            for wait in [wait for wait in process.waits if wait.result is None]:
                assert wait.seen == self.store.versions.get(wait.key, 0), wait
                follower.remove_waiter(wait.key)
            assert follower.followed.keys() == follower.idle.keys()
            for _ in range(2):
                follower.drop_idle()
            assert not follower.followed and not follower.needs_read
            assert not follower._unconfirmed and not follower._keys_to_read

    @invariant()
    def no_wait_ended_early(self) -> None:
        for process in getattr(self, "processes", ()):
            for wait in [wait for wait in process.waits if wait.result is not None]:
                history = self.store.history[wait.key]
                assert wait.result in history
                if wait.result <= wait.seen and wait.epoch == process.follower.epoch:
                    assert wait.result in history[wait.began :]


@pytest.mark.parametrize("examples", [100, pytest.param(300, marks=pytest.mark.slow)])
def test_waits_end_by_next_read_and_never_early(examples):
    """The same examples each time; more, and others, with `PURGATORY_SIMULATIONS=5000`. A failure
    is printed, step by step."""
    more = os.environ.get("PURGATORY_SIMULATIONS")
    number: Any = {"max_examples": int(more or examples), "derandomize": more is None}
    Simulation.TestCase.settings = settings(**number, stateful_step_count=60, database=None)
    Simulation.TestCase("runTest").runTest()


# Numbers and bounds


def read(process: Process, epoch: str, position: int, **versions: int) -> ReadRequest:
    request = process.follower.begin_read()
    process.follower.on_read(request, ReadResult(epoch, position, versions))
    return request


def process_at_7() -> Process:
    """A process that is up to date at position 7, and waits for a version of `a` above 3."""
    process = Process()
    process.follower.on_subscribed()
    read(process, "e", 7)
    process.wait("a", 3, 0)
    read(process, "e", 7, a=3)
    assert process.follower.is_current and not process.follower.needs_read
    return process


@pytest.mark.parametrize("is_late", [False, True])
def test_message_missing_at_a_probe_was_lost(is_late):
    process = process_at_7()
    follower = process.follower
    follower.resync()
    read(process, "e", 8, a=4)
    probe = follower.begin_probe()
    if is_late:
        follower.on_message(ChangeMessage("e", 7, 8, {"a": 4}))
    assert follower.on_probe(probe)
    assert (follower.resyncs, follower.healed) == (1, 0 if is_late else 1)


def test_overtaking_messages_count_with_the_missing_one():
    follower = process_at_7().follower
    for after, position, has_gap in ((8, 9, True), (9, 11, True), (7, 8, False)):
        follower.on_message(ChangeMessage("e", after, position, {}))
        assert follower.has_gap is has_gap
    assert follower.position == 11 and not follower.needs_read


def test_many_messages_out_of_order_cause_a_read():
    follower = process_at_7().follower
    for number in range(MAX_OUT_OF_ORDER + 1):
        assert not follower.needs_read
        follower.on_message(ChangeMessage("e", 8 + number, 9 + number, {}))
    assert follower.needs_read and follower.has_gap


def test_new_epoch_reports_all_keys_to_attached():
    process = process_at_7()
    process.follower.reports_all_keys = True
    process.follower.on_subscribed()
    read(process, "f", 9)
    assert read(process, "f", 9, a=1, b=5, c=7).since == 0
    assert (process.changed, process.follower.epochs) == (["a", "b", "c"], 2)


def test_many_keys_are_read_and_rechecked_in_turn():
    process = process_at_7()
    follower = process.follower
    follower.remove_waiter("a")
    follower.on_hint(Hint(("a",)))
    keys = dict.fromkeys([f"key{number}" for number in range(2 * MAX_KEYS_PER_READ)], 0)
    for key in keys:
        process.wait(key, 0, 0)
    asked: list[str] = []
    for look in [follower.resync] * 2 + [follower.recheck] * 2:
        look()
        asked += read(process, "e", 7, **keys).keys
        assert len(asked) % MAX_KEYS_PER_READ == 0
    assert asked == [*keys, *keys]


# Followed keys without waiters


def without_waiters() -> Process:
    """A process at position 7 whose key `a`, of version 3, has just lost its last waiter."""
    process = process_at_7()
    process.follower.remove_waiter("a")
    process.waits.clear()
    return process


@pytest.mark.parametrize(("drops", "is_read"), [(0, False), (1, False), (2, True)])
def test_key_without_waiters_is_read_again_once_dropped(drops, is_read):
    process = without_waiters()
    follower = process.follower
    for _ in range(drops):
        follower.drop_idle()
    assert process.dropped == ["a"] * is_read
    follower.on_message(ChangeMessage("e", 7, 8, {"a": 4}))
    process.wait("a", 3, 0)
    assert follower.needs_read is is_read
    assert process.waits[0].result == (None if is_read else 4)


@pytest.mark.parametrize("event", ["hint", "subscription", "epoch", "incomplete"])
def test_key_without_waiters_causes_no_read(event):
    process = without_waiters()
    follower = process.follower
    if event == "hint":
        follower.on_hint(Hint(("a",)))
    elif event == "subscription":
        follower.on_subscribed()
    elif event == "epoch":
        follower.resync()
        read(process, "f", 9)
    else:
        follower.resync()
        follower.on_read(follower.begin_read(), ReadResult("e", 8, {}, is_incomplete=True))
    assert not follower.needs_read or follower.begin_read().keys == ()
    assert (process.dropped, follower.followed, follower.idle) == (["a"], {}, {})


def test_unread_key_is_dropped_with_its_last_waiter():
    process = process_at_7()
    process.wait("b", 0, 0)
    process.follower.remove_waiter("b")
    assert process.dropped == ["b"] and not process.follower.needs_read


def test_keys_without_waiters_are_bounded(monkeypatch):
    monkeypatch.setattr(_follower, "MAX_IDLE_KEYS", 2)
    process = process_at_7()
    for key in "bcd":
        process.wait(key, 0, 0)
    read(process, "e", 7, b=0, c=0, d=0)
    for key in "cbda":
        process.follower.remove_waiter(key)
    assert process.dropped == ["c", "b"]
    assert [*process.follower.idle] == ["d", "a"]


def test_reads_caused_by_hints_are_no_resyncs():
    process = process_at_7()
    follower = process.follower
    follower.reports_all_keys = True
    before = follower.resyncs
    for position in (8, 9):
        follower.on_hint(Hint(("b",)))
        read(process, "e", position, b=position)
    assert follower.resyncs == before
    follower.resync()
    follower.on_read_failed(follower.begin_read())  # and is read again
    read(process, "e", 9)
    assert follower.resyncs == before + 1
