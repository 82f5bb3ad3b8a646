"""`purgatory.asgi._request`: the wait that a request asks for."""

from typing import Any
from urllib.parse import parse_qsl

import pytest
from hypothesis import given
from hypothesis import strategies as st

from purgatory.asgi._request import (
    preference_applied,
    preferred_wait,
    query_parameter,
    requested_wait,
)


def scope(query: bytes = b"", *prefer: bytes) -> dict[str, Any]:
    return {
        "type": "http",
        "query_string": query,
        "headers": [(b"prefer", value) for value in prefer],
    }


@pytest.mark.parametrize(
    ("values", "seconds"),
    [
        (["wait=20"], 20.0),
        (["wait=0"], 0.0),
        (["respond-async, wait=100"], 100.0),
        (["respond-async", "wait=7"], 7.0),
        (["WAIT = 20 "], 20.0),
        (["handling=lenient; foo, wait=3; bar=4"], 3.0),
        (["wait=5, wait=9"], 5.0),
        (['note="a, wait=1", wait=2'], 2.0),
        (['note="a \\" , wait=1", wait=2'], 2.0),
        (['note="never closed, wait=1'], None),
        (["wait=999999999999999999"], 999999999999999999.0),
        (["wait=-1"], None),
        (["wait=1.5"], None),
        (["wait=soon"], None),
        (["wait"], None),
        (["wait="], None),
        (["wait=1" + "0" * 400], None),
        (["wait=٣"], None),
        (["waiting=5"], None),
        (["return=minimal"], None),
        (["", ",", ";;==,,"], None),
        ([], None),
    ],
)
def test_first_wait_in_prefer_counts(values, seconds):
    assert preferred_wait(values) == seconds


def test_hostile_header_costs_linear_time():
    assert preferred_wait(['"\\"' * 100_000 + "\\", '"' * 100_001, "a=" * 100_000]) is None


@given(st.text("wait&=%+;6a1 é", max_size=20).map(lambda text: text.encode("latin-1")))
def test_a_parameter_is_what_the_standard_library_finds(query):
    expected = dict(parse_qsl(query.decode("latin-1"), keep_blank_values=True))
    for name in ("wait", "a", "", "wa it"):
        assert query_parameter(scope(query), name) == expected.get(name)


def test_the_parameter_counts_more_than_the_header():
    assert requested_wait(scope(b"x=1&wait=0.25", b"wait=9"), "wait") == (0.25, False)
    assert requested_wait(scope(b"x=1", b"wait=9"), "wait") == (9.0, True)
    assert requested_wait(scope(b"x=1"), "wait") is None
    assert requested_wait(scope(b"patience=3&wait=4"), "patience") == (3.0, False)
    assert requested_wait({"type": "http"}, "wait") is None


@pytest.mark.parametrize(
    "text",
    [
        b"soon",
        b"",
        b"-1",
        b"-0.001",
        b"nan",
        b"-inf",
        b"1,5",
        b"%00",
        b"1_0",
        b"%D9%A2",
        b"%201",
        b"1%20",
        b"%2B1",
        b".",
    ],
)
def test_malformed_parameter_is_refused_with_its_value(text):
    with pytest.raises(ValueError, match="wait must be a number of seconds, zero or more, not '"):
        requested_wait(scope(b"wait=" + text), "wait")


@pytest.mark.parametrize(
    ("text", "seconds"), [(b"20", 20.0), (b"0.25", 0.25), (b".5", 0.5), (b"2.", 2.0), (b"1e3", 1e3)]
)
def test_wait_is_accepted_as_json_number_or_shorter(text, seconds):
    assert requested_wait(scope(b"wait=" + text), "wait") == (seconds, False)


def test_a_complaint_does_not_repeat_a_whole_megabyte():
    with pytest.raises(ValueError, match="wait must be") as raised:
        requested_wait(scope(b"wait=" + b"x" * 1_000_000), "wait")
    assert len(str(raised.value)) < 120


def test_infinite_wait_is_parsed_without_cap():
    assert requested_wait(scope(b"wait=inf"), "wait") == (float("inf"), False)


def test_the_last_of_repeated_parameters_counts():
    assert query_parameter(scope(b"a=1&a=2&b="), "a") == "2"
    assert query_parameter(scope(b"a=1&a=2&b="), "b") == ""
    assert query_parameter(scope(b"a=%20x%C3%A9"), "a") == " xé"


@pytest.mark.parametrize(
    ("seconds", "from_header", "applied"),
    [
        (20.0, True, "wait=20"),
        (19.01, True, "wait=20"),
        (0.0, True, "wait=0"),
        (20.0, False, "wait=20"),
        (0.25, False, "wait=0.25"),
        (100.0, False, "wait=100"),
        (0.0, False, "wait=0"),
    ],
)
def test_preference_applied_has_whole_seconds_for_prefer(seconds, from_header, applied):
    assert preference_applied(seconds, from_header) == applied
