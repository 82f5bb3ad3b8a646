"""The promises of a store for `purgatory.relay`, as checks that every store has to pass, ours and
yours.

    @pytest.mark.parametrize("check", store_checks(), ids=lambda check: check.__name__)
    def test_it_is_a_store(check, server):
        asyncio.run(check(lambda: MyStore(server.address)))

This module imports nothing from the relay, and neither does a store have to.
"""

import asyncio
import json
from asyncio import Task, create_task, gather, get_running_loop, sleep
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from os import urandom
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

if TYPE_CHECKING:
    from purgatory.relay import Store, StoreWithDeliveries
else:
    Store = Any  # for `get_type_hints`

Make = Callable[[], "Store"]
"""Makes another object for the same store, which is empty at the start of a check."""

Check = Callable[[Make], Coroutine[Any, Any, None]]

TIMEOUT: Final = 60.0
"""Seconds to wait for an expected event."""

STRANGE_KEYS: Final = (
    "",
    " ",
    "\0",
    "\n",
    '"',
    "\\",
    "'",
    "{}",
    "%s",
    "v:",
    "Schlüssel",
    "🦉",
    "a" * 512,
    "\x01" * 512,
)


class Delivery(NamedTuple):
    """Like `purgatory.relay.Delivery`."""

    key: str
    value: bytes
    ttl: float
    token: bytes


CHECKS: Final[list[Check]] = []


def check(function: Check) -> Check:
    """Adds a check to `CHECKS`, which every store has to pass."""
    CHECKS.append(function)
    return function


def store_checks() -> list[Check]:
    """All checks. Each takes a function that makes a new object for the same store, which has to be
    empty, and raises `AssertionError` if the store breaks a promise of `purgatory.relay.Store`. The
    checks of `StoreWithDeliveries` do nothing with a store that lacks these methods."""
    return list(CHECKS)


@check
async def a_key_that_was_never_written_has_version_0(make: Make) -> None:
    async with opened(make) as store:
        result = await store.read(("a", "b"), None)
        assert dict(result.versions) == {"a": 0, "b": 0}
        assert result.epoch
        assert not result.has_more


@check
async def a_write_raises_a_version_to_a_floor_and_then_by_an_increment(make: Make) -> None:
    async with opened(make) as store:
        for floor, increment, version in (
            (0, 1, 1),
            (0, 1, 2),
            (7, 0, 7),
            (5, 0, 7),
            (0, 3, 10),
            (12, 2, 14),
            (13, 1, 15),
        ):
            versions = await write(store, ("a", floor, increment))
            assert versions["a"] == version, f"{version} was expected, not {versions['a']}"
        assert (await store.read(("a",), None)).versions["a"] == 15


@check
async def a_write_may_change_a_hundred_keys(make: Make) -> None:
    async with opened(make) as store:
        keys = [f"key{number}".ljust(500, ".") for number in range(100)]
        assert await write(store, *((key, 0, 1) for key in keys)) == dict.fromkeys(keys, 1)
        assert dict((await store.read(keys, None)).versions) == dict.fromkeys(keys, 1)


@check
async def a_version_is_exact_up_to_2_to_the_power_of_53(make: Make) -> None:
    async with opened(make) as store:
        assert await write(store, ("a", 2**52 - 1, 0)) == {"a": 2**52 - 1}
        assert await write(store, ("a", 2**52, 1)) == {"a": 2**52 + 1}
        assert (await store.read(("a",), None)).versions["a"] == 2**52 + 1


@check
async def every_string_is_a_key(make: Make) -> None:
    async with opened(make) as store, received_from(make) as received:
        for number, key in enumerate(STRANGE_KEYS, 1):
            assert await write(store, (key, number, 0)) == {key: number}
        expected = {key: number for number, key in enumerate(STRANGE_KEYS, 1)}
        assert dict((await store.read(STRANGE_KEYS, None)).versions) == expected
        await until(lambda: has_heard(received, expected))


@check
async def all_writers_get_different_numbers(make: Make) -> None:
    async with opened(make) as first, opened(make) as second:

        async def bump(store: "Store", times: int) -> list[int]:
            return [(await write(store, ("a", 0, 1)))["a"] for _ in range(times)]

        both = await gather(bump(first, 40), bump(second, 40))
        assert sorted([*both[0], *both[1]]) == list(range(1, 81))
        assert all(sorted(own) == own for own in both)


@check
async def all_who_open_a_new_store_at_once_find_one_epoch(make: Make) -> None:
    stores = [make() for _ in range(4)]
    try:
        await gather(*(store.open() for store in stores))
        assert len({(await store.read((), None)).epoch for store in stores}) == 1
    finally:
        for store in stores:
            await store.close()


@check
async def what_is_written_reaches_every_listener(make: Make) -> None:
    async with opened(make) as store, received_from(make) as first, received_from(make) as second:
        await write(store, ("a", 0, 1), ("b", 5, 0))
        expected = {"a": 1, "b": 5}
        await until(lambda: has_heard(first, expected) and has_heard(second, expected))
        epoch = (await store.read((), None)).epoch
        assert all(is_hint(message) or message[0] == epoch for message in (*first, *second))


@check
async def all_positions_of_a_store_that_counts_its_writes_are_consecutive(make: Make) -> None:
    async with opened(make) as store, opened(make) as other, received_from(make) as received:
        for number in range(10):
            await write(other if number % 3 else store, ("a", 0, 1), (f"b{number}", 0, 1))
        await until(
            lambda: has_heard(received, {"a": 10, **{f"b{number}": 1 for number in range(10)}})
        )
        if is_hint(received[0]):
            return
        steps = [(after, position) for _, after, position, versions in received if versions]
        if steps[0][0] < 0:
            return
        assert all(before < after for before, after in steps)
        assert sorted(after for after, _ in steps[1:]) == sorted(
            position for _, position in steps[:-1]
        )


@check
async def what_has_changed_since_a_position_can_be_read(make: Make) -> None:
    async with opened(make) as store, opened(make) as other:
        await write(store, ("old", 0, 1))
        position = (await store.read((), None)).position
        for number in range(30):
            await write(other, ("a", 0, 1), (f"b{number}", 0, 1))
        changed: dict[str, int] = {}
        has_more = True
        while has_more:
            result = await store.read(("old", "never"), position)
            assert result.position >= position
            position, has_more = result.position, result.has_more
            changed.update(result.versions)
        expected = {"old": 1, "never": 0, "a": 30, **{f"b{number}": 1 for number in range(30)}}
        assert changed == expected
        await write(other, ("c", 0, 1))
        assert (await store.read((), position)).versions["c"] == 1


@check
async def a_forgotten_key_begins_above_all_that_were_forgotten(make: Make) -> None:
    async with opened(make) as store, opened(make) as other:
        await write(store, ("a", 40, 0), ("b", 7, 0), ("c", 3, 0))
        await store.forget(["a", "b", "never"])
        result = await other.read(("a", "b", "c", "never"), None)
        assert dict(result.versions) == {"a": 40, "b": 40, "c": 3, "never": 40}
        assert await write(other, ("b", 0, 1), ("a", 0, 2), ("new", 5, 0)) == {
            "b": 41,
            "a": 42,
            "new": 40,
        }
        await store.renew(result.epoch)
        assert dict((await store.read(("a", "d"), None)).versions) == {"a": 42, "d": 40}
        await store.forget(["b"])
        assert await write(store, ("b", 100, 0)) == {"b": 100}
        assert await write(store, ("b", 0, 1), ("c", 0, 1)) == {"b": 101, "c": 4}


@check
async def a_read_says_if_what_it_would_have_found_was_forgotten(make: Make) -> None:
    async with opened(make) as store, opened(make) as other:
        await write(store, ("a", 0, 1), ("b", 0, 1))
        before = await store.read((), None)
        await write(other, ("a", 0, 1))
        await other.forget(["a"])
        result = await store.read((), before.position)
        assert result.is_incomplete
        assert not (await store.read((), result.position)).is_incomplete
        await other.forget(["b"])
        assert not (await store.read((), result.position)).is_incomplete


@check
async def every_key_that_nobody_writes_is_forgotten_and_no_other(make: Make) -> None:
    async with opened(make) as store, opened(make) as other:
        for number in range(10):
            await write(store, *((f"key{number * 100 + each}", 7, 0) for each in range(100)))
        end = get_running_loop().time() + TIMEOUT
        while True:
            begun = get_running_loop().time()
            await write(other, ("written", 0, 1))
            while await other.forget_unwritten(0.4):
                pass
            changed: dict[str, int] = {}
            since, has_more = 0, True
            while has_more:
                result = await store.read((), since)
                changed, since, has_more = (
                    {**changed, **result.versions},
                    result.position,
                    result.has_more,
                )
            # A busy machine may take longer for all this than the key lasts.
            assert "written" in changed or get_running_loop().time() > begun + 0.4
            if len(changed) == 1:
                break
            assert get_running_loop().time() < end, f"{len(changed)} keys are still there"
            await sleep(0.02)
        assert (await store.read(("key7",), None)).versions["key7"] == 7
        assert await write(store, ("key7", 0, 1)) == {"key7": 8}


@check
async def all_numbers_are_different_though_their_keys_are_forgotten(make: Make) -> None:
    async with opened(make) as first, opened(make) as second, opened(make) as third:
        numbers: dict[str, list[int]] = {"a": [], "b": []}
        is_over = False

        async def bump(store: "Store", key: str) -> None:
            for _ in range(60):
                with suppress(ConnectionError):  # a key, or the store, is locked
                    message = await store.write([(key, 0, 1)])  # type: ignore[list-item]
                    numbers[key] += message.versions.values()

        async def forget() -> None:
            while not is_over:
                with suppress(ConnectionError):
                    await third.forget(["a", "b"])
                await sleep(0.0)

        forgetting = create_task(forget())
        await gather(*(bump(store, key) for store in (first, second) for key in numbers))
        is_over = True
        await forgetting
        for given in numbers.values():
            assert given, "nothing was written"
            assert len(given) == len({*given}), (
                f"{len(given) - len({*given})} numbers were given twice"
            )


@check
async def what_an_epoch_has_is_there_in_the_next_one(make: Make) -> None:
    async with opened(make) as store, received_from(make) as received:
        await write(store, ("a", 7, 0))
        before = (await store.read((), None)).epoch
        await store.renew(before)
        result = await store.read(("a",), None)
        assert result.epoch != before
        assert result.versions["a"] == 7
        await store.renew(before)  # a second process renews the same epoch
        assert (await store.read((), None)).epoch == result.epoch
        await until(
            lambda: any(
                not message or (not is_hint(message) and message[0] == result.epoch)
                for message in received
            )
        )


@check
async def what_is_sent_reaches_its_sender(make: Make) -> None:
    async with opened(make) as store:
        messages: list[bytes | str] = []
        async with listening(store, messages):
            await store.send(b'"a probe"')
            await until(lambda: any(json.loads(message) == "a probe" for message in messages))


@check
async def what_is_sent_reaches_every_listener(make: Make) -> None:
    async with opened(make) as store, opened(make) as other:
        messages: list[bytes | str] = []
        async with listening(other, messages):
            await store.send(b'{"id":"' + b"x" * 3_990 + b'"}')
            await until(lambda: any(isinstance(json.loads(message), dict) for message in messages))


@check
async def what_is_no_connection_is_refused(make: Make) -> None:
    async with opened(make) as store:
        try:
            await store.write([("a", 0, 1)], object())  # type: ignore[list-item]
        except TypeError:
            pass
        else:
            raise AssertionError("a write with an object() as connection has to raise TypeError")
        assert (await store.read(("a",), None)).versions["a"] == 0


@check
async def a_listener_that_stops_disturbs_nobody(make: Make) -> None:
    async with opened(make) as store:
        async with opened(make) as other:
            messages: list[bytes | str] = []
            async with listening(other, messages):
                await write(store, ("a", 0, 1))
                await until(lambda: bool(messages))
            count = len(messages)
            await write(store, ("a", 0, 1))
            async with listening(other, messages):
                await write(store, ("b", 0, 1))
                await until(lambda: len(messages) > count)
        await write(store, ("a", 0, 1))


@check
async def a_delivery_settles_its_key_and_all_later_ones_are_refused(make: Make) -> None:
    async with opened(make) as store, opened(make) as other:
        if not keeps_deliveries(store):
            return
        assert await settle(store, ("a", b"first"), ("b", b"second")) == {"a": True, "b": True}
        assert await settle(other, ("a", b"third"), ("c", b"fourth")) == {"a": False, "c": True}
        assert await settle(store, ("a", b"fifth")) == {"a": False}
        expected = {"a": b"first", "b": b"second", "c": b"fourth"}
        for each in (store, other):
            assert await settled(each, "a", "b", "c", "never") == expected


@check
async def a_delivery_that_is_made_again_counts_as_made(make: Make) -> None:
    async with opened(make) as store, opened(make) as other:
        if not keeps_deliveries(store):
            return
        first, second = delivery("a", b"first"), delivery("a", b"second")
        assert await settle_by(store, first) == {"a": True}
        assert await settle_by(other, second) == {"a": False}
        for each in (other, store):
            assert await settle_by(each, first) == {"a": True}
            assert await settle_by(each, second) == {"a": False}
        assert await settled(store, "a") == {"a": b"first"}


@check
async def all_but_one_of_many_deliveries_at_once_are_refused(make: Make) -> None:
    async with opened(make) as first, opened(make) as second:
        if not keeps_deliveries(first):
            return
        stores = [first, second] * 10
        answers = await gather(
            *(settle(store, ("a", b"%d" % number)) for number, store in enumerate(stores))
        )
        winners = [number for number, answer in enumerate(answers) if answer["a"]]
        assert len(winners) == 1, f"{len(winners)} deliveries have settled one key"
        for store in (first, second):
            assert await settled(store, "a") == {"a": b"%d" % winners[0]}


@check
async def a_value_is_there_until_its_time_is_over_and_then_its_key_is_free(make: Make) -> None:
    async with opened(make) as store, opened(make) as other:
        if not keeps_deliveries(store):
            return
        begun = get_running_loop().time()
        assert await settle(store, ("a", b"first"), ttl=0.7) == {"a": True}
        while await settled(other, "a"):
            assert get_running_loop().time() < begun + TIMEOUT, "the value is still there"
            await sleep(0.01)
        # The clocks of server and loop differ by some milliseconds.
        assert get_running_loop().time() > begun + 0.65, "the value was gone too early"
        assert await settle(other, ("a", b"second")) == {"a": True}
        assert await settled(store, "a") == {"a": b"second"}


@check
async def a_value_is_any_bytes(make: Make) -> None:
    async with opened(make) as store:
        if not keeps_deliveries(store):
            return
        values = {"a": b"", "b": bytes(range(256)), "c": b"{}\r\n\0" * 3, "d": b"\xff" * 1_000_000}
        assert await settle(store, *values.items()) == dict.fromkeys(values, True)
        assert await settled(store, *values) == values


@check
async def every_string_is_a_key_of_a_value(make: Make) -> None:
    async with opened(make) as store, received_from(make) as received:
        if not keeps_deliveries(store):
            return
        values = {key: b"%d" % number for number, key in enumerate(STRANGE_KEYS)}
        assert await settle(store, *values.items()) == dict.fromkeys(values, True)
        assert await settled(store, *values) == values
        await until(lambda: has_heard_of(received, *values))
        assert dict((await store.read(STRANGE_KEYS, None)).versions) == dict.fromkeys(values, 0)


@check
async def what_is_settled_is_told_to_every_listener_without_the_value(make: Make) -> None:
    async with opened(make) as store, received_from(make) as first, received_from(make) as second:
        if not keeps_deliveries(store):
            return
        keys = [f"key{number}".ljust(500, ".") for number in range(100)]
        await settle(store, *((key, b"a secret value") for key in keys))
        await until(lambda: has_heard_of(first, *keys) and has_heard_of(second, *keys))
        assert "secret" not in json.dumps([first, second])


@check
async def all_values_are_read_though_one_read_may_end_earlier(make: Make) -> None:
    async with opened(make) as store:
        if not keeps_deliveries(store):
            return
        values = {f"key{number}": bytes([number]) * 1_000_000 for number in range(10)}
        for item in values.items():
            await settle(store, item)
        found: dict[str, bytes] = {}
        while len(found) < len(values):
            some = await settled(store, *(key for key in values if key not in found))
            assert some, f"nothing was read of {len(values) - len(found)} values that are there"
            found.update(some)
        assert found == values


@check
async def every_value_that_is_over_is_swept_and_no_other(make: Make) -> None:
    """For a store that has `sweep`, which it need not if it removes values by itself."""
    async with opened(make) as store, opened(make) as other:
        if not hasattr(store, "sweep"):
            return
        await settle(store, ("kept", b"kept"))
        for first in range(0, 250, 50):
            items = ((f"key{number}", b"gone") for number in range(first, first + 50))
            await settle(store, *items, ttl=0.05)
        await sleep(0.1)
        counts = []
        while count := await other.sweep(100):  # type: ignore[attr-defined]
            counts.append(count)
        assert max(counts) <= 100, "more was swept at a time than requested"
        assert sum(counts) == 250, f"{sum(counts)} of 250 values were swept"
        assert await settled(store, "kept", "key7") == {"kept": b"kept"}


@check
async def what_is_no_connection_is_refused_for_a_delivery(make: Make) -> None:
    async with opened(make) as store:
        if not keeps_deliveries(store):
            return
        try:
            await cast("StoreWithDeliveries", store).settle([delivery("a", b"")], object())
        except TypeError:
            pass
        else:
            raise AssertionError("a delivery on an object() as connection has to raise TypeError")
        assert await settled(store, "a") == {}


@check
async def a_cancelled_delivery_leaves_the_store_usable(make: Make) -> None:
    async with opened(make) as store:
        if not keeps_deliveries(store):
            return
        for iterations in range(6):
            for call in (settled(store, "a"), settle(store, (f"a{iterations}", b"value"))):
                await cancel_after(iterations, call)
        await call_twice(lambda: settle(store, ("b", b"value")))
        assert await call_twice(lambda: settled(store, "b")) == {"b": b"value"}


@check
async def a_cancelled_call_leaves_the_store_usable(make: Make) -> None:
    async with opened(make) as store:
        for iterations in range(6):
            for call in (store.read(("a",), 0), write(store, ("a", 0, 1))):
                await cancel_after(iterations, call)
        for _ in range(3):
            await call_twice(lambda: write(store, ("b", 0, 1)))
        assert (await call_twice(lambda: store.read(("b",), None))).versions["b"] >= 3


# -- helpers


async def cancel_after(iterations: int, call: Coroutine[Any, Any, object]) -> None:
    """Starts a call, and cancels it after `iterations` iterations of the loop."""
    task = create_task(call)
    for _ in range(iterations):
        await sleep(0)
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


@asynccontextmanager
async def opened(make: Make) -> AsyncIterator["Store"]:
    store = make()
    try:
        await store.open()
        yield store
    finally:
        await store.close()


@asynccontextmanager
async def listening(store: "Store", messages: list[bytes | str]) -> AsyncIterator[None]:
    """Listens during the block, which starts when the subscription is confirmed."""
    confirmed = asyncio.Event()
    task: Task[None] = create_task(store.listen(confirmed.set, messages.append))
    try:
        await until(lambda: confirmed.is_set() or task.done())
        assert confirmed.is_set(), "the subscription was not confirmed"
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


@asynccontextmanager
async def received_from(make: Make) -> AsyncIterator[list[Any]]:
    """The messages that a listener receives; each is `[epoch, after, position, versions]`, or keys
    as a hint to read them."""

    class Received(list[Any]):
        def append(self, message: bytes | str) -> None:
            super().append(json.loads(message))

    received = Received()
    async with opened(make) as store, listening(store, received):
        yield received


def is_hint(message: Sequence[Any]) -> bool:
    """Whether a message only names keys that are to be read; without any, everything is."""
    return all(isinstance(part, str) for part in message)


def has_heard(received: Sequence[Any], expected: dict[str, int]) -> bool:
    """Whether these versions were received, or hints to read them."""
    versions: dict[str, int] = {}
    for message in received:
        told = (
            {key: expected.get(key, 0) for key in message or expected}
            if is_hint(message)
            else message[3]
        )
        for key, version in told.items():
            versions[key] = max(version, versions.get(key, 0))
    return versions == expected


async def write(store: "Store", *changes: tuple[str, int, int]) -> dict[str, int]:
    return dict((await store.write(changes)).versions)  # type: ignore[arg-type]


def keeps_deliveries(store: "Store") -> bool:
    """Whether the store has the methods for deliveries, which it need not."""
    return hasattr(store, "settle")


def delivery(key: str, value: bytes, ttl: float = 2 * TIMEOUT) -> Any:
    """A new delivery."""
    return Delivery(key, value, ttl, urandom(16))


async def settle(
    store: "Store", *items: tuple[str, bytes], ttl: float = 2 * TIMEOUT
) -> dict[str, bool]:
    return await settle_by(store, *(delivery(key, value, ttl) for key, value in items))


async def settle_by(store: "Store", *deliveries: Any) -> dict[str, bool]:
    return dict(await cast("StoreWithDeliveries", store).settle(deliveries))


async def settled(store: "Store", *keys: str) -> dict[str, bytes]:
    return dict(await cast("StoreWithDeliveries", store).settled(keys))


def has_heard_of(received: Sequence[Any], *keys: str) -> bool:
    """Whether a message announces each of these keys as settled; one without keys announces all."""
    named = [message["settled"] for message in received if type(message) is dict]
    return [] in named or {key for names in named for key in names} == {*keys}


async def call_twice(call: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """Repeats a call once: after a cancelled call, a store may need a new connection."""
    try:
        return await call()
    except ConnectionError:
        return await call()


async def until(condition: Callable[[], bool]) -> None:
    deadline = get_running_loop().time() + TIMEOUT
    while not condition():
        assert get_running_loop().time() < deadline, f"nothing happened within {TIMEOUT:g} s"
        await sleep(0.005)
