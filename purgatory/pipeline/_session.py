"""The Spark session that the programs run on: on this machine, on a cluster, or elsewhere through Spark Connect.

Spark on this machine needs Java, which pip cannot bring. Without Java, Spark starts to fail late and says little, so we look
for it first.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import IO, Final

from pyspark.sql import SparkSession

from purgatory.pipeline._errors import SparkUnavailable
from purgatory.pipeline._interrupts import deferred

JAVA_NEEDED: Final = 17
JAVA_ADVICE: Final = (
    f"Spark runs on Java {JAVA_NEEDED} or newer. On Debian and Ubuntu: apt-get install openjdk-17-jre-headless; on macOS: "
    "brew install openjdk@17; elsewhere: https://adoptium.net. Or let JAVA_HOME name one that is there. A Spark that runs "
    "elsewhere needs no Java here: --master sc://HOST."
)
SETTINGS: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
}
"""Settings of every session, also of one through Spark Connect."""
LOCAL_SETTINGS: Final = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "2g",
    "spark.sql.shuffle.partitions": "16",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
"""Settings of a Spark on this machine, which starts and stops with the program."""
PATTERN: Final = re.compile(r"[\\*?\[\]{}]")
"""The characters that are part of a pattern, for Spark, in the name of a folder to read."""


def literal(path: str) -> str:
    """The name with its pattern characters escaped, for Spark to read from."""
    return PATTERN.sub(r"\\\g<0>", path)


@contextmanager
def spark_session(
    name: str, master: str | None = None, settings: Mapping[str, str] | None = None, *, verbose: bool = False
) -> Iterator[SparkSession]:
    """A session, which is stopped at the end of the block.

    Args:
        name: of the application, as a cluster shows it.
        master: where Spark is: ``local[N]``, ``spark://…``, or ``sc://…`` for Spark Connect. By default what the environment
            variable ``SPARK_REMOTE`` says, or else ``local[*]``.
        settings: added to ours; where both have a setting, these count.
        verbose: show what Java and Spark print. Otherwise that goes to a file without a name.

    Raises:
        SparkUnavailable: Spark would have to start here, and there is no Java that it can use; or it does not start.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # workers would otherwise be whatever is called python3
    builder = SparkSession.builder.appName(name)
    remote = master if master is not None and master.startswith("sc://") else None
    if master is None:
        remote = os.environ.get("SPARK_REMOTE")
    if remote is not None:
        builder = builder.remote(remote)
        ours: Mapping[str, str] = SETTINGS
    else:
        check_java()
        master = master or "local[*]"
        builder = builder.master(master)
        ours = {**SETTINGS, **LOCAL_SETTINGS} if master.startswith("local") else SETTINGS
    for key, value in {**ours, **(settings or {})}.items():
        builder = builder.config(key, value)
    with nullcontext() if verbose or remote is not None else _java_output_to_file() as printed:
        try:
            with deferred():  # if nobody waits for a Java that starts, it never ends
                spark = builder.getOrCreate()
        except Exception as error:
            errors = [] if printed is None else [line for line in _lines(printed) if "Exception" in line or "Error" in line]
            reason = errors[0] if errors else str(error).splitlines()[0]
            raise SparkUnavailable(f"cannot start Spark on {remote or master}: {reason}") from error
    try:
        if remote is None:
            spark.sparkContext.setLogLevel("WARN" if verbose else "ERROR")
        yield spark
    finally:
        spark.stop()


def _lines(file: IO[bytes]) -> list[str]:
    file.seek(0)
    return file.read().decode(errors="replace").splitlines()


@contextmanager
def _java_output_to_file() -> Iterator[IO[bytes]]:
    """Redirects stdout and stderr to a file without a name; processes that start in the block stay redirected."""
    sys.stdout.flush()
    sys.stderr.flush()
    ours = [os.dup(1), os.dup(2)]
    with tempfile.TemporaryFile() as file:
        try:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
            yield file
        finally:
            for standard, descriptor in enumerate(ours, start=1):
                os.dup2(descriptor, standard)
                os.close(descriptor)


def check_java() -> None:
    """Looks for the Java that Spark would start.

    Raises:
        SparkUnavailable: it is missing, does not run, or is too old.
    """
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java")
    if java is None:
        raise SparkUnavailable(f"cannot start Spark: there is no java on the PATH, and JAVA_HOME is not set. {JAVA_ADVICE}")
    try:
        answer = subprocess.run([java, "-version"], capture_output=True, text=True, check=False, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SparkUnavailable(f"cannot start Spark: {java} does not run ({error}). {JAVA_ADVICE}") from error
    found = re.search(r'version "(?:1\.)?(\d+)', answer.stderr + answer.stdout)
    if found is None:
        raise SparkUnavailable(f"cannot start Spark: {java} does not tell its version. {JAVA_ADVICE}")
    if int(found[1]) < JAVA_NEEDED:
        raise SparkUnavailable(f"cannot start Spark: {java} is Java {found[1]}. {JAVA_ADVICE}")
