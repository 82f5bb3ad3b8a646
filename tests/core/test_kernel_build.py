"""The kernel compiles without a warning, and without a memory error under sanitizers."""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from requirements import need, unavailable

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "purgatory" / "_core" / "_kernel.c"

pytestmark = pytest.mark.cpython

WARNINGS = [
    "-Wall",
    "-Wextra",
    "-Werror",
    # CPython's own tables of methods and slots break these rules.
    "-Wno-unused-parameter",
    "-Wno-cast-function-type",
    "-Wno-missing-field-initializers",
]
SANITIZERS = [
    "-O1",
    "-g",
    "-fno-omit-frame-pointer",
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=all",
]


# Tests that use the kernel, except tests that bound CPU time.
SANITIZED = [
    "arguments",
    "bounds",
    "deadlines",
    "key_check",
    "model_purgatory",
    "operation",
    "purgatory",
    "races",
    "random_histories",
    "reprs",
    "timeouts",
    "wheel",
    "wheel_timer",
]


def compile_kernel(compiler: str, folder: Path, *options: str) -> None:
    headers = sysconfig.get_path("include")
    if not Path(headers, "Python.h").exists():
        unavailable("needs Python's headers: apt-get install python3-dev")
    target = folder / f"_kernel{sysconfig.get_config_var('EXT_SUFFIX')}"
    command = [compiler, "-shared", "-fPIC", *WARNINGS, *options, f"-I{headers}", str(SOURCE)]
    done = subprocess.run(
        [*command, "-o", str(target)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("compiler", ["gcc", "clang"] if shutil.which("clang") else ["gcc"])
def test_kernel_compiles_without_warning(compiler, tmp_path):
    compile_kernel(need(compiler, "needs gcc: apt-get install gcc"), tmp_path, "-O2")


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_core_runs_under_sanitizers(tmp_path):
    gcc = need("gcc", "needs gcc: apt-get install gcc")
    package = tmp_path / "purgatory"
    shutil.copytree(
        SOURCE.parents[1], package, ignore=shutil.ignore_patterns("*.so", "__pycache__")
    )
    compile_kernel(gcc, package / "_core", *SANITIZERS)
    found = [
        subprocess.check_output([gcc, f"-print-file-name={name}"], text=True).strip()
        for name in ("libasan.so", "libubsan.so")
    ]
    environment = os.environ | {
        "LD_PRELOAD": " ".join(found),
        "ASAN_OPTIONS": "detect_leaks=0",  # Python keeps some memory until it exits
        "PYTHONMALLOC": "malloc",  # lets the sanitizer track each object
        "PYTHONPATH": str(tmp_path),
        "PURGATORY_PURE": "0",
    }
    programs = str(Path(__file__).with_name("kernel_programs.py"))
    for arguments in (["programs", "0", "30"], ["fuzz", "0", "20"]):
        run(environment, "-P", programs, *arguments)
    tests = [f"tests/core/test_{name}.py" for name in SANITIZED]
    run(environment, "-P", "-m", "pytest", "-q", "-n", "2", "--timeout", "300", *tests)


def run(environment: dict[str, str], *arguments: str) -> None:
    command = [sys.executable, *arguments]
    done = subprocess.run(
        command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
