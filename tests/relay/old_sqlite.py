"""An old SQLite: the shared library in an old wheel, with the symbols of the system's."""

import platform
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Final

from requirements import unavailable

WHEEL: Final = "pyproj==3.0.1"
VERSION: Final = "3.32.3"


def old_sqlite(folder: Path) -> dict[str, str]:
    """Downloads it; returns the environment variables by which a Python uses it instead of the
    system's."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        unavailable("the wheel with an old SQLite is for Linux on x86-64")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", f"--dest={folder}"]
    command += ["--only-binary=:all:", "--implementation=cp", "--python-version=3.9"]
    command += ["--platform=manylinux2010_x86_64", WHEEL]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        unavailable(f"pip did not get {WHEEL}: {done.stderr.strip()}")
    [wheel] = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder, [name for name in archive.namelist() if "pyproj.libs" in name])
    [library] = folder.glob("pyproj.libs/libsqlite3-*")
    return {"LD_LIBRARY_PATH": str(library.parent), "LD_PRELOAD": str(library)}
