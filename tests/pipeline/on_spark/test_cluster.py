"""Journals and tables on an HDFS of one data node, and a standalone Spark of a master and two
workers, which share no folder: report and stream, as processes."""

import os
import random
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyspark
import pytest
from java import JAVA_FOR_TESTS
from journals import assert_tables_equal, check, damage, random_operations, tables, write
from maven import Unavailable, jars
from orders import traffic
from orders import write as write_traffic
from ports import free_port
from pyspark.sql import SparkSession
from readme_blocks import ROOT, blocks
from requirements import need, unavailable
from shards import outcomes_of_traffic

from purgatory.pipeline._remote import Hadoop

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


class Cluster(NamedTuple):
    uri: str
    master: str


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """An HDFS, and a Spark whose two workers have a core and a folder each."""
    java = need("java", "needs Java 17: apt-get install openjdk-17-jdk-headless")
    try:
        path = jars(*HADOOP, alone=True)
    except Unavailable as error:
        unavailable(str(error))
    path += [*JARS.glob("hadoop-client-*.jar"), *JARS.glob("slf4j-api-*.jar")]
    folder, port = tmp_path_factory.mktemp("cluster"), free_port()
    (folder / "Hdfs.java").write_text(NAMENODE)
    spark = {"SPARK_HOME": str(JARS.parent), "SPARK_SCALA_VERSION": "2.13"}
    environment = {**os.environ, **JAVA_FOR_TESTS, **spark, "SPARK_LOCAL_IP": "127.0.0.1"}
    with ExitStack() as stack:
        log = stack.enter_context((folder / "log").open("ab"))

        def start(*words: object, place: Path = folder, **options: Any) -> subprocess.Popen[bytes]:
            options = {"stdout": log, "stderr": log, "cwd": place, "env": environment, **options}
            options |= {"stdin": subprocess.PIPE, "start_new_session": True}
            command = [java, "-Xmx512m", "-cp", *map(str, words)]
            process = subprocess.Popen(command, **options)
            stack.callback(process.communicate)
            stack.callback(os.killpg, process.pid, signal.SIGKILL)
            return process

        def deploy(role: str, *words: object, place: Path = folder) -> None:
            name = f"org.apache.spark.deploy.{role.lower()}.{role}"
            local = ("--host", "127.0.0.1", "--webui-port", 0)
            start(f"{JARS}/*", name, *local, *words, place=place)

        source = [folder / "Hdfs.java", folder / "hdfs"]
        server = start(":".join(map(str, path)), *source, stdout=subprocess.PIPE)
        master = f"spark://127.0.0.1:{port}"
        deploy("Master", "--port", port)
        for number in range(2):  # each tries until the master is there
            place = folder / f"worker-{number}"
            place.mkdir()
            deploy("Worker", "-c", 1, "-m", "1g", "-d", place, master, place=place)
        assert server.stdout is not None
        uri = server.stdout.readline().decode().strip()
        if not uri:
            unavailable(f"HDFS does not start: {(folder / 'log').read_text()[-1000:]}")
        yield Cluster(uri, master)


@pytest.fixture
def environment() -> dict[str, str]:
    return {**os.environ, **JAVA_FOR_TESTS, "SPARK_LOCAL_IP": "127.0.0.1"}


@pytest.fixture
def pipeline(
    cluster: Cluster, program: Program, environment: dict[str, str], tmp_path: Path
) -> Program:
    """Runs a program of the pipeline on the cluster."""

    def run(*arguments: str, status: int = 0) -> subprocess.CompletedProcess[str]:
        command = ("-m", "purgatory.pipeline", *arguments, "--master", cluster.master)
        return program(*command, status=status, env=environment, cwd=tmp_path, timeout=900)

    return run


def submit(cluster: Cluster, journal: str, out: str, **options: Any) -> int:
    """Runs the commands of the page with `spark-submit`, and returns the exit status."""
    [text] = [block.text for block in blocks(PAGE, "sh") if "spark-submit" in block.text]
    values = {
        "spark://master:7077": cluster.master,
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


def test_report_on_hdfs_equals_local_report(spark, cluster, pipeline, environment, tmp_path):
    journal = tmp_path / "journal"
    rows = random_operations(random.Random(31), 1_000)
    checks = [check(second) for second in range(20)]
    for place in range(2):
        write(journal, "operations", f"part {place}%20", rows[place * 500 : place * 500 + 500])
    write(journal, "operations", "zero", []).write_bytes(b"")
    damage(write(journal, "operations", "bad", rows[:100]), "zeroed")
    write(journal, "checks", "x", checks)
    upload(spark, journal, f"{cluster.uri}/journal")

    uris = (f"{cluster.uri}/journal", f"{cluster.uri}/out")
    said = pipeline("report", uris[0], "--out", uris[1], status=3)
    assert said.stderr == ""
    python = {"PYSPARK_PYTHON": sys.executable}
    status = submit(cluster, *uris, env={**environment, **python}, cwd=tmp_path)
    assert status == 3  # and its report replaces the first one

    download(spark, f"{cluster.uri}/out/tables", tmp_path / "out" / "tables")
    found = tables(tmp_path / "out")
    assert_tables_equal(found, rows, checks)
    assert {
        row.reason.partition(": ")[0]
        for row in found["reconciliation"]
        if row.what == "files unreadable"
    } == {f"{cluster.uri}/journal/operations/{name}.parquet" for name in ("bad", "zero")}
    storage = Hadoop(spark)
    assert storage.read(f"{cluster.uri}/out/report.html", 100).startswith(b"<!doctype html>")
    assert sorted(storage.names(f"{cluster.uri}/out")) == ["rejected", "report.html", "tables"]


def test_hdfs_stream_refuses_outcomes_of_another_checkpoint(spark, cluster, pipeline, tmp_path):
    made = traffic(20, 60, seconds=90, keys=5)
    names = ("operations", "signals")
    write_traffic(made, tmp_path, files=1)
    for name in names:
        upload(spark, tmp_path / name, f"{cluster.uri}/{name}")
    places = [f"--{name}={cluster.uri}/{name}" for name in names]
    out = f"{cluster.uri}/outcomes"
    command = ["stream", *places, f"--out={out}", "--shards=2", "--available-now", "--delay=6"]

    pipeline(*command, f"--checkpoint={cluster.uri}/checkpoint")

    newest = max(made.operations[-1][3], made.signals[-1][2])
    found = spark.read.parquet(out).where("outcome != 'late'").select("operation_id", "outcome")
    expected = [row[:2] for row in outcomes_of_traffic(made) if row[2] <= newest]
    assert sorted(map(tuple, found.collect())) == expected
    refused = pipeline(*command, f"--checkpoint={cluster.uri}/another", status=1)
    assert "are of another checkpoint than" in refused.stderr
