"""The protocol against a store and a channel that do everything wrong, one step at a time.

The store here is a dictionary. Between any two steps its news may be lost, repeated, delayed and reordered, the link may break,
reads may fail before or after they were answered, the store may lose everything, or come back with what it had earlier.
"""

import os
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from purgatory.relay._follower import MOST_AHEAD, MOST_KEYS, Follower, Read
from purgatory.relay._messages import Answer, News

KEYS = ("a", "b", "c", "d", "e")


class DictStore:
    """A store in a dictionary, which can tell what it has ever had."""

    def __init__(self) -> None:
        self.epochs = 1
        self.position = 0
        self.versions: dict[str, int] = {}
        self.positions: dict[str, int] = {}
        self.stood: dict[str, list[int]] = {key: [0] for key in KEYS}

    @property
    def epoch(self) -> str:
        return f"epoch{self.epochs}"

    def write(self, key: str, at_least: int, more: int) -> News:
        before, after = self.versions.get(key, 0), self.position
        version = max(before, at_least) + more
        if version > before:
            self.position += 1
            self.versions[key], self.positions[key] = version, self.position
            self.stood[key].append(version)
        return News(self.epoch, after, self.position, {key: version})

    def read(self, keys: tuple[str, ...], since: int | None, most: int = 1000) -> Answer:
        changed = sorted((at, key) for key, at in self.positions.items() if since is not None and at > since)
        position = changed[most - 1][0] if len(changed) > most else self.position
        names = [*(key for _, key in changed[:most]), *keys]
        return Answer(
            self.epoch, position, {key: self.versions.get(key, 0) for key in names}, len(changed) > most, self.position
        )

    def renew(self, epoch: str) -> bool:
        if self.epoch != epoch:
            return False
        self.epochs += 1
        return True

    def note(self) -> None:
        for key in KEYS:
            self.stood[key].append(self.versions.get(key, 0))


@dataclass
class Wait:
    """What `Relay.wait` is to a follower."""

    key: str
    seen: int
    epoch: str | None
    began: int  # how many versions its key had had
    result: int | None = None


@dataclass
class Process:
    """A follower, and what is around it."""

    channel: list[Any] = field(default_factory=list)
    hears: bool = False
    waits: list[Wait] = field(default_factory=list)
    read: Read | None = None
    answer: Answer | None = None
    told: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.follower = Follower(self.rise, self.rebase, self.told.append)

    def wait(self, key: str, seen: int, began: int) -> None:
        self.follower.watch(key, seen)
        wait = Wait(key, seen, self.follower.epoch, began)
        self.waits.append(wait)
        version = self.follower.watched[key].version
        if version is not None and version > seen:
            self.end(wait, version)

    def end(self, wait: Wait, version: int) -> None:
        wait.result = version
        self.follower.unwatch(wait.key)

    def pending(self, key: str) -> list[Wait]:
        return [wait for wait in self.waits if wait.key == key and wait.result is None]

    def rise(self, key: str, version: int) -> None:
        for wait in self.pending(key):
            if version > wait.seen:
                self.end(wait, version)

    def rebase(self, key: str, version: int) -> None:
        epoch = self.follower.epoch
        for wait in self.pending(key):
            if version != wait.seen or wait.epoch != epoch:
                self.end(wait, version)
            else:
                self.follower.unwatch(key)
                self.follower.watch(key, wait.seen)
                wait.epoch = epoch


PROCESSES = st.integers(0, 1)


class Simulation(RuleBasedStateMachine):
    """Two processes and a store."""

    @initialize()
    def begin(self) -> None:
        self.store = DictStore()
        self.processes = [Process(), Process()]
        for at in range(2):
            self.subscribe(at)
            self.exchange(at, "all")

    def tell(self, message: Any) -> None:
        for process in self.processes:
            if process.hears:
                process.channel.append(message)

    @rule(
        at=PROCESSES,
        key=st.sampled_from(KEYS),
        at_least=st.sampled_from([0, 0, 0, 6]),
        more=st.integers(0, 2),
        answered=st.booleans(),
    )
    def write(self, at: int, key: str, at_least: int, more: int, answered: bool) -> None:
        follower = self.processes[at].follower
        latest = follower.latest
        news = self.store.write(key, at_least, more)
        self.tell(news)
        if answered:
            follower.wrote(news, latest)

    @rule(at=PROCESSES, key=st.sampled_from(KEYS), behind=st.sampled_from([0, 0, 0, 1, 3, -1]))
    def wait(self, at: int, key: str, behind: int) -> None:
        seen = max(0, self.store.versions.get(key, 0) - behind)
        self.processes[at].wait(key, seen, len(self.store.stood[key]) - 1)

    @rule(at=PROCESSES, chance=st.integers(0, 2))
    def give_up(self, at: int, chance: int) -> None:
        if chance:
            return
        process = self.processes[at]
        wait = next((wait for wait in process.waits if wait.result is None), None)
        if wait is not None:
            process.waits.remove(wait)
            process.follower.unwatch(wait.key)

    @rule(at=PROCESSES, data=st.data(), repeat=st.booleans(), lose=st.booleans())
    def deliver_any(self, at: int, data: st.DataObject, repeat: bool, lose: bool) -> None:
        process = self.processes[at]
        if process.channel:
            self.deliver(process, at, data.draw(st.integers(0, len(process.channel) - 1)), repeat, lose)

    @rule(at=PROCESSES, lose=st.integers(-1, 3))
    def deliver_all(self, at: int, lose: int) -> None:
        process = self.processes[at]
        for number in range(len(process.channel)):
            self.deliver(process, at, 0, repeat=False, lose=number == lose)

    def deliver(self, process: Process, at: int, index: int, repeat: bool, lose: bool) -> None:
        if process.channel:
            message = process.channel[index]
            if not repeat:
                del process.channel[index]
            if isinstance(message, News):
                if not lose:
                    process.follower.heard(message)
            elif index == 0 and message[0] == at:  # no probe overtakes news
                process.follower.probed(message[1])

    @rule(at=PROCESSES)
    def subscribe(self, at: int) -> None:
        process = self.processes[at]
        process.hears = True
        process.follower.confirmed()

    @rule(at=PROCESSES)
    def break_link(self, at: int) -> None:
        process = self.processes[at]
        process.hears = False
        process.channel.clear()
        process.follower.lost()

    @rule(at=PROCESSES)
    def go_deaf(self, at: int) -> None:
        self.processes[at].hears = False  # and it does not know

    @rule(at=PROCESSES)
    def resync(self, at: int) -> None:
        self.processes[at].follower.resync()

    @rule(at=PROCESSES, steps=st.sampled_from(["all", "all", "ask", "look", "fail"]))
    def exchange(self, at: int, steps: str) -> None:
        """A read, or a part of one."""
        process = self.processes[at]
        if process.read is None:
            self.ask(at)
            if steps == "ask":
                return
        if process.answer is None:
            self.look(at, most=2)
            if steps == "look":
                return
        self.answer(at, fails=steps == "fail")

    def ask(self, at: int) -> None:
        process = self.processes[at]
        if process.follower.has_questions:
            process.read = process.follower.begin_read()

    def look(self, at: int, most: int) -> None:
        process = self.processes[at]
        if process.read is not None and process.answer is None:
            epoch = process.follower.must_renew
            if epoch is not None:
                if self.store.renew(epoch):
                    self.tell(News(self.store.epoch, self.store.position, self.store.position, {}))
                process.follower.must_renew = None
            process.answer = self.store.read(process.read.keys, process.read.since, most)

    def answer(self, at: int, fails: bool) -> None:
        process = self.processes[at]
        if process.read is None or (process.answer is None and not fails):
            return
        read, answer, process.read, process.answer = process.read, process.answer, None, None
        if fails or answer is None:
            process.follower.failed(read)
            return
        process.follower.answered(read, answer)
        if read.since is not None:
            probe = process.follower.begin_probe()
            if process.hears:
                process.channel.append((at, probe))

    @rule(at=PROCESSES, keys=st.lists(st.sampled_from(KEYS), max_size=6))
    def write_some(self, at: int, keys: list[str]) -> None:
        for key in keys:
            self.wait(at, key, 0)
            self.write(1 - at, key, 0, 1, answered=True)

    @rule(chance=st.integers(0, 5))
    def flush(self, chance: int) -> None:
        if chance:
            return
        self.store.versions.clear()
        self.store.positions.clear()
        self.store.position = 0
        self.store.epochs += 1
        self.store.note()

    @rule(keys=st.lists(st.sampled_from(KEYS), min_size=1, max_size=4), chance=st.integers(0, 2))
    def roll_back(self, keys: list[str], chance: int) -> None:
        """The store comes back with what it had before some writes, of which everyone has heard something.

        A process that had heard of none of them might write as many, before anyone could tell.
        """
        processes, store = self.processes, self.store
        if chance or any(process.follower.must_renew for process in processes):
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
            store.note()
            for at in range(2):
                self.break_link(at)
                self.answer(at, fails=True)

    def settle(self) -> None:
        """All news are lost from now on; both subscribe, and ask all they want to know."""
        for _ in range(2):  # what one has found the other has to hear of at its next resync
            for at, process in enumerate(self.processes):
                process.hears = False
                self.subscribe(at)
                process.channel.clear()
                self.answer(at, fails=True)
                for _ in range(100):
                    if not process.follower.has_questions:
                        break
                    self.ask(at)
                    self.look(at, most=2)
                    self.answer(at, fails=False)
                assert not process.follower.has_questions
                assert process.follower.is_current

    def teardown(self) -> None:
        if not hasattr(self, "store"):
            return
        self.settle()
        for process in self.processes:
            follower = process.follower
            assert follower.epoch == self.store.epoch
            assert follower.position == self.store.position
            for wait in process.waits:
                if wait.result is None:
                    assert wait.seen == self.store.versions.get(wait.key, 0), f"{wait} waits on"
                    follower.unwatch(wait.key)
            assert not follower.watched
            assert not follower.has_questions
            assert not follower._suspects
            assert not follower._wanted

    @invariant()
    def nobody_was_answered_early(self) -> None:
        for process in getattr(self, "processes", ()):
            for wait in process.waits:
                if wait.result is None:
                    continue
                stood = self.store.stood[wait.key]
                assert wait.result in stood
                if wait.result <= wait.seen:
                    since = stood[wait.began :]
                    assert wait.epoch != process.follower.epoch or wait.result in since


def test_no_wait_outlives_a_look_at_the_store_and_none_is_answered_early() -> None:
    """The same examples each time; more, and others, with `PURGATORY_SIMULATIONS=5000`. What fails is printed, step by step."""
    more = os.environ.get("PURGATORY_SIMULATIONS")
    Simulation.TestCase.settings = settings(
        max_examples=int(more or 300), derandomize=more is None, stateful_step_count=60, deadline=None, database=None
    )
    Simulation.TestCase("runTest").runTest()


# One thing at a time


def process_at(position: int, **versions: int) -> Process:
    """A process that is up to date, and waits for what comes after `versions`."""
    process = Process()
    follower = process.follower
    follower.confirmed()
    answer(process, "e", position)
    for key, version in versions.items():
        process.wait(key, version, 0)
    if versions:
        answer(process, "e", position, **versions)
    assert follower.is_current
    assert not follower.has_questions
    return process


def answer(process: Process, epoch: str, position: int, has_more: bool = False, **versions: int) -> Read:
    read = process.follower.begin_read()
    process.follower.answered(read, Answer(epoch, position, versions, has_more))
    return read


def results(process: Process) -> list[int | None]:
    return [wait.result for wait in process.waits]


def test_news_of_a_key_answer_those_who_have_seen_less() -> None:
    process = process_at(7, a=3)
    process.wait("a", 3, 0)
    process.follower.heard(News("e", 7, 8, {"a": 4}))
    assert results(process) == [4, 4]
    assert not process.follower.watched
    assert not process.follower.has_questions


def test_repeated_and_late_news_change_nothing() -> None:
    process = process_at(7, a=3)
    for news in (News("e", 6, 7, {"a": 3}), News("e", 2, 3, {"a": 1})):
        process.follower.heard(news)
    assert results(process) == [None]
    assert process.follower.position == 7
    assert process.told == []


def test_news_that_overtake_each_other_leave_no_gap() -> None:
    process = process_at(7, a=3)
    process.follower.heard(News("e", 8, 9, {"b": 1}))
    assert process.follower.has_gap
    process.follower.heard(News("e", 9, 11, {"c": 1}))
    process.follower.heard(News("e", 7, 8, {"a": 4}))
    assert not process.follower.has_gap
    assert process.follower.position == 11
    assert process.told == ["b", "c", "a"]


def test_what_is_missing_between_two_news_is_read_and_counted_as_healed_after_a_probe() -> None:
    process = process_at(7, a=3)
    process.follower.heard(News("e", 8, 9, {"b": 1}))
    process.follower.resync()
    assert answer(process, "e", 9, a=4).since == 7
    assert results(process) == [4]
    assert not process.follower.has_gap
    assert (process.follower.resyncs, process.follower.healed) == (1, 0)


@pytest.mark.parametrize("told", [True, False])
def test_news_that_were_only_late_are_not_counted_as_lost(told: bool) -> None:
    process = process_at(7, a=3)
    process.follower.resync()
    answer(process, "e", 8, a=4)
    probe = process.follower.begin_probe()
    if told:
        process.follower.heard(News("e", 7, 8, {"a": 4}))
    assert process.follower.probed(probe)
    assert process.follower.healed == (0 if told else 1)


def test_a_second_confirmation_has_everything_read_again() -> None:
    process = process_at(7, a=3)
    process.follower.confirmed()
    assert not process.follower.is_current
    assert answer(process, "e", 8, a=4).since == 7
    assert process.follower.is_current


def test_a_read_that_began_before_the_confirmation_proves_nothing() -> None:
    process = process_at(7)
    process.follower.resync()
    read = process.follower.begin_read()
    process.follower.lost()
    process.follower.confirmed()
    process.follower.answered(read, Answer("e", 7, {}))
    assert not process.follower.is_current
    assert process.follower.has_questions


def test_a_change_of_epoch_answers_everyone_with_what_stands() -> None:
    process = process_at(7, a=3, b=9)
    process.wait("a", 2, 0)
    process.follower.heard(News("f", 0, 1, {"c": 1}))
    assert results(process) == [None, None, 3]
    answer(process, "f", 1, c=1)
    answer(process, "f", 1, a=0, b=9)
    assert results(process) == [0, 9, 3]
    assert (process.follower.epoch, process.follower.epochs) == ("f", 2)


def test_late_news_of_an_old_epoch_cost_one_read_and_change_nothing() -> None:
    process = process_at(7, a=3)
    process.follower.heard(News("d", 70, 71, {"a": 50}))
    answer(process, "e", 7)
    assert results(process) == [None]
    assert not process.follower.has_questions


def test_a_store_that_has_fallen_back_is_told_to_end_its_epoch() -> None:
    process = process_at(7, a=3)
    process.follower.confirmed()
    answer(process, "e", 5)
    assert process.follower.must_renew == "e"
    assert process.follower.has_questions
    answer(process, "f", 5)
    answer(process, "f", 5, a=2)
    assert process.follower.must_renew is None
    assert results(process) == [2]


def test_a_write_that_is_behind_what_was_known_shows_that_the_store_has_fallen_back() -> None:
    process = process_at(7, a=3)
    process.follower.wrote(News("e", 6, 7, {"a": 3}), 7)
    assert process.follower.must_renew == "e"


def test_who_has_seen_more_than_there_is_has_it_from_another_epoch_and_is_told_what_stands() -> None:
    process = process_at(7, a=3)
    process.wait("a", 1000, 0)
    assert answer(process, "e", 7, a=3).keys == ("a",)
    assert results(process) == [None, 3]


def test_who_comes_while_a_read_is_under_way_is_judged_by_the_next_one() -> None:
    process = process_at(7, a=3)
    process.wait("a", 4, 0)
    read = process.follower.begin_read()
    process.wait("a", 5, 0)  # the store has had 5 after it was looked at
    process.follower.answered(read, Answer("e", 7, {"a": 3}))
    assert results(process) == [None, None, None]
    answer(process, "e", 9, a=5)
    assert results(process) == [5, 5, None]


def test_more_changes_than_one_answer_holds_are_asked_for_again() -> None:
    process = process_at(7, a=3)
    process.follower.confirmed()
    answer(process, "e", 8, has_more=True, b=1)
    assert not process.follower.is_current
    assert answer(process, "e", 9, a=4).since == 8
    assert process.follower.is_current


def test_very_many_keys_are_asked_for_in_several_reads() -> None:
    process = process_at(7)
    for number in range(MOST_KEYS + 1):
        process.wait(f"key{number}", 0, 0)
    assert len(process.follower.begin_read().keys) == MOST_KEYS
    process.follower.answered(Read((), None, {}, 7, 1), Answer("e", 7, {}))
    assert process.follower.begin_read().keys == (f"key{MOST_KEYS}",)


def test_an_attached_purgatory_hears_of_every_key_of_a_new_epoch() -> None:
    process = process_at(7, a=3)
    process.follower.tells_all = True
    process.follower.confirmed()
    answer(process, "f", 9)
    assert answer(process, "f", 9, a=1, b=5, c=7).since == 0
    assert process.told == ["a", "b", "c"]


def test_a_gap_that_grows_is_read_without_waiting() -> None:
    process = process_at(7)
    for number in range(MOST_AHEAD):
        process.follower.heard(News("e", 8 + number, 9 + number, {}))
    assert not process.follower.has_questions
    process.follower.heard(News("e", 8 + MOST_AHEAD, 9 + MOST_AHEAD, {}))
    assert process.follower.has_questions


def test_a_store_that_does_not_count_its_writes_is_followed_by_reads_alone() -> None:
    process = process_at(7, a=3)
    process.follower.heard(News("e", -1, 12, {"a": 4}))
    assert results(process) == [4]
    assert (process.follower.position, process.follower.latest) == (7, 12)
    process.follower.resync()
    answer(process, "e", 9)
    assert process.follower.must_renew == "e"
    assert not process.follower.has_gap


def test_a_first_read_that_fails_is_made_again() -> None:
    process = Process()
    process.follower.failed(process.follower.begin_read())
    assert process.follower.has_questions


def test_keys_of_a_read_that_fails_are_asked_for_again_unless_nobody_waits_for_them_any_more() -> None:
    process = process_at(7)
    process.wait("a", 0, 0)
    process.follower.watch("b", 0)
    read = process.follower.begin_read()
    process.follower.unwatch("b")
    process.follower.failed(read)
    assert process.follower.begin_read().keys == ("a",)


def test_ten_thousand_keys_that_come_and_go_leave_nothing_behind() -> None:
    process = process_at(7)
    follower = process.follower
    for number in range(10_000):
        follower.watch(f"key{number}", 0)
        if number % 3 == 0:
            read = follower.begin_read()
            follower.answered(read, Answer("e", 7, dict.fromkeys(read.keys, 0)))
        follower.unwatch(f"key{number}")
    assert not follower.watched
    assert not follower._wanted
    assert not follower._suspects
    assert not follower._ahead


def test_a_store_that_fell_back_is_found_out_though_others_have_written_as_much_since() -> None:
    process = process_at(7, a=3)
    process.wait("a", 4, 0)  # who knows it from elsewhere
    process.follower.heard(News("e", 7, 8, {"a": 4}))
    assert results(process) == [4, None]
    process.follower.lost()
    process.follower.confirmed()
    answer(process, "e", 8, a=3, b=1)
    assert process.follower.must_renew == "e" and process.follower.has_questions
    answer(process, "f", 8, a=3)
    assert results(process) == [4, 3]
