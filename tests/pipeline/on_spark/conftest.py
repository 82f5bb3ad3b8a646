"""`spark` is the one Spark session of these tests. It starts with the first test that asks for it.
Everything in this folder needs Java, and runs in one process: see `tests/conftest.py`."""

from collections.abc import Iterator
from contextlib import nullcontext

import pytest
from pyspark.sql import SparkSession
from requirements import unavailable
from streams import JAVA_OPTIONS

from purgatory.pipeline import _session
from purgatory.pipeline._session import SparkUnavailable, require_java, spark_session

SETTINGS = {
    "spark.driver.extraJavaOptions": JAVA_OPTIONS,
    "spark.driver.memory": "1g",
    # planning anew and compiling take longer than so few rows
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.python.authenticate.socketTimeout": "120s",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.noDataProgressEventInterval": "1s",
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
}


@pytest.fixture(scope="session", autouse=True)
def java() -> None:
    """The tests are skipped where it is missing."""
    try:
        require_java()
    except SparkUnavailable as error:
        unavailable(str(error))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Spark on two threads of this process."""
    warehouse = {"spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse"))}
    with spark_session("purgatory tests", "local[2]", SETTINGS | warehouse) as session:
        yield session


@pytest.fixture
def programs_on_spark(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> SparkSession:
    """`report` runs on `spark` where it would start one."""
    monkeypatch.setattr(_session, "spark_session", lambda *_, **__: nullcontext(spark))
    return spark
