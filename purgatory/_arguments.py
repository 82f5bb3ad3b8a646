"""What users give: how it is shown in messages, and whether it is a number of seconds."""

from math import isnan
from typing import Any


def describe(value: object) -> str:
    """The `repr` of a user's object; of one whose `__repr__` raises, its type."""
    try:
        return repr(value)
    except Exception as error:
        return f"<{type(value).__name__}, whose __repr__ raised {type(error).__name__}>"


def seconds(name: str, value: Any) -> float:
    """A number of seconds that was given as the argument `name`: an int, a float, a Decimal, a Fraction.

    Raises:
        TypeError: it is no number; a text is none.
        ValueError: it is NaN, or an integer too large for a float.
    """
    kind = type(value)
    if kind is not float:
        if isinstance(value, (str, bytes, bytearray)) or not (hasattr(kind, "__float__") or hasattr(kind, "__index__")):
            raise TypeError(f"{name} must be a number of seconds, not {describe(value)}")
        try:
            value = float(value)
        except OverflowError:
            raise ValueError(
                f"{name} must be a number of seconds that a float can hold, or inf, not such a large one"
            ) from None
    if isnan(value):
        raise ValueError(f"{name} cannot be NaN")
    return value  # type: ignore[no-any-return]
