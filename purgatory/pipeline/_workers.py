"""Sends our code to Spark's workers, which may not have it installed."""

import pickle
from collections.abc import Callable
from functools import cache, partial
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final
from zipfile import ZipFile, ZipInfo

import pyarrow as pa
from pyspark.sql import SparkSession

import purgatory


def for_workers(function: Callable[..., Any], **arguments: Any) -> Callable[[Any], Any]:
    """A function of one of our modules, for ``mapInArrow`` and ``applyInArrow``.

    Spark unpickles functions before our code has arrived. So the returned function is pickled by
    value, and has the given one pickled by name.
    """
    pickled = pickle.dumps(partial(function, **arguments))

    def call(given: Any) -> Any:
        pa.set_cpu_count(1)  # a task of Spark has one core
        return pickle.loads(pickled)(given)

    return call


def send_package(spark: SparkSession) -> None:
    """Sends our code to the workers of a session."""
    spark.addArtifacts(_archive(), pyfile=True)


@cache
def _archive() -> str:
    """A ZIP file with our code. It exists until this process ends, since workers may ask for it at
    any time."""
    package = Path(purgatory.__file__).parent
    sources = {
        str(path.relative_to(package.parent)): path.read_bytes()
        for path in sorted(package.rglob("*.py"))
    }
    # A session refuses a second file of a name unless it is the same, so name and content depend on
    # the code alone.
    file = Path(_FOLDER.name) / f"purgatory-{sha256(repr(sources).encode()).hexdigest()[:12]}.zip"
    with ZipFile(file, "w") as archive:
        for path, content in sources.items():
            archive.writestr(ZipInfo(path), content)
    return str(file)


_FOLDER: Final = TemporaryDirectory(prefix="purgatory-")
