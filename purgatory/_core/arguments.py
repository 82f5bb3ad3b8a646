"""Arguments: how messages show them, and checks of numbers of seconds."""

from io import TextIOWrapper
from math import ldexp
from typing import Any, Final, TextIO

MAX_DESCRIBED: Final = 1000
"""Characters of a `repr` in a message; a key may be a megabyte."""


def printable(text: object) -> str:
    r"""The text on one line: characters that are not printable are escaped as `repr` does (`\x1b`).

    For everything that goes to a terminal or a log: names, keys and answers of servers may carry
    escape sequences, newlines and lone surrogates.
    """
    shown = str(text)
    if shown.isprintable():
        return shown
    return "".join(
        [char if char.isprintable() else char.encode("unicode_escape").decode() for char in shown]
    )


def allow_any_text(output: TextIO) -> None:
    """Makes `output` replace characters that its encoding lacks, instead of raising an error: a
    pipe may be ASCII."""
    if isinstance(output, TextIOWrapper):
        output.reconfigure(errors="replace")


def describe(value: object) -> str:
    """The `repr` of a user's object, printable, at most its first `MAX_DESCRIBED` characters; if
    its `__repr__` raises, its type."""
    try:
        shown = repr(value)
        if len(shown) > MAX_DESCRIBED:
            shown = f"{shown[:MAX_DESCRIBED]}... ({len(shown):,} characters)"
        return printable(shown)
    except Exception as error:
        return f"<{type(value).__name__}, whose __repr__ raised {type(error).__name__}>"


def seconds(name: str, value: Any) -> float:
    """A number of seconds that was given as the argument `name`: an int, a float, a Decimal, a
    Fraction.

    Raises:
        TypeError: not a number (strings are refused).
        ValueError: it is NaN, or an integer too large for a float.
    """
    if type(value) is not float:
        try:
            value = ldexp(value, 0)  # as `float`, but it takes no text
        except TypeError:
            raise TypeError(f"{name} must be a number of seconds, not {describe(value)}") from None
        except OverflowError:
            raise ValueError(
                f"{name} must be a number of seconds that a float can hold, or inf, not such a "
                "large one"
            ) from None
    if value != value:
        raise ValueError(f"{name} cannot be NaN")
    return value  # type: ignore[no-any-return]


def require_drain(drain: float) -> float:
    """A number of seconds that was given as the argument `drain`.

    Raises:
        TypeError, ValueError: see `seconds`; or it is negative.
    """
    drain = seconds("drain", drain)
    if drain < 0.0:
        raise ValueError(f"drain must be zero or more seconds, not {drain!r}")
    return drain


def require_limit(name: str, number: int | None) -> None:
    """Requires a maximum as the argument `name`; None for no limit.

    Raises:
        TypeError: `number` is not an integer.
        ValueError: `number` is below 1.
    """
    if number is not None and (not isinstance(number, int) or number < 1):
        kind = ValueError if isinstance(number, int) else TypeError
        raise kind(f"{name} must be an int of at least 1, or None, not {describe(number)}")


def require_kind(kind: object) -> None:
    """Raises `TypeError` unless the argument `kind` is a string or None."""
    if kind is not None and not isinstance(kind, str):
        raise TypeError(f"kind must be a string or None, got {describe(kind)}")


def require_exception(action: str, exception: object) -> None:
    """Raises `TypeError`, which says that `action` cannot be done, unless `exception` is one."""
    if not isinstance(exception, BaseException):
        raise TypeError(
            f"cannot {action} with {describe(exception)}: it is not an instance of an exception"
        )
