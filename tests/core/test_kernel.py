"""The kernel in C behaves like the Python code that defines it, and causes no crash or leak.
`kernel_programs` runs the shared programs in processes of their own, with and without the kernel.
"""

import importlib.util
import inspect
import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest
from helpers import THOROUGHNESS
from requirements import unavailable

import purgatory

pytestmark = pytest.mark.cpython

PROGRAMS = Path(__file__).with_name("kernel_programs.py")


def run(*arguments: object, pure: bool = False, code: str = "") -> str:
    """The output of a program, with or without the kernel."""
    environment = {name: os.environ[name] for name in os.environ if name != "PURGATORY_PURE"}
    if pure:
        environment["PURGATORY_PURE"] = "1"
    program = ["-c", code] if code else [str(PROGRAMS), *map(str, arguments)]
    ended = subprocess.run(
        [sys.executable, "-X", "faulthandler", *program],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, (ended.stdout + ended.stderr)[-5000:]
    return ended.stdout


@pytest.fixture(scope="module")
def built():
    """Skips a test where the kernel was not built."""
    if run(code="import purgatory; print(purgatory.COMPILED)") != "True\n":
        unavailable(
            "needs the kernel: pip install -e . where a C compiler and Python's headers are"
        )


def compiled_functions():
    """Every object with a twin in C, if the kernel is used."""
    modules = [value for name, value in sys.modules.items() if name.startswith("purgatory._core.")]
    owners = modules + [
        each for module in modules for each in vars(module).values() if type(each) is type
    ]
    twins = {
        id(each): each
        for owner in owners
        for each in vars(owner).values()
        if hasattr(each, "__wrapped__") and type(each).__name__ == "compiled_function"
    }
    return list(twins.values())


def test_environment_leaves_kernel_out(built):
    code = (
        "import purgatory, sys; print(purgatory.COMPILED, 'purgatory._core._kernel' in sys.modules)"
    )
    assert run(code=code, pure=True) == "False False\n"
    assert run(code=code) == "True True\n"


def test_zip_needs_no_kernel_even_if_demanded(tmp_path):
    archive = tmp_path / "purgatory.zip"
    package = Path(purgatory.__file__).parent
    with ZipFile(archive, "w") as sources:
        for file in package.rglob("*.py"):
            sources.write(file, file.relative_to(package.parent))
    code = "import purgatory; print(purgatory.__file__, purgatory.COMPILED)"
    ended = subprocess.run(
        [sys.executable, "-S", "-c", code],
        env={**os.environ, "PURGATORY_PURE": "0", "PYTHONPATH": str(archive)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.stdout == f"{archive}/purgatory/__init__.py False\n", ended.stderr


@pytest.fixture
def stale(built, tmp_path):
    """A folder with the package, whose kernel was built from another `_kernel.c`."""
    package = Path(purgatory.__file__).parent
    copy = tmp_path / "purgatory"
    shutil.copytree(package, copy, ignore=shutil.ignore_patterns("__pycache__"))
    source = copy / "_core" / "_kernel.c"
    assert imported_from(tmp_path) == "True\n"
    was = source.read_bytes() if source.exists() else b""  # wheels contain none
    source.write_bytes(was + b"\n")
    return tmp_path


def imported_from(folder, pure=""):
    """What a process prints that imports the package from `folder`: COMPILED, errors, warnings."""
    code = "import purgatory; print(purgatory.COMPILED)"
    ended = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PURGATORY_PURE": pure, "PYTHONPATH": str(folder)},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    return ended.stdout + ended.stderr


def test_stale_kernel_is_left_out_with_warning(stale):
    text = imported_from(stale)
    assert text.startswith("False\n") and "RuntimeWarning: purgatory runs without" in text
    assert "built from other sources; rebuild: pip install -e ." in text


def test_stale_kernel_fails_where_kernel_is_demanded(stale):
    text = imported_from(stale, pure="0")
    assert "ImportError" in text and "rebuild: pip install -e ." in text


def test_stale_kernel_is_silent_where_left_out(stale):
    assert imported_from(stale, pure="1") == "False\n"


def test_each_twin_has_its_definition(built):
    code = "import purgatory; from purgatory._core import _kernel; print(_kernel.missing())"
    assert run(code=code) == "0\n"


@pytest.mark.skipif(not purgatory.COMPILED, reason="the kernel is left out")
def test_compiled_functions_look_as_in_python():
    functions = compiled_functions()
    assert functions
    for function in functions:
        python = function.__wrapped__
        assert inspect.signature(function) == inspect.signature(python)
        assert inspect.isroutine(function) and callable(function)
        for name in ("__doc__", "__module__", "__name__", "__qualname__", "__annotations__"):
            assert getattr(function, name) == getattr(python, name)
        assert pickle.loads(pickle.dumps(function)) is function


@pytest.mark.parametrize(
    "call",
    [
        "call_later()",
        "call_later(1.0)",
        "call_later(1.0, print, delay=2)",
        "call_later(1.0, call=print)",
    ],
)
def test_wrong_arguments_are_refused_as_in_python(built, call):
    code = (
        f"import purgatory\ntry: purgatory.WheelTimer().{call}\nexcept TypeError as error: "
        f"print(error)"
    )
    assert run(code=code) == run(code=code, pure=True) != ""


@pytest.mark.parametrize("first", [0, 12, 24, 36, 108])
def test_random_programs_do_the_same_with_kernel(built, first):
    assert_same(first, 12)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 1400, 100))
def test_many_random_programs_do_the_same_with_kernel(built, first):
    assert_same(first, 100)


def assert_same(first: int, count: int) -> None:
    compiled = run("programs", first, count).splitlines()
    pure = run("programs", first, count, pure=True).splitlines()
    for i, (one, other) in enumerate(zip(compiled, pure, strict=False)):
        assert one == other, "\n".join(pure[max(i - 20, 0) : i])
    assert len(compiled) == len(pure) > 100 * count


def test_key_may_watch_when_it_is_compared(built):
    shown = run("watching_keys").splitlines()
    assert [line.partition(" ")[2] for line in shown] == ["{<class '__main__.Idle'>}"] * 11


def test_shortage_of_memory_does_not_crash_kernel(built):
    if importlib.util.find_spec("_testcapi") is None:
        unavailable("needs _testcapi, a module of Python's own tests")
    assert run("short_of_memory", 60) == "no crash\n"


def test_half_made_objects_do_not_crash_kernel(built):
    assert run("fuzz", 0, 4) == "no crash\n"


@pytest.mark.slow
def test_many_half_made_objects_do_not_crash_kernel(built):
    assert run("fuzz", 100, 100) == "no crash\n"


@pytest.mark.parametrize(
    "rounds", [2_000, pytest.param(10_000 * THOROUGHNESS, marks=pytest.mark.slow)]
)
def test_no_path_through_kernel_leaks(built, rounds):
    assert run("leaks", rounds) == "done\n"


class Never(purgatory.DelayedOperation):
    __slots__ = ("one", "two")

    def try_complete(self):
        return False


@pytest.mark.skipif(not purgatory.COMPILED, reason="the kernel is left out")
def test_operation_takes_at_most_128_bytes():
    assert sys.getsizeof(Never(30.0)) <= 128
