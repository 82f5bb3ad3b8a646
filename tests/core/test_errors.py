"""The errors: they share one root, and each is also a subclass of the matching built-in error."""

import asyncio
import re
import tomllib
from pathlib import Path

import pytest

import purgatory
from purgatory import PurgatoryError
from purgatory._core import errors as _errors

ALSO = {
    "OperationTimeout": TimeoutError,
    "OperationReused": RuntimeError,
    "PurgatoryClosed": RuntimeError,
    "RelayUnavailable": ConnectionError,
    "WrongLoop": RuntimeError,
}
ERRORS = {name: error for name, error in vars(_errors).items() if isinstance(error, type)}


def test_errors_share_one_root_and_are_exported():
    assert set(ERRORS) >= {*ALSO, "PurgatoryError", "PurgatoryFull", "OperationCancelled"}
    for name, error in ERRORS.items():
        assert issubclass(error, PurgatoryError) and issubclass(error, Exception)
        assert getattr(purgatory, name) is error and name in purgatory.__all__ and error.__doc__


@pytest.mark.parametrize("name", sorted(set(ERRORS) - {"PurgatoryError"}))
def test_errors_have_exactly_their_builtin_bases(name):
    builtin = [base for base in ERRORS[name].__bases__ if base is not PurgatoryError]
    assert builtin == ([ALSO[name]] if name in ALSO else [])


def test_operation_cancelled_is_no_cancelled_error():
    assert not issubclass(purgatory.OperationCancelled, asyncio.CancelledError)


def test_tree_in_docstring_equals_the_classes():
    shown = {
        line.split()[1]
        for line in (_errors.__doc__ or "").splitlines()
        if line.strip().startswith(("├", "└"))
    }
    assert shown == set(ERRORS) - {"PurgatoryError"}
    for line in (_errors.__doc__ or "").splitlines():
        if "(also a" in line:
            name, builtin = line.split()[1], line.split("(also a ")[1].split(")")[0]
            assert issubclass(ERRORS[name], getattr(__import__("builtins"), builtin))


def test_the_extras_that_errors_name_exist():
    root = Path(__file__).parents[2]
    extras = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["project"][
        "optional-dependencies"
    ]
    named = {
        name
        for file in Path(purgatory.__file__).parent.rglob("*.py")
        for name in re.findall(r"how_to_install\('(\w+)'\)", file.read_text("utf-8"))
    }
    assert {"asgi", "journal", "redis", "top"} <= named <= set(extras)
