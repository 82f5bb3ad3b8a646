"""Journals and tables on HDFS, and workers that share no folder: report and stream, as processes."""

import os
import random
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pyspark
import pytest
from clusters import hdfs, standalone
from java import JAVA_FOR_TESTS
from journals import assert_tables_equal, check, damage, random_operations, tables, write
from maven import Unavailable
from pyspark.sql import SparkSession
from readme_blocks import ROOT, blocks
from requirements import unavailable
from streams import as_parquet, happens, put, waits

from purgatory.pipeline._remote import Hadoop
from purgatory.pipeline.streaming import OPERATIONS, SIGNALS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
PAGE = ROOT / "purgatory" / "pipeline" / "README.md"
WHOLE = 1 << 24
"""More bytes than a file has."""
Program = Callable[..., subprocess.CompletedProcess[str]]


class Cluster(NamedTuple):
    uri: str
    master: str


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("cluster")
    try:
        with hdfs(folder) as uri, standalone(folder) as master:
            yield Cluster(uri, master)
    except Unavailable as error:
        unavailable(str(error))


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


def test_report_on_hdfs_equals_local_report(
    spark: SparkSession,
    cluster: Cluster,
    pipeline: Program,
    environment: dict[str, str],
    tmp_path: Path,
) -> None:
    journal = tmp_path / "journal"
    rows, checks = (
        random_operations(random.Random(31), 1_000),
        [check(second) for second in range(20)],
    )
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


def test_hdfs_stream_refuses_outcomes_of_another_checkpoint(
    spark: SparkSession, cluster: Cluster, pipeline: Program, tmp_path: Path
) -> None:
    put(tmp_path, "operations", waits("paid", 1, 20, "x"), waits("unpaid", 1, 20, "y"))
    put(tmp_path, "signals", happens("x", 5), happens("z", 60))
    as_parquet(tmp_path, {"operations": OPERATIONS, "signals": SIGNALS})
    for name in ("operations", "signals"):
        upload(spark, tmp_path / name, f"{cluster.uri}/{name}")
    places = [
        part
        for name in ("operations", "signals", "out")
        for part in (f"--{name}", f"{cluster.uri}/{name}")
    ]
    command = ["stream", *places, "--shards", "2", "--available-now", "--checkpoint"]
    out = f"{cluster.uri}/outcomes"
    command[command.index("--out") + 1] = out

    pipeline(*command, f"{cluster.uri}/checkpoint")

    rows = spark.read.parquet(out).collect()
    assert sorted((row.operation_id, row.outcome) for row in rows) == [
        ("paid", "completed"),
        ("unpaid", "expired"),
    ]
    refused = pipeline(*command, f"{cluster.uri}/another", status=1)
    assert "are of another checkpoint than" in refused.stderr
