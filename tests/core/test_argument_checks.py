"""Descriptions of arguments in messages, and the check for a number of seconds."""

import math
from decimal import Decimal
from fractions import Fraction

import pytest

from purgatory._core.arguments import check_limit, describe, seconds


class Shown:
    def __init__(self, error=None):
        self.error = error

    def __repr__(self):
        if self.error is not None:
            raise self.error
        return "<as it shows itself>"


def test_an_object_is_described_by_its_repr():
    assert [describe(value) for value in ("key", 5, Shown())] == [
        "'key'",
        "5",
        "<as it shows itself>",
    ]


def test_raising_repr_is_replaced_by_type():
    assert (
        describe(Shown(ZeroDivisionError())) == "<Shown, whose __repr__ raised ZeroDivisionError>"
    )


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_exit_in_repr_propagates(error):
    with pytest.raises(error):
        describe(Shown(error()))


class Indexed:
    def __index__(self):
        return 7


@pytest.mark.parametrize(
    ("given", "number"),
    [
        (5, 5.0),
        (True, 1.0),
        (0.25, 0.25),
        (Decimal("0.25"), 0.25),
        (Fraction(1, 4), 0.25),
        (Indexed(), 7.0),
        (math.inf, math.inf),
        (-math.inf, -math.inf),
        (Decimal("Infinity"), math.inf),
    ],
)
def test_numbers_of_all_kinds_are_seconds(given, number):
    assert seconds("timeout", given) == number and type(seconds("timeout", given)) is float


@pytest.mark.parametrize("given", [math.nan, Decimal("NaN")])
def test_seconds_are_never_nan(given):
    with pytest.raises(ValueError, match="delay cannot be NaN"):
        seconds("delay", given)


@pytest.mark.parametrize("given", ["5", b"5", bytearray(b"5"), None, [5], 5j, Shown()])
def test_non_number_is_refused_under_its_name(given):
    with pytest.raises(TypeError) as raised:
        seconds("delay", given)
    assert str(raised.value) == f"delay must be a number of seconds, not {given!r}"


def test_non_number_with_raising_repr_is_refused():
    with pytest.raises(
        TypeError, match="must be a number of seconds, not <Shown, whose __repr__ raised KeyError>"
    ):
        seconds("delay", Shown(KeyError()))


@pytest.mark.parametrize("given", [10**400, -(10**400)])
def test_integer_too_large_for_float_is_refused(given):
    with pytest.raises(
        ValueError, match="timeout must be a number of seconds that a float can hold, or inf"
    ):
        seconds("timeout", given)


@pytest.mark.parametrize("limit", [1, True, 10**30, None])
def test_limit_of_one_and_more_is_accepted(limit):
    check_limit("max_keys", limit)


@pytest.mark.parametrize("limit", [0, -1, False])
def test_limit_below_one_is_refused(limit):
    with pytest.raises(ValueError, match=f"max_keys must be at least 1, .*not {limit}"):
        check_limit("max_keys", limit)


def test_limit_that_is_no_integer_is_refused():
    with pytest.raises(TypeError):
        check_limit("max_keys", 2.5)
