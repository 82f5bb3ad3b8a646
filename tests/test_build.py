"""How the package is built, with its kernel in C and without."""

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from requirements import need

ROOT = Path(__file__).parents[1]


def build_wheel(folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "-v",
        "--no-deps",
        "-w",
        str(folder),
        str(ROOT),
    ]
    settings = os.environ | {"PIP_QUIET": "0"} | environment  # quiet hides the hook's warning
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return subprocess.run(command, env=settings, text=True, **pipes, check=False)


def modules_in(wheel: Path) -> list[str]:
    return [name for name in zipfile.ZipFile(wheel).namelist() if re.search(r"\.(so|pyd|c)$", name)]


@pytest.mark.slow
def test_wheel_with_kernel_has_tag_of_its_platform(tmp_path):
    need("gcc", "needs a C compiler: apt-get install gcc")
    built = build_wheel(tmp_path, PURGATORY_PURE="0")
    assert built.returncode == 0, built.stdout
    [wheel] = tmp_path.glob("*.whl")
    python = f"cp{sys.version_info.major}{sys.version_info.minor}"
    assert f"-{python}-{python}-" in wheel.name and "any" not in wheel.name
    [module] = modules_in(wheel)
    assert module.startswith("purgatory/_core/_kernel.")


@pytest.mark.slow
def test_wheel_is_pure_without_compiler_and_says_so(tmp_path):
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("env", "sh", "uname"):
        (tools / name).symlink_to(shutil.which(name) or "")
    built = build_wheel(tmp_path, PATH=str(tools), PURGATORY_PURE="")
    assert built.returncode == 0, built.stdout
    [wheel] = tmp_path.glob("*.whl")
    assert wheel.name.endswith("-py3-none-any.whl") and not modules_in(wheel)
    assert built.stdout.count("purgatory is built without its kernel in C: ") == 1
    assert build_wheel(tmp_path, PATH=str(tools), PURGATORY_PURE="0").returncode != 0


@pytest.mark.slow
def test_wheel_is_pure_where_kernel_is_left_out(tmp_path):
    built = build_wheel(tmp_path, PURGATORY_PURE="1")
    assert built.returncode == 0, built.stdout
    [wheel] = tmp_path.glob("*.whl")
    assert wheel.name.endswith("-py3-none-any.whl") and not modules_in(wheel)
    assert "without its kernel" not in built.stdout
