"""Keys that are forgotten: no number is given twice, no waiter is lost, and old keys are found by
positions alone."""

import asyncio
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from loops import Runner
from relay_waits import knows, until
from servers import TIMEOUT

from purgatory.relay import Relay
from purgatory.relay._forgetting import SAMPLES, Samples, horizon

prefixes = count(1)


@pytest.fixture
def relay(url: str) -> Callable[..., Relay]:
    """Makes relays on one store, which is empty."""
    prefix = f"test{next(prefixes)}"
    return lambda **options: Relay(
        url, **{"prefix": prefix, "timeout": TIMEOUT, "resync": TIMEOUT, **options}
    )


@given(
    steps=st.lists(st.tuples(st.floats(0.0, 30.0), st.integers(0, 5), st.booleans()), max_size=60)
)
def test_old_keys_are_forgotten_within_an_eighth(
    steps: list[tuple[float, int, bool]],
) -> None:
    seconds, now, position = 40.0, 0.0, 0
    written = {0: 0.0}  # each position, and the time at which it was reached
    samples: Samples = []
    looks = [-1000.0]
    for passes, writes, is_looked in steps:
        now += passes
        for _ in range(writes):
            position += 1
            written[position] = now
        if not is_looked:
            continue
        samples, last = horizon(samples, now, position, seconds)
        assert len(samples) <= SAMPLES + 2
        assert last <= max(
            (at for at, time in written.items() if time <= now - seconds), default=-1
        )
        sampled = [look for look in looks if look <= now - seconds]
        if sampled[1:]:  # positions written `seconds / SAMPLES` before the last such look
            expected = [
                at for at, time in written.items() if time <= sampled[-1] - seconds / SAMPLES
            ]
            assert last >= max(expected, default=-1)
        looks.append(now)


def test_clock_set_back_forgets_nothing_early() -> None:
    samples, _ = horizon([], 1000.0, 10, 40.0)
    samples, last = horizon(samples, 100.0, 20, 40.0)
    assert (samples, last) == ([(100.0, 20)], -1)
    samples, last = horizon(samples, 141.0, 30, 40.0)
    assert last == 20


def test_wait_on_forgotten_key_ends_at_next_write(run: Runner, relay: Callable[..., Relay]) -> None:
    async def main() -> None:
        async with relay() as here, relay() as there:
            assert await there.advance("a", 5) == 5
            assert await there.advance("b", 40) == 40
            waiting, other = (
                asyncio.create_task(here.wait("a", 5)),
                asyncio.create_task(here.wait("c", 40)),
            )
            await knows(here, "a")
            await there.forget("a")
            await there.forget("b")
            assert (
                await there.version("a")
                == await here.version("b")
                == await here.version("new")
                == 40
            )
            assert not waiting.done()
            assert await here.wait("new", 0) == 40
            assert await there.bump("a") == 41
            assert await waiting == 41
            if not other.done():  # as it is if it has read its key after the floor had risen
                assert await there.bump("c") == 41
                assert await other == 41
            assert here.statistics().epochs == there.statistics().epochs == 1

    run(main)


def test_forgotten_key_with_lost_message_resyncs(run: Runner, relay: Callable[..., Relay]) -> None:
    async def main() -> None:
        async with relay() as here, relay() as there:
            waiting = asyncio.create_task(here.wait("a", 0))
            await knows(here, "a")
            here._follower.on_message = lambda _: None  # type: ignore[method-assign]
            here._follower.on_hint = lambda _: None  # type: ignore[method-assign]
            assert await there.bump("a") == 1
            await there.forget("a")
            assert not waiting.done()
            here._follower.resync()
            here._sync.wake()  # type: ignore[union-attr]
            assert await waiting == 1

    run(main)


def test_relay_forgets_only_unwritten_keys(run: Runner, relay: Callable[..., Relay]) -> None:
    async def main() -> None:
        async with relay(forget_after=1.0) as here, relay() as there:
            await asyncio.gather(*(there.advance(f"key{number}", 7) for number in range(1_000)))
            waiting = asyncio.create_task(here.wait("key7", 7))
            numbers = [await there.bump("busy")]

            async def stored() -> set[str]:
                keys, since, has_more = set(), 0, True
                while has_more:
                    _, since, versions, has_more, *_ = await there._store.read((), since)
                    keys |= set(versions)
                return keys

            while await stored() != {"busy"}:
                numbers.append(await there.bump("busy"))
                await asyncio.sleep(0.02)
            await until(lambda: here.statistics().is_connected)
            assert numbers == list(range(1, len(numbers) + 1))
            assert not waiting.done()
            assert await there.bump("key7") == 8
            assert await waiting == 8
            assert await here.version("key8") == 7

    run(main)


@pytest.mark.parametrize("seconds", [0, -1.0, float("inf"), float("nan")])
def test_a_time_that_is_none_is_refused(tmp_path: Path, seconds: float) -> None:
    with pytest.raises(
        ValueError,
        match=r"forget_after (must be a positive, finite number of seconds|cannot be NaN)",
    ):
        Relay(f"file://{tmp_path}", forget_after=seconds)
