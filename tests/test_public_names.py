"""The public names, and the cost of `import purgatory`."""

import ast
import re
from collections.abc import Iterator
from enum import Enum
from importlib.metadata import version
from inspect import Parameter, isfunction, isroutine, signature
from pathlib import Path
from typing import Any, get_type_hints

import pytest

import purgatory
import purgatory.asgi
import purgatory.console
import purgatory.metrics
import purgatory.relay
import purgatory.testing

PACKAGE = Path(purgatory.__file__).parent
ROOMS = (purgatory.asgi, purgatory.console, purgatory.metrics, purgatory.relay, purgatory.testing)
MODULES = (purgatory, *ROOMS)
EXTRAS = [
    *("asyncpg", "opentelemetry", "pandas", "prometheus_client", "pyarrow", "pyspark", "pytest"),
    *("redis", "rich", "starlette", "uvicorn", "uvloop"),
]
NEEDED = [
    ("starlette", "import purgatory.asgi.sse", "pip install '.[asgi]' in a clone"),
    ("fastapi", "import purgatory.asgi.fastapi", "pip install fastapi"),
    ("pyarrow", "import purgatory.journal", "pip install '.[journal]' in a clone"),
    ("redis", "relay.Relay('redis://host')", "pip install '.[redis]' in a clone"),
    ("asyncpg", "relay.Relay('postgresql://host')", "pip install '.[postgresql]' in a clone"),
    ("nats", "relay.Relay('nats://host')", "pip install '.[nats]' in a clone"),
    ("rich", "sys.exit(top.main(['http://h']))", "purgatory.top needs rich: pip install '.[top]'"),
]
"""Modules, code that needs them, and what it says without them."""


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_all_is_sorted_and_names_what_is_public(module):
    def is_ours(value: object) -> bool:
        return getattr(value, "__module__", "").partition(".")[0] == "purgatory"

    public = {
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and (is_ours(value) or name.isupper())
    }
    assert module.__all__ == sorted(public)


def test_version_equals_that_of_the_distribution():
    assert purgatory.__version__ == version("asyncio-purgatory")
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        purgatory.nonsense  # noqa: B018


def may_be_subclassed(value: type) -> bool:
    is_protocol = getattr(value, "_is_protocol", False)
    is_open = value is purgatory.DelayedOperation or is_protocol
    return is_open or issubclass(value, (BaseException, Enum))


@pytest.mark.parametrize(
    "value",
    [
        value
        for module in MODULES
        for value in map(vars(module).get, module.__all__)
        if isinstance(value, type) and not may_be_subclassed(value)
    ],
    ids=lambda value: value.__name__,
)
def test_only_delayed_operation_can_be_subclassed(value):
    assert getattr(value, "__final__", False), f"{value.__name__} is not @final"


MADE_BY_METHODS = (purgatory.Reply, purgatory.TimerTask, purgatory.asgi.Poll)
"""Classes that users get from a method, and do not construct."""


def parameters_of(value: Any) -> str:
    """The parameters of a function, or of a class that users construct, without their types; empty
    for anything else."""
    is_made_by_users = (
        isinstance(value, type)
        and value not in MADE_BY_METHODS
        and not issubclass(value, (BaseException, Enum))
    )
    if not (isroutine(value) or (is_made_by_users and not getattr(value, "_is_protocol", False))):
        return ""
    typed = signature(value)
    bare = [each.replace(annotation=Parameter.empty) for each in typed.parameters.values()]
    shown = str(typed.replace(parameters=bare, return_annotation=Parameter.empty))
    return re.sub(r"<function (\w+) at 0x\w+>", r"\1", shown)


def interface_of(module: Any) -> Iterator[str]:
    for name in module.__all__:
        value = getattr(module, name)
        yield f"{module.__name__}.{name}{parameters_of(value)}"
        classes = value.__mro__ if isinstance(value, type) else ()
        ours = [vars(each) for each in classes if each.__module__.startswith("purgatory")]
        for member in sorted({each for names in ours for each in names if each[0] != "_"}):
            yield f"    {member}{parameters_of(getattr(value, member))}"


def test_interface_is_the_settled_one():
    now = "\n".join(line for module in MODULES for line in interface_of(module)) + "\n"
    settled = Path(__file__).with_name("public_interface.txt")
    assert now == settled.read_text("utf-8"), "users see this change: see promises.md"


def names_in(tree: ast.AST) -> Iterator[str]:
    """What a module defines or sets."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name) | ast.AsyncFunctionDef(name) | ast.ClassDef(name):
                yield name
            case ast.Attribute(attr=name, ctx=ast.Store()) | ast.Name(name, ast.Store()):
                yield name
            case ast.Constant(str(name)):  # in `__slots__`
                yield name


@pytest.mark.parametrize("room", ["console", "journal", "metrics", "top"])
def test_observing_package_uses_public_names_alone(room):
    shared = {"arguments", "errors"}  # texts of errors, and how values are shown in them
    trees = [ast.parse(path.read_text("utf-8")) for path in (PACKAGE / room).rglob("*.py")]
    own = {name for tree in trees for name in names_in(tree)} | {"_fields", "_replace", "_value_"}
    for node in [node for tree in trees for node in ast.walk(tree)]:
        if isinstance(node, ast.ImportFrom) and node.module and "._core" in node.module:
            assert node.module.removeprefix("purgatory._core.") in shared
        if isinstance(node, ast.Attribute) and re.match("_[^_]", node.attr):
            assert node.attr in own, ast.unparse(node)


@pytest.mark.parametrize("module", ["purgatory", "purgatory.asgi", "purgatory.metrics"])
def test_importing_it_imports_no_extra(module, program):
    code = f"import {module}, sys; print([name for name in {EXTRAS!r} if name in sys.modules])"
    assert program("-c", code).stdout == "[]\n"


@pytest.mark.parametrize("module", ROOMS, ids=lambda module: module.__name__)
def test_type_hints_of_public_functions_can_be_read(module):
    for name in module.__all__:
        value = getattr(module, name)
        members = vars(value).values() if isinstance(value, type) else ()
        for function in (value, *members):
            if isfunction(function):
                get_type_hints(function)


def test_web_layer_does_not_import_the_page(program):
    code = "import sys, purgatory.asgi; print('purgatory.console' in sys.modules)"
    assert program("-c", code).stdout == "False\n"


@pytest.mark.parametrize(("module", "code", "hint"), NEEDED)
def test_error_names_extra_that_is_missing(module, code, hint, program):
    start = f"import sys; sys.modules[{module!r}] = None; from purgatory import relay, top"
    errors = program("-c", f"{start}; {code}", status=1).stderr
    assert hint in errors
    assert code.startswith("sys.exit") == (errors.count("\n") == 1)  # a program, in one line
