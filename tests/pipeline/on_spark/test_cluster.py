"""Journals and tables on an HDFS of one data node, and a Spark whose two workers are processes:
report and stream, as processes."""

import os
import random
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pyspark
import pytest
from journals import assert_tables_equal, check, damage, random_operations, report, tables, write
from maven import Unavailable, jars
from orders import traffic
from orders import write as write_traffic
from pyspark.sql import SparkSession
from readme_blocks import ROOT, blocks
from requirements import need, unavailable
from shards import outcomes_of_traffic
from streams import JAVA_FOR_TESTS, JAVA_OPTIONS

from purgatory.pipeline._remote import Hadoop
from purgatory.pipeline.streaming import check_out

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
PAGE = ROOT / "purgatory" / "pipeline" / "README.md"
WHOLE = 1 << 24
"""More bytes than a file has."""
Program = Callable[..., subprocess.CompletedProcess[str]]

JARS: Final = Path(pyspark.__file__).parent / "jars"
HADOOP: Final = (
    "org.apache.hadoop:hadoop-client-minicluster:3.5.0",
    "commons-logging:commons-logging:1.3.5",
)
"""What Spark's own jars lack for a server of HDFS."""
NAMENODE: Final = """\
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.hdfs.MiniDFSCluster;

public class Hdfs {
    public static void main(String[] folder) throws Exception {
        Configuration configuration = new Configuration();
        configuration.set("hdfs.minidfs.basedir", folder[0]);
        try (MiniDFSCluster cluster = new MiniDFSCluster.Builder(configuration).numDataNodes(1).build()) {
            cluster.waitActive();
            System.out.println(cluster.getFileSystem().getUri());
            System.in.read();
        }
    }
}
"""


MASTER: Final = "local-cluster[2,1,1024]"
"""A standalone Spark of two workers with a core each."""


@pytest.fixture(scope="module")
def hdfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URI of an HDFS."""
    java = need("java", "needs Java 17: apt-get install openjdk-17-jdk-headless")
    try:
        path = jars(*HADOOP, alone=True)
    except Unavailable as error:
        unavailable(str(error))
    path += [*JARS.glob("hadoop-client-*.jar"), *JARS.glob("slf4j-api-*.jar")]
    folder = tmp_path_factory.mktemp("cluster")
    (folder / "Hdfs.java").write_text(NAMENODE)
    command = [java, "-Xmx512m", *JAVA_OPTIONS.split(), "-cp", ":".join(map(str, path))]
    command += [str(folder / name) for name in ("Hdfs.java", "hdfs")]
    with (folder / "log").open("ab") as log:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        server = subprocess.Popen(command, stderr=log, cwd=folder, text=True, **pipes)
    try:
        assert server.stdout is not None
        uri = server.stdout.readline().strip()
        if not uri:
            unavailable(f"HDFS does not start: {(folder / 'log').read_text()[-1000:]}")
        yield uri
    finally:
        server.kill()
        server.communicate()


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    home = tmp_path / "spark"  # workers have their folders in it
    home.mkdir()
    for each in JARS.parent.iterdir():
        (home / each.name).symlink_to(each)
    spark = {"SPARK_HOME": str(home), "SPARK_LOCAL_IP": "127.0.0.1"}
    return {**os.environ, **JAVA_FOR_TESTS, **spark}


@pytest.fixture
def pipeline(program: Program, environment: dict[str, str], tmp_path: Path) -> Program:
    """Runs a program of the pipeline on the cluster."""

    def run(*arguments: str, status: int = 0) -> subprocess.CompletedProcess[str]:
        command = ("-m", "purgatory.pipeline", *arguments, "--master", MASTER)
        return program(*command, status=status, env=environment, cwd=tmp_path, timeout=900)

    return run


def submit(journal: str, out: str, **options: Any) -> int:
    """Runs the commands of the page with `spark-submit`, and returns the exit status."""
    [text] = [block.text for block in blocks(PAGE, "sh") if "spark-submit" in block.text]
    values = {
        "spark://master:7077": MASTER,
        "hdfs://namenode/journal": journal,
        "hdfs://namenode/report": out,
        "spark-submit": str(Path(pyspark.__file__).parent / "bin" / "spark-submit"),
    }
    for word, value in values.items():
        assert word in text
        text = text.replace(word, shlex.quote(value))
    return subprocess.run(["sh", "-c", text], check=False, timeout=900, **options).returncode


def upload(spark: SparkSession, folder: Path, uri: str) -> None:
    for file in folder.rglob("*.*"):
        Hadoop(spark).write(f"{uri}/{file.relative_to(folder)}", file.read_bytes())


def download(spark: SparkSession, uri: str, folder: Path) -> None:
    storage = Hadoop(spark)
    for name in storage.names(uri):
        files = storage.sizes(f"{uri}/{name}") or {}
        for file in files:
            (folder / name).mkdir(parents=True, exist_ok=True)
            (folder / name / file).write_bytes(storage.read(f"{uri}/{name}/{file}", WHOLE))


def test_report_on_hdfs_equals_local_report(spark, hdfs, pipeline, environment, tmp_path):
    journal = tmp_path / "journal"
    rows = random_operations(random.Random(31), 1_000)
    checks = [check(second) for second in range(20)]
    for place in range(2):
        write(journal, "operations", f"part {place}%20", rows[place * 500 : place * 500 + 500])
    write(journal, "operations", "zero", []).write_bytes(b"")
    damage(write(journal, "operations", "bad", rows[:100]), "zeroed")
    write(journal, "checks", "x", checks)
    upload(spark, journal, f"{hdfs}/journal")

    uris = (f"{hdfs}/journal", f"{hdfs}/out")
    report(journal, tmp_path / "first")
    upload(spark, tmp_path / "first" / "tables", f"{hdfs}/out/tables")
    python = {"PYSPARK_PYTHON": sys.executable}
    status = submit(*uris, env={**environment, **python}, cwd=tmp_path)
    assert status == 3  # and its report replaces an earlier one

    download(spark, f"{hdfs}/out/tables", tmp_path / "out" / "tables")
    found = tables(tmp_path / "out")
    assert_tables_equal(found, rows, checks)
    assert {
        row.reason.partition(": ")[0]
        for row in found["reconciliation"]
        if row.what == "files unreadable"
    } == {f"{hdfs}/journal/operations/{name}.parquet" for name in ("bad", "zero")}
    storage = Hadoop(spark)
    assert storage.read(f"{hdfs}/out/report.html", 100).startswith(b"<!doctype html>")
    assert sorted(storage.names(f"{hdfs}/out")) == ["rejected", "report.html", "tables"]


def test_hdfs_stream_refuses_outcomes_of_another_checkpoint(spark, hdfs, pipeline, tmp_path):
    made = traffic(20, 60, seconds=90, keys=5)
    names = ("operations", "signals")
    write_traffic(made, tmp_path, files=1)
    for name in names:
        upload(spark, tmp_path / name, f"{hdfs}/{name}")
    places = [f"--{name}={hdfs}/{name}" for name in names]
    out = f"{hdfs}/outcomes"
    command = ["stream", *places, f"--out={out}", "--shards=2", "--available-now", "--delay=6"]

    pipeline(*command, f"--checkpoint={hdfs}/checkpoint")

    newest = max(made.operations[-1][3], made.signals[-1][2])
    found = spark.read.parquet(out).where("outcome != 'late'").select("operation_id", "outcome")
    expected = [row[:2] for row in outcomes_of_traffic(made) if row[2] <= newest]
    assert sorted(map(tuple, found.collect())) == expected
    with pytest.raises(ValueError, match="are of another checkpoint than"):
        check_out(out, f"{hdfs}/another", spark)
