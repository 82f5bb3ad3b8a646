"""What a store for `purgatory.relay` has promised, as checks that every store has to pass, ours and yours.

    @pytest.mark.parametrize("check", store_checks(), ids=lambda check: check.__name__)
    def test_it_is_a_store(check, server):
        asyncio.run(check(lambda: MyStore(server.address)))

This module imports nothing from the relay, which shows that a store need not know anything of it either.
"""

import asyncio
import json
from asyncio import Task, create_task, gather, get_running_loop, sleep
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from purgatory.relay import Store

Make = Callable[[], "Store"]
"""Makes one more object for the same store, which is empty at the beginning of a check."""

Check = Callable[[Make], Coroutine[Any, Any, None]]

PATIENCE: Final = 10.0
"""Seconds to wait for what has to come."""

STRANGE_KEYS: Final = ("", " ", "\0", "\n", '"', "\\", "'", "{}", "%s", "v:", "Schlüssel", "🦉", "a" * 512, "\x01" * 512)


def store_checks() -> list[Check]:
    """All checks. Each takes a function that makes a new object for one and the same store, which has to be empty, and raises
    `AssertionError` if a promise of `purgatory.relay.Store` is not kept."""
    return [value for name, value in globals().items() if name.startswith(("a_", "all_", "every", "what_", "who_"))]


async def a_key_that_was_never_written_has_version_0(make: Make) -> None:
    async with opened(make) as store:
        answer = await store.read(("a", "b"), None)
        assert dict(answer.versions) == {"a": 0, "b": 0}
        assert answer.epoch
        assert not answer.has_more


async def a_write_raises_a_version_to_at_least_so_much_and_then_by_so_many(make: Make) -> None:
    async with opened(make) as store:
        for at_least, more, version in ((0, 1, 1), (0, 1, 2), (7, 0, 7), (5, 0, 7), (0, 3, 10), (12, 2, 14), (13, 1, 15)):
            news = await write(store, ("a", at_least, more))
            assert news["a"] == version, f"{version} was due, not {news['a']}"
        assert (await store.read(("a",), None)).versions["a"] == 15


async def a_write_may_change_a_hundred_keys(make: Make) -> None:
    async with opened(make) as store:
        keys = [f"key{number}".ljust(500, ".") for number in range(100)]
        assert await write(store, *((key, 0, 1) for key in keys)) == dict.fromkeys(keys, 1)
        assert dict((await store.read(keys, None)).versions) == dict.fromkeys(keys, 1)


async def a_version_is_exact_up_to_2_to_the_power_of_53(make: Make) -> None:
    async with opened(make) as store:
        assert await write(store, ("a", 2**52 - 1, 0)) == {"a": 2**52 - 1}
        assert await write(store, ("a", 2**52, 1)) == {"a": 2**52 + 1}
        assert (await store.read(("a",), None)).versions["a"] == 2**52 + 1


async def every_text_is_a_key(make: Make) -> None:
    async with opened(make) as store, hearing(make) as heard:
        for number, key in enumerate(STRANGE_KEYS, 1):
            assert await write(store, (key, number, 0)) == {key: number}
        expected = {key: number for number, key in enumerate(STRANGE_KEYS, 1)}
        assert dict((await store.read(STRANGE_KEYS, None)).versions) == expected
        await until(lambda: versions_of(heard) == expected)


async def all_writers_get_numbers_of_their_own(make: Make) -> None:
    async with opened(make) as first, opened(make) as second:

        async def bump(store: "Store", times: int) -> list[int]:
            return [(await write(store, ("a", 0, 1)))["a"] for _ in range(times)]

        both = await gather(bump(first, 40), bump(second, 40))
        assert sorted([*both[0], *both[1]]) == list(range(1, 81))
        assert all(sorted(own) == own for own in both)


async def all_who_open_a_new_store_at_once_find_one_epoch(make: Make) -> None:
    stores = [make() for _ in range(4)]
    try:
        await gather(*(store.open() for store in stores))
        assert len({(await store.read((), None)).epoch for store in stores}) == 1
    finally:
        for store in stores:
            await store.close()


async def what_is_written_is_told_to_everyone_who_listens(make: Make) -> None:
    async with opened(make) as store, hearing(make) as first, hearing(make) as second:
        await write(store, ("a", 0, 1), ("b", 5, 0))
        expected = {"a": 1, "b": 5}
        await until(lambda: versions_of(first) == versions_of(second) == expected)
        assert first[0][0] == second[0][0] == (await store.read((), None)).epoch


async def what_counts_its_writes_leaves_no_gap(make: Make) -> None:
    async with opened(make) as store, opened(make) as other, hearing(make) as heard:
        for number in range(10):
            await write(other if number % 3 else store, ("a", 0, 1), (f"b{number}", 0, 1))
        await until(lambda: len(versions_of(heard)) == 11)
        steps = [(after, position) for _, after, position, versions in heard if versions]
        if steps[0][0] < 0:
            return
        assert all(before < after for before, after in steps)
        assert sorted(after for after, _ in steps[1:]) == sorted(position for _, position in steps[:-1])


async def what_has_changed_since_a_position_can_be_read(make: Make) -> None:
    async with opened(make) as store, opened(make) as other:
        await write(store, ("old", 0, 1))
        position = (await store.read((), None)).position
        for number in range(30):
            await write(other, ("a", 0, 1), (f"b{number}", 0, 1))
        changed: dict[str, int] = {}
        has_more = True
        while has_more:
            answer = await store.read(("old", "never"), position)
            assert answer.position >= position
            position, has_more = answer.position, answer.has_more
            changed.update(answer.versions)
        expected = {"old": 1, "never": 0, "a": 30, **{f"b{number}": 1 for number in range(30)}}
        assert changed == expected
        await write(other, ("c", 0, 1))
        assert (await store.read((), position)).versions["c"] == 1


async def what_an_epoch_has_is_there_in_the_next_one(make: Make) -> None:
    async with opened(make) as store, hearing(make) as heard:
        await write(store, ("a", 7, 0))
        before = (await store.read((), None)).epoch
        await store.renew(before)
        answer = await store.read(("a",), None)
        assert answer.epoch != before
        assert answer.versions["a"] == 7
        await store.renew(before)  # somebody else was late
        assert (await store.read((), None)).epoch == answer.epoch
        await until(lambda: any(news[0] == answer.epoch and not news[3] for news in heard))


async def what_one_sends_comes_back_through_the_channel(make: Make) -> None:
    async with opened(make) as store:
        messages: list[bytes | str] = []
        async with listening(store, messages):
            await store.send(b'"a probe"')
            await until(lambda: any(json.loads(message) == "a probe" for message in messages))


async def what_one_sends_is_heard_by_everyone(make: Make) -> None:
    async with opened(make) as store, opened(make) as other:
        messages: list[bytes | str] = []
        async with listening(other, messages):
            await store.send(b'{"id":"' + b"x" * 3_990 + b'"}')
            await until(lambda: any(isinstance(json.loads(message), dict) for message in messages))


async def what_the_caller_cannot_write_on_is_refused(make: Make) -> None:
    async with opened(make) as store:
        try:
            await store.write([("a", 0, 1)], object())  # type: ignore[list-item]
        except TypeError:
            pass
        else:
            raise AssertionError("a write on an object() is to raise TypeError")
        assert (await store.read(("a",), None)).versions["a"] == 0


async def who_stops_listening_is_in_nobodys_way(make: Make) -> None:
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


async def who_is_cancelled_leaves_the_store_as_good_as_it_was(make: Make) -> None:
    async with opened(make) as store:
        for turns in range(6):
            for call in (store.read(("a",), 0), write(store, ("a", 0, 1))):
                task = create_task(call)
                for _ in range(turns):
                    await sleep(0)
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
        for _ in range(3):
            await try_again(lambda: write(store, ("b", 0, 1)))
        assert (await try_again(lambda: store.read(("b",), None))).versions["b"] >= 3


# -- what the checks are made of


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
    """Listens for the length of the block, which begins when the subscription stands."""
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
async def hearing(make: Make) -> AsyncIterator[list[Any]]:
    """The news that a listener hears; each is `[epoch, after, position, versions]`."""
    messages: list[bytes | str] = []

    class Heard(list[Any]):
        def append(self, message: bytes | str) -> None:
            super().append(json.loads(message))

    heard = Heard(messages)
    async with opened(make) as store, listening(store, heard):
        yield heard


def versions_of(heard: Sequence[Any]) -> dict[str, int]:
    """The highest versions that were heard of."""
    versions: dict[str, int] = {}
    for news in heard:
        for key, version in news[3].items():
            versions[key] = max(version, versions.get(key, 0))
    return versions


async def write(store: "Store", *changes: tuple[str, int, int]) -> dict[str, int]:
    return dict((await store.write(changes)).versions)  # type: ignore[arg-type]


async def try_again(call: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """A store may need a new connection after a call on the old one was cancelled."""
    try:
        return await call()
    except ConnectionError:
        return await call()


async def until(condition: Callable[[], bool]) -> None:
    deadline = get_running_loop().time() + PATIENCE
    while not condition():
        assert get_running_loop().time() < deadline, "what was due has not come"
        await sleep(0.005)
