"""The Spark session that the programs run on: on this machine, on a cluster, or elsewhere through Spark Connect.

Spark on this machine needs Java, which pip cannot bring. Without it Spark fails late and says little, so it is looked for
first.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

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
"""Settings of the session, which Spark Connect takes as well."""
LOCAL_SETTINGS: Final = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "2g",
    "spark.sql.shuffle.partitions": "16",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
"""Settings of a Spark that starts and ends with the program, on this machine."""


class SparkUnavailable(Exception):
    """Spark cannot be started here; the message says why, and what to do."""


@contextmanager
def spark_session(name: str, master: str | None = None, settings: Mapping[str, str] | None = None) -> Iterator[SparkSession]:
    """A session that is stopped in the end.

    Args:
        name: of the application, for whoever watches the cluster.
        master: where Spark is; ``sc://…`` for Spark Connect; by default what ``SPARK_REMOTE`` says, else ``local[*]``.
        settings: to add to ours, or to use instead of them.

    Raises:
        SparkUnavailable: there is no Java for a Spark that would have to start here.
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
    spark = builder.getOrCreate()
    try:
        if remote is None:
            spark.sparkContext.setLogLevel("ERROR")
        yield spark
    finally:
        spark.stop()


def check_java() -> None:
    """Raises `SparkUnavailable` if the Java that Spark would start is missing or too old."""
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
