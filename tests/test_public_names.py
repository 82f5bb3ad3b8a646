"""The public names, and the cost of `import purgatory`."""

import inspect
import subprocess
import sys
from enum import Enum
from pathlib import Path

import pytest

import purgatory
import purgatory.asgi
import purgatory.console
import purgatory.relay
import purgatory.testing

EXTRAS = [
    "pyspark",
    "rich",
    "starlette",
    "sse_starlette",
    "uvicorn",
    "pyarrow",
    "pandas",
    "prometheus_client",
    "uvloop",
    "pytest",
    "redis",
    "asyncpg",
]


@pytest.mark.parametrize(
    "module",
    [purgatory, purgatory.asgi, purgatory.console, purgatory.relay, purgatory.testing],
    ids=lambda module: module.__name__,
)
def test_all_is_sorted_and_names_what_is_public(module):
    def is_ours(value: object) -> bool:
        return getattr(value, "__module__", "").partition(".")[0] == "purgatory"

    names = {*vars(module), *module.__all__}  # `asgi.console` is imported at its first use
    public = {name for name in names if not name.startswith("_") and is_ours(getattr(module, name))}
    assert module.__all__ == sorted(public)


@pytest.mark.parametrize("name", purgatory.__all__)
def test_public_object_has_docstring_and_public_module(name):
    value = getattr(purgatory, name)
    assert inspect.getdoc(value)
    assert value.__module__.partition(".")[0] == "purgatory"


def may_be_subclassed(value: type) -> bool:
    is_protocol = getattr(value, "_is_protocol", False)
    return (
        value is purgatory.DelayedOperation
        or is_protocol
        or issubclass(value, (BaseException, Enum))
    )


@pytest.mark.parametrize(
    "value",
    [
        value
        for module in (purgatory, purgatory.asgi, purgatory.relay, purgatory.testing)
        for value in map(vars(module).get, module.__all__)
        if isinstance(value, type) and not may_be_subclassed(value)
    ],
    ids=lambda value: value.__name__,
)
def test_only_delayed_operation_can_be_subclassed(value):
    assert getattr(value, "__final__", False), f"{value.__name__} is not @final"


def test_importing_purgatory_imports_no_extra():
    program = f"import purgatory, sys; print([name for name in {EXTRAS!r} if name in sys.modules])"
    root = Path(purgatory.__file__).parent.parent
    child = subprocess.run(
        [sys.executable, "-c", program], cwd=root, capture_output=True, text=True, check=True
    )
    assert child.stdout.strip() == "[]"


def test_page_is_imported_at_its_first_use():
    program = """
import sys
import purgatory.asgi
assert "purgatory.console" not in sys.modules
from purgatory.asgi import console
assert console is sys.modules["purgatory.console"].console
try:
    purgatory.asgi.consoles
except AttributeError as error:
    print(error)
"""
    root = Path(purgatory.__file__).parent.parent
    child = subprocess.run(
        [sys.executable, "-c", program], cwd=root, capture_output=True, text=True, check=True
    )
    assert child.stdout.strip() == "module 'purgatory.asgi' has no attribute 'consoles'"


def test_the_package_is_marked_as_typed():
    assert (Path(purgatory.__file__).parent / "py.typed").exists()
