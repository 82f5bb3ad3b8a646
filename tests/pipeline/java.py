"""Java's options for tests. Spark starts in half the time from an archive of the classes that it
loads:

    python tests/pipeline/java.py

makes the archive beside PySpark's jars, in a minute (200 MB). Tests use it if it exists. Java
ignores it without a word if it is of another Java or of other jars.
"""

import os
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import pyspark

ARCHIVE: Final = Path(pyspark.__file__).parent / "classes-for-tests.jsa"
SHORT: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""A test ends before the better of Java's compilers would have paid."""
OPTIONS: Final = (
    f"{SHORT} -XX:SharedArchiveFile={ARCHIVE} -Xlog:disable" if ARCHIVE.exists() else SHORT
)
JAVA_FOR_TESTS: Final = {"JAVA_TOOL_OPTIONS": OPTIONS}
"""Of the environment of a process that starts Java."""


def load_classes(folder: Path) -> None:
    """Makes a report and runs a stream, in this process, on a Spark of its own."""
    from streams import as_parquet, happens, put, waits

    from purgatory.pipeline._command_line import main
    from purgatory.pipeline.streaming import OPERATIONS, SIGNALS
    from purgatory.pipeline.synth import make_journal

    journal, events = folder / "journal", folder / "events"
    events.mkdir()
    put(events, "operations", waits("paid", 1, 5, "x"), waits("unpaid", 1, 5, "y"))
    put(events, "signals", happens("x", 2), happens("z", 60))
    as_parquet(events, {"operations": OPERATIONS, "signals": SIGNALS})
    places = (f"--{name}={events / name}" for name in ("operations", "signals", "checkpoint"))
    make_journal(str(journal), 1000)
    for command in (
        ["report", str(journal), "--out", str(folder / "report")],
        ["stream", *places, "--out", str(events / "out"), "--available-now"],
    ):
        if main([*command, "--master", "local[2]"]) != 0:
            raise SystemExit(f"cannot make the archive: {command[0]} has failed")


def make_archive() -> None:
    part = ARCHIVE.with_suffix(".part")
    options = f"{SHORT} -XX:ArchiveClassesAtExit={part} -Xlog:disable"
    with TemporaryDirectory() as folder:
        spark = subprocess.Popen(
            [sys.executable, __file__, folder],
            env={**os.environ, "JAVA_TOOL_OPTIONS": options},
            start_new_session=True,
        )
        if spark.wait() != 0:
            raise SystemExit(1)
        while has_processes(spark.pid):  # Java writes the archive when its Python has ended
            time.sleep(0.1)
    part.replace(ARCHIVE)
    print(f"{ARCHIVE}: {ARCHIVE.stat().st_size / 1e6:.0f} MB")


def has_processes(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


if __name__ == "__main__":
    if len(sys.argv) > 1:
        load_classes(Path(sys.argv[1]))
    else:
        make_archive()
