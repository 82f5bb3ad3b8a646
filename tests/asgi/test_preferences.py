"""`purgatory.asgi._request`: the wait that a request names."""

from typing import Any
from urllib.parse import parse_qsl

import pytest
from hypothesis import example, given
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
        *(
            [[text], None]
            for text in ["wait=-1", "wait=1.5", "wait=soon", "wait", "wait=", "wait=٣", "waiting=5"]
        ),
        (["wait=1" + "0" * 400], None),
        (["", ",", ";;==,,"], None),
        ([], None),
        (['"\\"' * 100_000 + "\\", '"' * 100_001, "a=" * 100_000], None),  # in linear time
    ],
)
def test_first_wait_in_prefer_counts(values, seconds):
    assert preferred_wait(values) == seconds


@given(st.text("wait&=%+;6a1 é", max_size=20).map(lambda text: text.encode("latin-1")))
@example(b"a=1&a=2&b=")
@example(b"a=%20x%C3%A9")
def test_parameter_equals_the_standard_librarys(query):
    expected = dict(parse_qsl(query.decode("latin-1"), keep_blank_values=True))
    for name in ("wait", "a", "b", "", "wa it"):
        assert query_parameter(scope(query), name) == expected.get(name)


@pytest.mark.parametrize(
    ("query", "prefer", "requested"),
    [
        (b"x=1&wait=0.25", b"wait=9", (0.25, False)),
        (b"x=1", b"wait=9", (9.0, True)),
        (b"x=1", b"", None),
        (b"wait=20", b"", (20.0, False)),
        (b"wait=.5", b"", (0.5, False)),
        (b"wait=2.", b"", (2.0, False)),
        (b"wait=1e3", b"", (1e3, False)),
        (b"wait=inf", b"", (float("inf"), False)),
    ],
)
def test_parameter_takes_precedence_over_header(query, prefer, requested):
    assert requested_wait(scope(query, prefer), "wait") == requested
    assert requested_wait(scope(b"patience=3&" + query), "patience") == (3.0, False)
    assert requested_wait({"type": "http"}, "wait") is None


MALFORMED = b"soon - -1 -0.001 nan -inf 1,5 %00 1_0 %D9%A2 %201 1%20 %2B1 .".split()


@pytest.mark.parametrize("text", [b"", *MALFORMED, b"x" * 1_000_000])
def test_malformed_parameter_is_refused_with_its_value(text):
    message = "wait must be a number of seconds, zero or more, not '"
    with pytest.raises(ValueError, match=message) as raised:
        requested_wait(scope(b"wait=" + text), "wait")
    assert len(str(raised.value)) < 120


@pytest.mark.parametrize(
    ("seconds", "from_header", "applied"),
    [
        (20.0, True, "wait=20"),
        (19.01, True, "wait=20"),
        (0.0, True, "wait=0"),
        (20.0, False, "wait=20"),
        (0.25, False, "wait=0.25"),
        (0.0, False, "wait=0"),
    ],
)
def test_preference_applied_has_whole_seconds_for_prefer(seconds, from_header, applied):
    assert preference_applied(seconds, from_header) == applied
