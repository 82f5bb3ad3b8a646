"""Checks a page's data where it is decoded: an address may lead to any server."""

from typing import Any, Final

MAX_SAFE_INTEGER: Final = 2**53


def _number(value: object) -> bool:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_number and -MAX_SAFE_INTEGER <= value <= MAX_SAFE_INTEGER  # type: ignore[operator]


def _number_or_none(value: object) -> bool:
    return value is None or _number(value)


def _text(value: object) -> bool:
    return isinstance(value, str)


def _text_or_none(value: object) -> bool:
    return value is None or isinstance(value, str)


def _boolean(value: object) -> bool:
    return isinstance(value, bool)


def _histogram(value: object) -> bool:
    return (
        isinstance(value, dict)
        and all(isinstance(value.get(name), list) for name in ("bounds", "counts"))
        and len(value["bounds"]) == len(value["counts"]) > 1
        and _number(value["bounds"][0])
        and all(map(_number_or_none, value["bounds"]))
        and all(map(_number, value["counts"]))
    )


def _waits(value: object) -> bool:
    return isinstance(value, dict) and all(map(_histogram, value.values()))


def _counts(value: object) -> bool:
    return isinstance(value, dict) and all(map(_number, value.values()))


_OPERATION: Final = {"keys": [_text], "moreKeys": _number, "kind": _text}
_WORKER: Final = {
    "pid": _number_or_none,
    "host": _text,
    "pending": _number_or_none,
    "polls": _number_or_none,
    "address": _text_or_none,
}
SHAPE: Final = {
    "worker": {"id": _text, "pid": _number, "host?": _text},
    "history": [[object]],
    "purgatories": [
        {
            "name": _text,
            "pending": _number,
            "keys": _number,
            "missed?": _number,
            "oldest?": [{**_OPERATION, "waited": _number_or_none, "left": _number_or_none}],
            "hottest?": [{"key": _text, "waiting": _number, "isAtLeast?": _boolean}],
            "missedLast?": [{**_OPERATION, "ago": _number}],
            "levels?": [{"waiting": _number, "sector": _number}],
            "withoutDeadline?": _number,
            "kinds?": [{"waits": _waits, "lateness": _histogram}],
        }
    ],
    "polls": ({"open": _number, "endings": _counts}, None),
    "relay": ({"isConnected": _boolean, "for": _number}, None),
    "others?": ([_WORKER], None),
}
"""The state of a page, as far as it is drawn: names that end in `?` may be missing, a list has
items of one shape, a tuple has alternatives."""


def check(value: Any, shape: Any, where: str = "the answer") -> None:
    """Compares an answer with its shape.

    Raises:
        ValueError: they differ; the message has the place.
    """
    if isinstance(shape, tuple):
        if value is not None:
            check(value, shape[0], where)
    elif isinstance(shape, list):
        if not isinstance(value, list):
            raise ValueError(f"{where} is no list")
        for each in value:
            check(each, shape[0], where)
    elif isinstance(shape, dict):
        if not isinstance(value, dict):
            raise ValueError(f"{where} is no object")
        for name, part in shape.items():
            known = name.removesuffix("?")
            if known in value:
                check(value[known], part, known)
            elif name == known:
                raise ValueError(f"{where} has no {name!r}")
    elif shape is not object and not shape(value):
        raise ValueError(f"{where} has a value of a wrong type")


def check_state(state: Any) -> None:
    """Checks a whole state: its shape, and that each point of its history has all purgatories.

    Raises:
        ValueError: it is not the state of a page.
    """
    check(state, SHAPE)
    purgatories = state["purgatories"]
    for point in state["history"] if purgatories else ():
        is_point = len(point) >= 3 and _number(point[0]) and _number(point[1])
        counts = point[2] if is_point and isinstance(point[2], list) else []
        if len(counts) != len(purgatories) or not all(
            isinstance(each, list) and len(each) >= 4 and all(map(_number, each)) for each in counts
        ):
            raise ValueError("history has a point without all purgatories")
    for purgatory in purgatories:
        kinds = purgatory.get("kinds", ())
        if len({len(kind["lateness"]["counts"]) for kind in kinds}) > 1:
            raise ValueError("kinds have histograms of different lengths")
        waits = [histogram for kind in kinds for histogram in kind["waits"].values()]
        if len({len(histogram["counts"]) for histogram in waits}) > 1:
            raise ValueError("kinds have histograms of different lengths")
        if "oldest" in purgatory and not {"hottest", "missedLast", "levels", "withoutDeadline"} <= (
            purgatory.keys()
        ):
            raise ValueError("a purgatory has some details, but not all")


def check_worker(worker: Any) -> None:
    """Checks a worker's description of itself.

    Raises:
        ValueError: it is not a worker's description.
    """
    check(worker, {name: shape for name, shape in _WORKER.items() if name != "address"})


def name_of(worker: dict[str, Any]) -> str:
    """The name of a worker among all of them."""
    return f"{worker['pid']}@{worker.get('host', '')}"
