"""Runs one function over a list of tasks, in this process or on Spark, and returns the results in the order of the tasks.

    results = executor(function, tasks)      # the executor is `local`, or what `on_spark` gives

In this process tasks start at once, so a small journal is read here. Spark takes some seconds to start, and then has the cores
of a machine or of a cluster. Tasks return small values, and write large ones to files in a folder that all of them see.

On Spark each of our tasks is a task of its own: an element of an RDD, or through Spark Connect, which has no RDDs, a row of a
DataFrame. For an RDD Java has a quarter as much to load before the first task can start.
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
    """A task on Spark raised an exception. The message is that of the exception, in one line."""


class Executor(Protocol):
    """Runs a function on each task, and returns the results in the order of the tasks.

    The function has to be one of a module, or a `functools.partial` of one: it is pickled by its name.
    """

    def __call__(self, function: Callable[[T], R], tasks: Sequence[T]) -> list[R]: ...


def local(function: Callable[[T], R], tasks: Sequence[T]) -> list[R]:
    """Runs the tasks one after another, in this process."""
    return [function(task) for task in tasks]


@contextmanager
def on_spark(spark: SparkSession) -> Iterator[Executor]:
    """Runs the tasks on the workers of a session. They need pyarrow and numpy; our code is sent to them."""
    context = _context(spark)

    def executor(function: Callable[[T], R], tasks: Sequence[T]) -> list[R]:
        if not tasks:
            return []
        pickled = [pickle.dumps((function, task)) for task in tasks]
        try:
            if context is None:
                results = _run_as_query(spark, pickled)
            else:
                results = context.parallelize(pickled, len(pickled)).map(_run).collect()
        except (PySparkException, Py4JError) as error:
            raise TaskFailed(exception_line(str(error))) from error
        return [pickle.loads(result) for result in results]

    with package_on_workers(spark):
        yield executor


def _context(spark: SparkSession) -> SparkContext | None:
    """What makes RDDs; Spark Connect has none."""
    return getattr(spark, "sparkContext", None)


def _run(pickled: bytes) -> bytes:
    pa.set_cpu_count(1)  # a task of Spark has one core
    function, task = pickle.loads(pickled)  # a worker imports our code here
    return pickle.dumps(function(task))


def _run_as_query(spark: SparkSession, pickled: list[bytes]) -> list[bytes]:
    rows = as_dataframe(spark, _result_row, list(enumerate(pickled)), "id long, result binary").collect()
    return [row.result for row in sorted(rows, key=lambda row: row.id)]


def _result_row(task: tuple[int, bytes]) -> pa.Table:
    number, pickled = task
    return pa.table({"id": [number], "result": [_run(pickled)]})


def as_dataframe(
    spark: SparkSession, function: Callable[[T], pa.Table], tasks: Sequence[T], schema: StructType | str
) -> DataFrame:
    """A DataFrame with the rows of the tables that a function makes of each task. See `package_on_workers`."""
    pickled = [pickle.dumps((function, task)) for task in tasks]
    return spark.range(0, len(tasks), 1, max(len(tasks), 1)).mapInArrow(partial(_tables_of, pickled=pickled), schema)


def _tables_of(batches: Iterator[pa.RecordBatch], pickled: list[bytes]) -> Iterator[pa.RecordBatch]:
    pa.set_cpu_count(1)
    for batch in batches:
        for number in batch.column("id").to_pylist():
            function, task = pickle.loads(pickled[number])
            yield from function(task).to_batches(max_chunksize=10_000)


def exception_line(text: str) -> str:
    """The last line of a worker's traceback: the exception and its message."""
    lines = [line.strip() for line in text.splitlines()]
    ends = [number for number, line in enumerate(lines) if line.startswith("File ") and number + 2 < len(lines)]
    words = [line for line in lines[ends[-1] + 2 :] if line and not set(line) <= set("^~ ")] if ends else lines
    return next((line for line in words if ":" in line), words[0] if words else "no reason was given")


@contextmanager
def package_on_workers(spark: SparkSession) -> Iterator[None]:
    """Sends our code to the workers, which may not have it installed. They can fetch it until the block ends."""
    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]
    package = Path(purgatory.__file__).parent
    sources = {str(path.relative_to(package.parent)): path.read_bytes() for path in sorted(package.rglob("*.py"))}
    with TemporaryDirectory() as folder:
        # A session refuses a second file of a name unless it is the same, so name and content depend on the code alone.
        file = Path(folder) / f"purgatory-{sha256(repr(sources).encode()).hexdigest()[:12]}.zip"
        with ZipFile(file, "w") as archive:
            for path, content in sources.items():
                archive.writestr(ZipInfo(path), content)
        spark.addArtifacts(str(file), pyfile=True)
        yield
