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
    command = [sys.executable, "-m", "pip", "wheel", "-v", "--no-deps", "-w", folder, ROOT]
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
@pytest.mark.parametrize("pure", ["", "0", "1"])
def test_wheel_without_compiler_is_pure_or_refused(tmp_path, pure):
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("env", "sh", "uname"):
        (tools / name).symlink_to(shutil.which(name) or "")
    built = build_wheel(tmp_path, PATH=str(tools), PURGATORY_PURE=pure)
    assert (built.returncode != 0) is (pure == "0"), built.stdout
    for wheel in tmp_path.glob("*.whl"):
        assert wheel.name.endswith("-py3-none-any.whl") and not modules_in(wheel)
    assert ("purgatory is built without its kernel in C: " in built.stdout) is (pure == "")
