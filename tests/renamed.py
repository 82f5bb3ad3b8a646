"""A copy of the library with other private names in the core: a module that works with it uses
public names alone."""

import os
import re
import subprocess
import sys
from pathlib import Path

import purgatory as package

PRIVATE = (
    "_notifier",
    "_watchers",
    "_by_key",
    "_dispatcher",
    "_queues",
    "_loop_wheel",
    "_async_waits",
)
"""Attributes of the core."""


def beside_a_renamed_core(folder: Path, program: str, *packages: str) -> str:
    """What `program` prints beside a copy, in `folder`, of the core with other names and of these
    packages as they are.

    Raises:
        AssertionError: it fails; the message is its output.
    """
    source = Path(package.__file__).parent
    core = [*source.glob("*.py"), *source.glob("_core/*.py")]
    for path in [*core, *(path for name in packages for path in source.glob(f"{name}/**/*.*"))]:
        if path.suffix not in (".py", ".html"):
            continue
        text = path.read_text(encoding="utf-8")
        if path in core:
            text = "".join(map(_rename, text.splitlines(keepends=True)))
        target = folder / "purgatory" / path.relative_to(source)
        target.parent.mkdir(exist_ok=True, parents=True)
        target.write_text(text, encoding="utf-8")
    command = [sys.executable, "-c", program]
    done = subprocess.run(
        command,
        check=False,
        cwd=folder,
        env={**os.environ, "PURGATORY_PURE": "1"},  # the copy has no kernel
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def _rename(line: str) -> str:
    """A line of the core with other names for private attributes; modules keep theirs."""
    if line.lstrip().startswith(("from ", "import ")):
        return line
    line = re.sub(r"\b_(op|timer)_(\w+)", r"_changed_\1_\2", line)
    return re.sub(rf"(?<=[.\"])({'|'.join(PRIVATE)})\b", r"changed_\1", line)
