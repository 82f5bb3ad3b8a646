"""The watch lists alone."""

from sys import getsizeof
from typing import Any
from unittest.mock import patch

import pytest
from helpers import Probe
from hypothesis import given, settings
from hypothesis import strategies as st

from purgatory import COMPILED, OperationState
from purgatory._core import watch_lists
from purgatory._core.watch_lists import CHUNK_CAPACITY, UNWATCHED, Watchers, keys_of, unique_keys


def watch(watchers: Watchers, *keys: object) -> Probe:
    operation = Probe(name=keys)
    join(watchers, operation, unique_keys(keys))
    return operation


def join(watchers: Watchers, operation: Any, keys: Any) -> None:
    """Adds a new operation, like `Purgatory`."""
    if type(keys) is tuple:
        watchers.add(operation, keys)
    else:
        waiting = watchers.by_key.setdefault(keys, operation)
        operation._op_links = (
            keys if waiting is operation else watchers.join(keys, waiting, operation)
        )
        watchers.pending += 1


def unwatch(watchers: Watchers, operation: Probe) -> None:
    """As a claim does it."""
    links, operation._op_links = operation._op_links, UNWATCHED
    operation._op_state = OperationState.CANCELLED
    watchers.pending -= 1
    watchers.remove(operation, links)


# Keys


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        (["a"], ["a"]),
        (("a", "a"), ["a"]),
        ({"a": 1}, ["a"]),
        ((key for key in ["b", "a", "b"]), ["b", "a"]),
        ([1, 1.0, True, 2], [1, 2]),
        ([None], [None]),
        ([("a", "b")], [("a", "b")]),
        (["a", None], ["a", None]),
    ],
)
def test_keys_are_counted_once_and_keep_their_order(keys, expected):
    watchers = Watchers()
    operation = watch(watchers, *keys)
    assert (
        list(watchers.by_key) == expected
        and watchers.registrations == len(expected)
        and len(watchers) == 1
    )
    unwatch(watchers, operation)
    assert watchers.by_key == {} and watchers.registrations == len(watchers) == 0


@pytest.mark.parametrize(
    ("keys", "error", "message"),
    [
        ([], ValueError, "at least one key"),
        (iter(()), ValueError, "at least one key"),
        ("orders", TypeError, r"got one string: pass \['orders'\]"),
        (b"orders", TypeError, r"got one string: pass \[b'orders'\]"),
        ([[]], TypeError, "unhashable"),
        (3, TypeError, r"got 3: pass \[3\] to watch it"),
    ],
)
def test_keys_that_cannot_be_watched_are_refused(keys, error, message):
    with pytest.raises(error, match=message):
        unique_keys(keys)


def test_tuple_as_key_is_one_key():
    assert unique_keys([("a", "b")]) == (("a", "b"),) and unique_keys((("a", "b"),)) == (
        ("a", "b"),
    )
    assert unique_keys(["a", "b"]) == unique_keys(("a", "b")) == ("a", "b")
    assert unique_keys(["a"]) == unique_keys(("a",)) == "a"


@pytest.mark.parametrize("crowded", [False, True])
@pytest.mark.parametrize("keys", [("a",), ("a", "b"), (("a", "b"),)])
def test_operation_knows_its_own_keys(keys, crowded):
    watchers = Watchers()
    others = [watch(watchers, *keys) for _ in range(3)] if crowded else []
    operation = watch(watchers, *keys)
    for other in others:
        unwatch(watchers, other)
    assert keys_of(operation._op_links) == keys
    unwatch(watchers, operation)
    assert keys_of(operation._op_links) == ()


class Changing:
    """A faulty key, whose hash raises `error`."""

    error = None

    def __hash__(self):
        if self.error is not None:
            raise self.error
        return 1


@pytest.mark.parametrize("crowded", [False, True])
def test_failed_watch_leaves_no_registration(crowded):
    watchers, bad = Watchers(), Changing()
    others = [watch(watchers, "a", "b")] if crowded else []
    keys = unique_keys(["a", "b", bad])
    bad.error = ZeroDivisionError()
    with pytest.raises(ZeroDivisionError):
        watchers.add(Probe(), keys)
    assert watchers.operations("a") == watchers.operations("b") == others and len(watchers) == len(
        others
    )
    watchers._check()


# Lists


def test_watchers_stay_in_order_when_some_leave():
    watchers = Watchers()
    operations = [watch(watchers, "a") for _ in range(5)]
    unwatch(watchers, operations.pop(2))
    unwatch(watchers, operations.pop(0))
    operations.append(watch(watchers, "a"))
    assert watchers.operations("a") == operations and watchers.operations("b") == []
    watchers._check()


def test_last_watcher_of_key_removes_its_list():
    watchers = Watchers()
    first, second = watch(watchers, "a"), watch(watchers, "b", "a")
    for operation in (first, second):
        unwatch(watchers, operation)
        watchers._check()
    assert watchers.by_key == {} and len(watchers) == watchers.registrations == 0


def test_chunk_holds_each_operation_once():
    watchers = Watchers()
    first, second = watch(watchers, "a", "b"), watch(watchers, "b", "a")
    chunk, other = watchers.by_key["a"], Probe()
    chunk[first] = None
    assert list(chunk) == [first, second] and len(chunk) == 2
    assert first in chunk and other not in chunk and "a" not in chunk
    with pytest.raises(KeyError):
        del chunk[other]
    del chunk[first]
    assert list(chunk) == [second] and list(watchers.by_key["b"]) == [first, second]


@pytest.mark.cpython
def test_size_of_chunk_grows_with_its_watchers():
    watchers = Watchers()
    operations = [watch(watchers, "a") for _ in range(100)]
    before = getsizeof(watchers.by_key["a"])
    operations += [watch(watchers, "a") for _ in range(900)]
    assert getsizeof(watchers.by_key["a"]) > before + 900 * 24
    assert watchers.operations("a") == operations


class Counted(Probe):
    """Counts how often it is visited."""

    looks = 0


def counted_hash(operation: Counted) -> int:
    Counted.looks += 1
    return id(operation)


def counted_equality(operation: Counted, other: object) -> bool:
    Counted.looks += 1
    return operation is other


# A class statement with these methods would be refused.
Counted.__hash__ = counted_hash  # type: ignore[method-assign]
Counted.__eq__ = counted_equality  # type: ignore[method-assign,assignment]


@pytest.mark.parametrize("count", [2, 100, 10_000])
@pytest.mark.parametrize("place", [0.0, 0.5, 1.0], ids=["first", "middle", "last"])
def test_leaving_hot_key_visits_no_other_operation(count, place):
    watchers = Watchers()
    operations = [Counted() for _ in range(count)]
    for operation in operations:
        join(watchers, operation, "hot")
    Counted.looks = 0
    leaving = operations[round(place * (count - 1))]
    watchers.pending -= 1
    watchers.remove(leaving, leaving._op_links)
    assert Counted.looks == 0 if COMPILED else 0 < Counted.looks <= 3
    assert watchers.registrations == len(watchers) == count - 1


@settings(derandomize=True, database=None, deadline=None, max_examples=150)
@given(
    st.lists(
        st.tuples(
            st.booleans(), st.integers(0, 30), st.lists(st.integers(0, 4), min_size=1, max_size=4)
        ),
        max_size=80,
    ),
    st.sampled_from([2, CHUNK_CAPACITY]),
)
def test_lists_match_a_naive_list_of_registrations(steps, longest):
    watchers = Watchers()
    model: list[tuple[Probe, list[int]]] = []
    with patch.object(watch_lists, "CHUNK_CAPACITY", longest):
        for joins, number, keys in steps:
            if joins or not model:
                model.append((watch(watchers, *keys), keys))
            else:
                unwatch(watchers, model.pop(number % len(model))[0])
            watchers._check()
            assert len(watchers) == len(model)
            assert watchers.registrations == sum(len(set(keys)) for _, keys in model)
            for key in range(5):
                watching = [operation for operation, keys in model if key in keys]
                assert watchers.operations(key) == watching
                first = watchers.first_operations(key)
                assert first == watching[: len(first)] and bool(first) is bool(watching)


@pytest.mark.cpython
def test_dictionary_releases_its_memory_only_when_empty():
    watchers = Watchers()
    operations = [watch(watchers, number) for number in range(1000)]
    for operation in operations[1:]:
        unwatch(watchers, operation)
    full = getsizeof(watchers.by_key)
    watchers.shrink()
    assert getsizeof(watchers.by_key) == full and len(watchers) == 1
    unwatch(watchers, operations[0])
    assert getsizeof(watchers.by_key) == full
    watchers.shrink()
    assert getsizeof(watchers.by_key) == getsizeof({})
