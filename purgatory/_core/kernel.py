"""The kernel: the hot path in C, beside the Python that defines it.

A function with the decorator `compiled` has a twin of its name in `_kernel.c`. The twin does the
common case, and calls the function for the rest: with the same arguments, before it has changed
anything. A class with the decorator `fields` has slots that twins read and write; five such classes
get a base in C with the same attributes and methods in the place of their own. So a tree without
the compiled module, or with `PURGATORY_PURE=1` in the environment, does the same, slower. With
`PURGATORY_PURE=0` a missing module is an error, except in a ZIP: Python imports no compiled module
from there, and Spark's workers import the package from one, in the driver's environment.

A module that was built from another `_kernel.c` than the one beside this file is not used either:
after a `git pull` it may not fit the Python sources. Wheels contain no `_kernel.c`.
"""

import os
import warnings
from binascii import crc32
from collections.abc import Callable
from typing import Any, Final, TypeVar

F = TypeVar("F", bound=Callable[..., Any])
C = TypeVar("C", bound=type)


def _is_stale(module: Any) -> bool:
    """Whether `module` was built from another `_kernel.c` than the one beside this file."""
    try:
        with open(os.path.join(os.path.dirname(__file__), "_kernel.c"), "rb") as file:  # noqa: PTH118, PTH120, PTH123
            source = crc32(file.read())
    except OSError:
        return False
    built_from: int | None = getattr(module, "source", None)
    return built_from not in (source, 0)  # 0: compiled by hand, not by the build


_kernel: Any = None
_pure: Final = os.environ.get("PURGATORY_PURE", "")
if _pure in ("", "0"):
    try:
        from purgatory._core import _kernel  # type: ignore[attr-defined,no-redef]
    except ImportError:
        if _pure and os.path.isfile(__file__):  # noqa: PTH113  # nothing else needs pathlib
            raise
    if _kernel is not None and _is_stale(_kernel):
        _why = f"{_kernel.__file__} was built from other sources; rebuild: pip install -e ."
        if _pure:
            raise ImportError(_why)
        warnings.warn(f"purgatory runs without its kernel in C: {_why}", RuntimeWarning, 1)
        _kernel = None

COMPILED: Final[bool] = _kernel is not None
"""Whether the hot path runs in C."""

running_loop: Final[Callable[[], Any] | None] = getattr(_kernel, "running_loop", None)
"""`loop.running_loop`, or its twin in C where that is quicker."""


def compiled(function: F) -> F:
    """The twin of `function`, which has its signature and its documentation; or `function`."""
    return function if _kernel is None else _kernel.twin(function, _name(function))


_OF_ANY_CLASS: Final = {"__doc__", "__module__", "__slots__"}


def fields(cls: C) -> C:
    """Gives the twins the slots of `cls`. Returns it, or the same class on a base in C, with methods
    that replace its own."""
    if _kernel is not None:
        base = _kernel.base(_name(cls))
        if base is not None:
            slots = vars(cls)["__slots__"]
            body = {
                name: value
                for name, value in vars(cls).items()
                if name not in slots and (name not in vars(base) or name in _OF_ANY_CLASS)
            }
            in_c = {*vars(base), *base.__slots__}
            body["__slots__"] = tuple(name for name in slots if name not in in_c)
            parents = [each for each in cls.__bases__ if each not in (object, dict)]
            cls = type(cls)(cls.__name__, (*parents, base), body)
        _kernel.fields(cls, _name(cls))
    return cls


def _name(value: Any) -> str:
    return f"{value.__module__.rpartition('.')[2]}.{value.__qualname__}"


def constants(**values: object) -> None:
    """Gives the twins the objects that they compare with or call, by name."""
    if _kernel is not None:
        _kernel.constants(values)


def _handle(error: BaseException, function: Callable[..., object], *args: object) -> None:
    """Calls `function(*args, error)` for a twin while `error` is being handled, as in an `except`
    block of the definition."""
    context = error.__context__
    try:
        raise error
    except BaseException:
        error.__context__ = context  # which `raise` has replaced, if another is being handled
        function(*args, error)
    finally:
        del error, context  # which would make a cycle with the traceback


constants(handle=_handle)
