"""The Spark session of the programs: on this machine, on a cluster, or through Spark Connect.

Spark on this machine needs Java, which pip cannot install. Without it Spark fails late, with an
unclear error, so Java is looked for first.
"""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from itertools import pairwise
from pathlib import Path
from typing import IO, Final

import pyspark
from pyspark.sql import SparkSession

from purgatory.pipeline._files import first_line
from purgatory.pipeline._programs import SparkUnavailable, without_secrets

JAVA_NEEDED: Final = 17
JAVA_ADVICE: Final = (
    f"Spark runs on Java {JAVA_NEEDED} or newer. On Debian and Ubuntu: apt-get install "
    "openjdk-17-jre-headless; on macOS: brew install openjdk@17; elsewhere: https://adoptium.net. "
    "Or let JAVA_HOME name one that is there. A Spark that runs elsewhere needs no Java here: "
    "--master sc://HOST."
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
MASTER: Final = "spark.master"
SUBMIT_OPTIONS: Final = {
    "--master": MASTER,
    "--driver-memory": "spark.driver.memory",
    "--driver-java-options": "spark.driver.extraJavaOptions",
}
"""The options of ``spark-submit`` that settings of ours could change."""
PATTERN: Final = re.compile(r"[\\*?\[\]{}]")
"""The characters that Spark reads as patterns in the name of a folder."""


def literal(path: str) -> str:
    """The name with its pattern characters escaped, for Spark's readers."""
    return PATTERN.sub(r"\\\g<0>", path)


@contextmanager
def spark_session(
    name: str,
    master: str | None = None,
    settings: Mapping[str, str] | None = None,
    *,
    verbose: bool = False,
) -> Iterator[SparkSession]:
    """A session, which is stopped at the end of the block.

    Args:
        name: name of the application, as a cluster shows it.
        master: the URL of Spark: ``local[N]``, ``spark://…``, or ``sc://…`` for Spark Connect. By
            default from ``spark-submit``, ``SPARK_REMOTE`` or Spark's own configuration, or else
            ``local[*]``.
        settings: added to ours; where both have a setting, these count. What Spark's own
            configuration sets counts more.
        verbose: show the output of Java and Spark, which otherwise goes to an unnamed file.

    Raises:
        SparkUnavailable: Spark does not start, or there is no Java for a Spark on this machine.
    """
    # Only PySpark itself uses pandas here, and the functions called here work with pandas 3.
    warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
    os.environ.setdefault(
        "PYSPARK_PYTHON", sys.executable
    )  # by default workers are any program called python3
    builder = SparkSession.builder.appName(name)
    configured = configuration()
    ours = {**SETTINGS, **(settings or {})}
    remote = master if master is not None and master.startswith("sc://") else None
    is_submitted = "PYSPARK_GATEWAY_PORT" in os.environ  # then the options of spark-submit count
    if master is None and not is_submitted:
        remote = os.environ.get("SPARK_REMOTE")
    if remote is not None:
        builder = builder.remote(remote)
    elif not is_submitted:
        require_java()
        if master is None and MASTER not in configured:
            master = "local[*]"
        if master is not None:
            builder = builder.master(master)
            if master.startswith("local"):
                ours = {**LOCAL_SETTINGS, **ours}
    for key, value in ours.items():
        if key in SETTINGS or key not in configured:
            builder = builder.config(key, value)
    with nullcontext() if verbose or remote is not None else _java_output_to_file() as printed:
        try:
            with _deferred_interrupt():  # a Java that is not awaited while it starts never ends
                spark = builder.getOrCreate()
        except Exception as error:
            output = b""
            if printed is not None:
                printed.seek(0)
                output = printed.read()
            lines = output.decode(errors="replace").splitlines()
            errors = (line for line in lines if "Exception" in line or "Error" in line)
            reason = next(errors, first_line(error))
            where = remote or master or configured.get(MASTER, "the master of spark-submit")
            message = f"cannot start Spark on {where}: {reason}"
            raise SparkUnavailable(without_secrets(message)) from error
    try:
        if remote is None:
            spark.sparkContext.setLogLevel("WARN" if verbose else "ERROR")
        yield spark
    finally:
        spark.stop()


def configuration() -> dict[str, str]:
    """What Spark's own configuration sets: ``spark-defaults.conf``, and the environment variables
    ``MASTER`` and ``PYSPARK_SUBMIT_ARGS``."""
    home = os.environ.get("SPARK_HOME") or str(Path(pyspark.__file__).parent)
    folder = os.environ.get("SPARK_CONF_DIR") or str(Path(home, "conf"))
    found = {}
    if (file := Path(folder, "spark-defaults.conf")).is_file():
        for line in file.read_text("utf-8", errors="replace").splitlines():
            if entry := re.fullmatch(r"\s*([\w.]+)(?:\s*[=:]\s*|\s+)(.*?)\s*", line):
                found[entry[1]] = entry[2]
    if "MASTER" in os.environ:
        found[MASTER] = os.environ["MASTER"]
    words = shlex.split(os.environ.get("PYSPARK_SUBMIT_ARGS", ""))
    for option, value in pairwise(words):
        if option in SUBMIT_OPTIONS:
            found[SUBMIT_OPTIONS[option]] = value
        elif option == "--conf":
            name, _, setting = value.partition("=")
            found[name] = setting
    return found


@contextmanager
def _java_output_to_file() -> Iterator[IO[bytes]]:
    """Redirects stdout and stderr to a file without a name; processes that start in the block stay
    redirected."""
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


@contextmanager
def _deferred_interrupt() -> Iterator[None]:
    """Delays Ctrl-C until the end of the block, unless something in it installs another signal
    handler."""
    pressed = []

    def note(*_: object) -> None:
        pressed.append(True)

    before = signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGINT) is note:
            signal.signal(signal.SIGINT, before)
    if pressed:
        raise KeyboardInterrupt


def require_java() -> None:
    """Checks the Java that Spark would start.

    Raises:
        SparkUnavailable: Java is missing, does not run, or is too old.
    """
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java")
    if problem := _problem_of(java):
        raise SparkUnavailable(f"cannot start Spark: {problem}. {JAVA_ADVICE}")


def _problem_of(java: str | None) -> str | None:
    if java is None:
        return "there is no java on the PATH, and JAVA_HOME is not set"
    try:
        answer = subprocess.run(
            [java, "-version"], capture_output=True, text=True, check=False, timeout=60
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{java} does not run ({error})"
    found = re.search(r'version "(?:1\.)?(\d+)', answer.stderr + answer.stdout)
    if found is None:
        return f"{java} does not report its version"
    return f"{java} is Java {found[1]}" if int(found[1]) < JAVA_NEEDED else None
