"""An entry is found again though other keys equal its own by now."""

import asyncio
from typing import Any

import pytest
from loops import on_virtual_time

from purgatory import IdleTracker, ThresholdPurgatory
from purgatory._core.changed_keys import remove_entry


class Changing:
    """A key that equals others of the same value."""

    def __init__(self, value: str) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        if self.value == "broken":
            raise RuntimeError("broken key")
        return isinstance(other, Changing) and self.value == other.value

    def __hash__(self) -> int:
        return 1


class Refilled(dict[str, object]):
    """Has another entry for each that is removed."""

    def pop(self, key: str, default: object = None) -> object:
        self[key] = object()
        return super().pop(key, default)


def test_entry_behind_equal_keys_is_removed():
    keys = [Changing(value) for value in "abc"]
    table = dict(zip(keys, ("first", "second", "third"), strict=True))
    for key in keys:
        key.value = "c"
    found = table.pop(keys[2])
    back: list[str] = []
    assert remove_entry(table, keys[2], "third", found, back.append)
    assert back == ["first", "second"] and table == {}


def test_entry_that_is_gone_is_not_found():
    back: list[str] = []
    assert not remove_entry({"other": "entry"}, "key", "gone", "found", back.append)
    assert back == ["found"]


def test_key_that_raises_leaves_others_put_back():
    broken, steady = Changing("a"), Changing("b")
    table, back = {broken: "first", steady: "second"}, []
    broken.value = "broken"
    with pytest.raises(RuntimeError, match="broken key"):
        remove_entry(table, Changing("b"), "third", "found", back.append)
    assert back == ["found"]


def test_search_ends_in_table_that_grows():
    back: list[object] = []
    assert not remove_entry(Refilled(key=1), "key", object(), "found", back.append)
    assert len(back) == 2


@on_virtual_time
@pytest.mark.parametrize("becomes", ["equal", "broken"])
async def test_wait_put_back_as_lost_ends(becomes: str, reports: list[dict[str, Any]]) -> None:
    thresholds: ThresholdPurgatory[Changing, int] = ThresholdPurgatory()
    keys = [Changing("first"), Changing("second"), Changing("third")]
    waits = [asyncio.ensure_future(thresholds.wait(key, 5)) for key in keys]
    await asyncio.sleep(0)
    for key in keys:
        key.value = "equal"
    keys[1].value = becomes
    waits[2].cancel()
    await asyncio.sleep(1)
    assert len(reports) >= 1 and thresholds.pending == 2
    assert await thresholds.aclose() == 2
    await asyncio.wait(waits)
    assert thresholds.pending == 0 and all(wait.done() for wait in waits)


@on_virtual_time
async def test_id_put_back_as_lost_falls_idle(reports: list[dict[str, Any]]) -> None:
    idle: list[Changing] = []
    tracker: IdleTracker[Changing] = IdleTracker(5, idle.append)
    ids = [Changing("first"), Changing("second"), Changing("third")]
    for each in ids:
        tracker.touch(each)
    await asyncio.sleep(1)
    tracker.touch(ids[0])
    tracker.touch(ids[1])
    for each in ids:
        each.value = "equal"
    await asyncio.sleep(10)
    assert {*map(id, idle)} == {*map(id, ids)} and len(reports) == 1
    assert len(tracker) == 0
