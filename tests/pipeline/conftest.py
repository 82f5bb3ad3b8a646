"""`spark` is the one Spark session of these tests. It starts with the first test that asks for it; one process runs them
all."""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession
from requirements import unavailable

from purgatory.pipeline._session import SparkUnavailable, check_java, spark_session

SETTINGS = {
    "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
    "spark.driver.memory": "1g",
    "spark.sql.codegen.wholeStage": "false",  # compiling takes longer than so few rows
    "spark.python.authenticate.socketTimeout": "120s",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
}


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Spark on two threads of this process."""
    try:
        check_java()
    except SparkUnavailable as error:
        unavailable(str(error))
    with spark_session("purgatory tests", "local[2]", SETTINGS) as session:
        yield session
