"""A copy of the library in which the core's private names are others: what works beside it uses public names alone."""

import re
import subprocess
import sys
from pathlib import Path

import purgatory as package

PRIVATE = ("teller", "watchers", "by_key", "room", "waits", "lines", "hears_checks")


def beside_a_renamed_core(folder: Path, program: str, *packages: str) -> str:
    """What `program` prints beside a copy, in `folder`, of the core with other names and of these packages as they are.

    Raises:
        AssertionError: it fails; the message is what it says to that.
    """
    source = Path(package.__file__).parent
    for path in [*source.glob("*.py"), *(path for name in packages for path in source.glob(f"{name}/**/*.*"))]:
        if path.suffix not in (".py", ".html"):
            continue
        text = path.read_text(encoding="utf-8")
        if path.parent == source:
            text = re.sub(r"\b_op_(\w+)", r"_changed_\1", text)
            text = re.sub(r"(?<=[.\"])_(engine|waits|wheel)\b(?! import)", r"_changed_\1", text)
            for name in PRIVATE:
                text = re.sub(rf"(?<=[.\"]){name}\b", f"changed_{name}", text)
        target = folder / "purgatory" / path.relative_to(source)
        target.parent.mkdir(exist_ok=True, parents=True)
        target.write_text(text, encoding="utf-8")
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, check=False, cwd=folder, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    return done.stdout
