"""The types of the values of outcomes, which `tests/docs_types.py` checks."""

from typing import Any, TypeVar, assert_type

from purgatory import DelayedOperation, Purgatory, ThresholdPurgatory
from purgatory.asgi import Outcome, Poll, Versions

T = TypeVar("T")
jobs: Purgatory[Any] = Purgatory("jobs")
offsets: ThresholdPurgatory[str, int] = ThresholdPurgatory("offsets")
versions: Versions[str] = Versions()
results: dict[int, str] = {}


class Fetch(DelayedOperation[bytes]):
    def try_complete(self) -> bool:
        return self.force_complete()


async def query() -> str | None:
    return results.get(7)


async def handler(poll: Poll) -> str:
    plain = await poll.wait_for(jobs, lambda: results.get(7), [7])
    if not plain.is_satisfied:
        return plain.reason
    assert_type(plain.value, str)
    assert_type(await poll.result(jobs, lambda: results.get(7), [7]), str)
    assert_type(await poll.result(jobs, query, [7]), str)
    assert_type(value_of(await poll.wait_for(jobs, query, [7])), str)
    assert_type(value_of(await poll.wait(jobs, Fetch(poll.remaining), [7])), bytes)
    assert_type(value_of(await poll.reach(offsets, "topic", 1)), int)
    assert_type(value_of(await poll.run(jobs.wait_for(lambda: results.get(7), [7]))), str)
    assert_type(value_of(await versions.changed(poll, "news")), int)
    return plain.value.upper()


def value_of(outcome: Outcome[T]) -> T:
    assert outcome.is_satisfied, outcome.reason
    return outcome.value
