"""The report on Spark, and the journals that `synth` makes."""

import random
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from journals import assert_tables_equal, check, damage, random_operations, table, tables, write
from pyspark.sql import SparkSession

from purgatory.journal import CHECKS, OPERATIONS
from purgatory.pipeline import _executor, synth
from purgatory.pipeline._command_line import main
from purgatory.pipeline._executor import TaskFailed, local, on_spark
from purgatory.pipeline.report import _make

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


def test_a_second_run_over_a_grown_journal_says_what_one_run_over_all_says(
    programs_on_spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = random_operations(random.Random(5), 600)
    journal, out = tmp_path / "journal", tmp_path / "out"
    (journal / "operations").mkdir(parents=True)
    assert main(["report", str(journal), "--out", str(out)]) == 0
    assert "There is nothing to report on" in capsys.readouterr().out

    write(journal, "operations", "run-0", rows[:300])
    write(journal, "operations", "run-1", rows[300:])
    assert main(["report", str(journal), "--out", str(out), "--master", "spark://its.own"]) == 0

    assert_tables_equal(tables(out), rows, [])


def test_synth_makes_the_same_journal_for_the_same_seed_and_in_the_schema_of_a_journal(
    spark: SparkSession, tmp_path: Path
) -> None:
    made = [synth.operations(spark, 500, seed).collect() for seed in (1, 1, 2)]

    assert made[0] == made[1] != made[2]
    operations = synth.operations(spark, 500)
    operations.write.parquet(str(tmp_path / "operations"))
    synth.checks(operations).write.parquet(str(tmp_path / "checks"))
    for folder, schema in (("operations", OPERATIONS), ("checks", CHECKS)):
        read = pq.read_table(tmp_path / folder).schema
        assert [(field.name, field.type) for field in read] == [(field.name, field.type) for field in schema]


@pytest.mark.parametrize("through", ["RDDs", "rows, as over Spark Connect"])
def test_spark_sets_apart_what_this_process_does(
    through: str, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if through != "RDDs":
        monkeypatch.setattr(_executor, "_context", lambda _: None)
    monkeypatch.setattr(_make, "ROWS_OF_SHARD", 500)
    journal = tmp_path / "journal *"
    rows = random_operations(random.Random(9), 2000)
    for place in range(4):
        write(journal, "operations", f"{place}", rows[place * 500 : place * 500 + 500])
    damage(journal / "operations" / "3.parquet", "zeroed")
    write(journal, "checks", "x", [check(second, key=f"key-{second % 7}") for second in range(50)])

    with on_spark(spark) as executor:
        _make.make_tables(executor, [str(journal)], str(tmp_path / "there"))
    _make.make_tables(local, [str(journal)], str(tmp_path / "here"))

    assert_tables_equal(tables(tmp_path / "there"), rows[:1500], [check(s, key=f"key-{s % 7}") for s in range(50)])
    for name in _make.TABLES:
        made = [sorted(map(str, table(tmp_path / where, name))) for where in ("there", "here")]
        assert made[0] == made[1]


@pytest.mark.parametrize("through", ["RDDs", "rows, as over Spark Connect"])
def test_a_task_that_fails_on_spark_is_reported_in_one_line(
    through: str, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    if through != "RDDs":
        monkeypatch.setattr(_executor, "_context", lambda _: None)
    with on_spark(spark) as executor, pytest.raises(TaskFailed) as error:
        executor(Path.read_text, [Path("/no/such/file")])

    assert str(error.value) == "FileNotFoundError: [Errno 2] No such file or directory: '/no/such/file'"
