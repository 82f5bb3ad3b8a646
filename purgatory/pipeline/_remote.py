"""Folders and files wherever Spark reads and writes: ``hdfs://``, ``s3a://``, ``abfss://``,
``gs://``, ``file://``."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any, NoReturn
from urllib.parse import unquote

from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql.utils import is_remote

from purgatory.pipeline._files import (
    Local,
    Storage,
    first_line,
    is_hidden,
    is_uri,
    relative,
    within,
)
from purgatory.pipeline._session import literal


def storage_of(spark: SparkSession, path: str) -> Storage:
    """The storage of a path or a URI."""
    if not is_uri(path):
        return Local()
    return Connected(spark) if is_remote() else Hadoop(spark)


class Hadoop:
    """A `Storage` on Hadoop's file systems, in the Java of the session."""

    def __init__(self, spark: SparkSession) -> None:
        context: Any = spark.sparkContext
        self._path = context._jvm.org.apache.hadoop.fs.Path
        self._configuration = context._jsc.hadoopConfiguration()

    @contextmanager
    def _at(self, name: str, action: str) -> Iterator[tuple[Any, Any]]:
        """The file system of a file or a folder, and its path there. Turns an error of Java into an
        OSError of one line."""
        try:
            path = self._path(name)
            yield path.getFileSystem(self._configuration), path
        except Py4JJavaError as error:
            raise OSError(f"cannot {action} {name!r}: {first_line(error)}") from error

    def sizes(self, folder: str) -> dict[str, int] | None:
        with self._at(folder, "list") as (files, path):
            if not files.exists(path):
                return None
            sizes: dict[str, int] = {}
            for each in files.listStatus(path):
                name = each.getPath().getName()
                if is_hidden(name):
                    continue
                if each.isFile():
                    sizes[name] = each.getLen()
                else:
                    sizes |= within(name, self.sizes(f"{folder}/{name}"))
            return sizes

    def read(self, file: str, limit: int) -> bytes:
        with self._at(file, "read") as (files, path), closing(files.open(path)) as stream:
            return bytes(stream.readNBytes(limit))

    def write(self, file: str, content: bytes) -> None:
        with self._at(file, "write to") as (files, path), closing(files.create(path, True)) as out:
            out.write(content)

    def make(self, folder: str) -> None:
        with self._at(folder, "write to") as (files, path):
            files.mkdirs(path)

    def move(self, folder: str, to: str) -> None:
        with self._at(folder, "rename") as (files, path):
            if not files.rename(path, self._path(to)):
                raise OSError(f"cannot rename {folder!r} to {to!r}")

    def delete(self, folder: str) -> None:
        with self._at(folder, "delete") as (files, path):
            files.delete(path, True)

    def names(self, folder: str) -> list[str]:
        with self._at(folder, "list") as (files, path):
            found = files.listStatus(path) if files.exists(path) else ()
            return [each.getPath().getName() for each in found]

    def is_on_this_machine(self, path: str) -> bool:
        """Whether a path or a URI leads to a disk of this machine."""
        with self._at(path, "use") as (files, _):
            return bool(files.getScheme() == "file")


class Connected:
    """A `Storage` that reads through Spark Connect. It cannot write or rename: the client has no
    Java."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def sizes(self, folder: str) -> dict[str, int] | None:
        try:
            # The reader of binary files leaves out empty ones.
            reader = self._spark.read.option("recursiveFileLookup", "true")
            found = reader.text(literal(folder)).inputFiles()
            files = reader.format("binaryFile").load(literal(folder))
            sizes = {row.path: row.length for row in files.select("path", "length").collect()}
        except AnalysisException as error:
            if error.getCondition() == "PATH_NOT_FOUND":
                return None
            raise
        names = {relative(path, folder): size for path, size in sizes.items()}
        listed = (relative(unquote(each), folder) for each in found)
        return {name: names.get(name, 0) for name in listed}

    def read(self, file: str, limit: int) -> bytes:
        found = self._spark.read.format("binaryFile").load(literal(file))
        # Spark would read the whole file, so it reads no larger one.
        content = [
            bytes(row.content)
            for row in found.where(f"length <= {limit}").select("content").collect()
        ]
        return content[0] if content else b""

    def names(self, folder: str) -> list[str]:
        return [*(self.sizes(folder) or ())]

    def _refuse(self, *names: Any, **_: Any) -> NoReturn:
        raise OSError(
            f"cannot write to {names[0]!r} through Spark Connect: use a folder of this machine, or a "
            "--master without sc://"
        )

    write = make = move = delete = _refuse
