"""Does the tasks of a program, here or on Spark: the same function over a list of tasks, whose results come back in order.

    results = spread(function, tasks)      what `Here` and `on_spark` are

A program that is written so does not depend on where its tasks run. In this process they start at once, which is why a small
journal is read here; Spark takes some seconds to start, and then has the cores of a machine or of a cluster. The tasks leave
what is large in files, in a folder that all of them see, and return what is small.

A job of Spark has one task for each of ours. Through Spark Connect it is a query on a DataFrame. Otherwise it is one on an
RDD, for which Java has a quarter as much to load before the first task can start.
"""

import pickle
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Protocol, TypeVar
from zipfile import ZipFile, ZipInfo

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark import SparkContext, cloudpickle
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

import purgatory

T = TypeVar("T")
R = TypeVar("R")


class TaskFailed(Exception):
    """A task ended with an exception, on Spark; the message is that of the exception, in one line."""


class Spread(Protocol):
    """Does tasks, and returns their results in the order of the tasks.

    The function has to be one of a module, or a `functools.partial` of one: it is sent by its name.
    """

    def __call__(self, function: Callable[[T], R], tasks: Sequence[T]) -> list[R]: ...


def here(function: Callable[[T], R], tasks: Sequence[T]) -> list[R]:
    """Does the tasks one after another, in this process."""
    return [function(task) for task in tasks]


@contextmanager
def on_spark(spark: SparkSession) -> Iterator[Spread]:
    """Does the tasks on the workers of a session. They need pyarrow and numpy; our code is sent to them."""
    context = _context(spark)

    def spread(function: Callable[[T], R], tasks: Sequence[T]) -> list[R]:
        if not tasks:
            return []
        work = [pickle.dumps((function, task)) for task in tasks]
        try:
            results = _by_rows(spark, work) if context is None else context.parallelize(work, len(work)).map(_done).collect()
        except (PySparkException, Py4JError) as error:
            raise TaskFailed(last_words(str(error))) from error
        return [pickle.loads(result) for result in results]

    with package_on_workers(spark):
        yield spread


def _context(spark: SparkSession) -> SparkContext | None:
    """What knows RDDs; Spark Connect has none."""
    return getattr(spark, "sparkContext", None)


def _done(work: bytes) -> bytes:
    pa.set_cpu_count(1)  # a task of Spark has one core
    function, task = pickle.loads(work)  # a worker imports our code here
    return pickle.dumps(function(task))


def _by_rows(spark: SparkSession, work: list[bytes]) -> list[bytes]:
    rows = spark.range(0, len(work), 1, len(work)).mapInArrow(partial(_do, work=work), "id long, result binary")
    results = {row.id: row.result for row in rows.collect()}
    return [results[place] for place in range(len(work))]


def _do(batches: Iterator[pa.RecordBatch], work: list[bytes]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for place in batch.column("id").to_pylist():
            yield pa.RecordBatch.from_pydict({"id": [place], "result": [_done(work[place])]})


def frame(spark: SparkSession, function: Callable[[T], pa.Table], tasks: Sequence[T], schema: StructType) -> DataFrame:
    """The rows of the tables that a function makes of each task, as a DataFrame of Spark. See `package_on_workers`."""
    work = [pickle.dumps((function, task)) for task in tasks]
    return spark.range(0, len(tasks), 1, max(len(tasks), 1)).mapInArrow(partial(_rows, work=work), schema)


def _rows(batches: Iterator[pa.RecordBatch], work: list[bytes]) -> Iterator[pa.RecordBatch]:
    pa.set_cpu_count(1)
    for batch in batches:
        for place in batch.column("id").to_pylist():
            function, task = pickle.loads(work[place])
            yield from function(task).to_batches(max_chunksize=10_000)


def last_words(text: str) -> str:
    """The exception of a worker's traceback, without the traceback."""
    lines = [line.strip() for line in text.splitlines()]
    ends = [place for place, line in enumerate(lines) if line.startswith("File ") and place + 2 < len(lines)]
    words = [line for line in lines[ends[-1] + 2 :] if line and not set(line) <= set("^~ ")] if ends else lines
    return next((line for line in words if ":" in line), words[0] if words else "no reason was given")


@contextmanager
def package_on_workers(spark: SparkSession) -> Iterator[None]:
    """Sends our code to the workers, who may not have it installed. They may ask for it until the block ends."""
    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]
    package = Path(purgatory.__file__).parent
    sources = {str(path.relative_to(package.parent)): path.read_bytes() for path in sorted(package.rglob("*.py"))}
    with TemporaryDirectory() as folder:
        # A session refuses another file of a name that it has, so the name and the file follow from the code alone.
        file = Path(folder) / f"purgatory-{sha256(repr(sources).encode()).hexdigest()[:12]}.zip"
        with ZipFile(file, "w") as archive:
            for path, content in sources.items():
                archive.writestr(ZipInfo(path), content)
        spark.addArtifacts(str(file), pyfile=True)
        yield
