"""``python -m purgatory.pipeline stream``: decides on operations and signals as they arrive, or on
all rows that are there.

On SIGTERM or SIGINT it first ends the current batch. If it is killed in the middle of a batch, it
later continues from its checkpoint and repeats that batch; readers of the outcomes that use Spark
do not see the rows written the first time.
"""

import argparse
import re
import signal
import sys
import threading
from typing import Any, Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.utils import is_remote

from purgatory._local import is_loopback
from purgatory.pipeline._files import first_line
from purgatory.pipeline._programs import add_master_option, shown
from purgatory.pipeline._remote import Hadoop
from purgatory.pipeline._session import spark_session
from purgatory.pipeline.streaming._job import Job
from purgatory.pipeline.streaming._processor import ShardsChanged
from purgatory.pipeline.streaming._ticks import IDLE, NEVER, check_idle

SETTINGS: Final = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.python.authenticate.socketTimeout": "120s",  # for a busy machine
    # Between two looks for rows that found none; each lists the folders. By default 10 ms.
    "spark.sql.streaming.pollingDelay": "1s",
    # Java's second compiler takes half of the CPU until the first answer.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    # Each progress shows up to when an input is read, and so may let a deadline pass.
    "spark.sql.streaming.noDataProgressEventInterval": "1s",
}
CHECKPOINT_FILES: Final = "spark.sql.streaming.checkpointFileManagerClass"
WITHOUT_PROCESSES: Final = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
)
"""How Spark renames the files of a checkpoint on this machine. By default it starts a process,
``readlink`` or ``chmod``, for each name: some 60 in each batch. Both rename a file within its
folder."""
FRAME: Final = re.compile(r"^\[STREAM_FAILED\] .*? terminated with exception: |( SQLSTATE: \w+)+$")
"""What Spark adds around the message of an error that ended a query."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    def add(name: str, metavar: str, text: str, group: Any = parser, **options: Any) -> None:
        group.add_argument(f"--{name}", metavar=metavar, help=text, **options)

    default = "(default: %(default)s)"
    add("operations", "DIR", "a folder of operations, or a Kafka topic", required=True)
    add("signals", "DIR", "a folder of signals, or a Kafka topic", required=True)
    add("out", "DIR", "where outcomes go: a folder of Parquet, by outcome", required=True)
    add("checkpoint", "DIR", "where the state is kept; one for each --out", required=True)
    text = "decide all that is due by the newest event, and end"
    parser.add_argument("--available-now", action="store_true", help=text)
    formats = ("parquet", "json", "kafka")
    text = f"of both inputs {default}"
    parser.add_argument("--format", choices=formats, default="parquet", help=text)
    add("shards", "N", f"owners of operations {default}", type=int, default=2)
    text = f"how far out of order events may be {default}"
    add("delay", "SECONDS", text, type=float, default=10.0)
    text = "an input that is silent for so long, and read to its end, holds event time back no more"
    add("idle", "SECONDS", f"{text}; or 'never' (default: {IDLE:g})", type=_idle)
    text = "forget keys without a signal for so long, in event time (default: never)"
    add("forget-after", "SECONDS", text, type=float)
    text = "complete operations in the order of arrival, before event time has passed their signals"
    parser.add_argument("--at-once", action="store_true", help=text)
    add("every", "SECONDS", "interval between batches (default: none)", type=float, default=0.0)
    add("files-per-batch", "N", "read at most N files of each input in a batch", type=int)
    text = "address of a page and metrics of the stream, on this machine, such as 127.0.0.1:9109"
    add("serve", "HOST:PORT", text, type=_address)
    kafka = parser.add_argument_group("Kafka")
    add("bootstrap-servers", "HOST:PORT", "where it is", kafka)
    add("out-topic", "TOPIC", "where outcomes go, too: at least once, by operation id", kafka)
    text = "read at most N records of each topic in a batch"
    add("records-per-batch", "N", text, kafka, type=int)
    text = "of Spark's source and sink, such as kafka.security.protocol=SSL; may be repeated"
    add("kafka-option", "NAME=VALUE", text, kafka, type=_pair, action="append", default=[])
    text = "Spark's connector, such as org.apache.spark:spark-sql-kafka-0-10_2.13:4.3.0"
    add("packages", "NAMES", text, kafka)
    add("jars", "FILES", "instead of packages, with commas between them", kafka)
    add_master_option(parser)


def _idle(text: str) -> float:
    try:
        return NEVER if text == "never" else check_idle(float(text))
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"expected 'never' or a positive number of seconds, got {text!r}"
        ) from None


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    host = host.strip("[]")
    is_here = host == "localhost" or is_loopback(host)
    if not is_here or not port.isdecimal() or int(port) > 65535:
        example = "such as 127.0.0.1:9109"
        raise argparse.ArgumentTypeError(f"{text!r} is not HOST:PORT of this machine, {example}")
    return host, int(port)


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value


def run(options: argparse.Namespace) -> int:
    settings = {**SETTINGS, "spark.sql.shuffle.partitions": str(options.shards)}
    if options.at_once:
        settings["spark.sql.streaming.pollingDelay"] = "200ms"
    if options.packages:
        settings["spark.jars.packages"] = options.packages
    if options.jars:
        settings["spark.jars"] = options.jars
    stop = threading.Event()
    with spark_session(
        "purgatory stream", options.master, settings, verbose=options.verbose
    ) as spark:
        # Only now: Spark sets a handler of SIGINT when it starts.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stop.set())
        try:
            _rename_without_processes(spark, options.checkpoint, options.out)
            return Job(spark, options, stop).run()
        except (ShardsChanged, ValueError, PySparkException, Py4JError) as error:
            print(shown(f"cannot stream: {_brief(error)}"), file=sys.stderr)
            return 1


def _rename_without_processes(spark: SparkSession, *folders: str) -> None:
    """Chooses how Spark renames files, if `folders` are on this machine and the user has not."""
    if is_remote() or spark.sparkContext.getConf().contains(CHECKPOINT_FILES):
        return
    if all(map(Hadoop(spark).is_on_this_machine, folders)):
        spark.conf.set(CHECKPOINT_FILES, WITHOUT_PROCESSES)


def _brief(error: Exception) -> str:
    """The message of an error, without the ids, plans and stack traces that Spark adds to it."""
    raised = [line for line in str(error).splitlines() if "ShardsChanged" in line]
    return raised[-1] if raised else FRAME.sub("", first_line(error))
