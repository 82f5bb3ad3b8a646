"""The comparison with Kafka, with small numbers: it measures both brokers and prints a table."""

import re

import against_kafka
import pytest
from first_record import TIMEOUT
from kafka_server import SERVER
from maven import Unavailable, jars
from requirements import unavailable

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
]  # a busy machine takes minutes to start JVMs


@pytest.mark.parametrize("kind", ["ours", "Kafka"])
def test_measurements_print_rows_and_lose_no_message(
    kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        jars(*SERVER)
    except Unavailable as error:
        unavailable(str(error))
    small = [
        "--rates",
        "200",
        "--warm-up",
        "0.5",
        "--seconds",
        "1",
        "--consumers",
        "20",
        "--waits",
        "0.1",
        "--rounds",
        "1",
    ]
    small += ["--messages", "3000"]

    assert (
        against_kafka.main(["start", "latency", "throughput", "idle", *small, "--only", kind]) == 0
    )

    said = capsys.readouterr().out
    start, latency, small_ones, large_ones, idle = (
        line for line in said.splitlines() if line.startswith(kind)
    )
    assert re.fullmatch(rf"{kind} +\d+\.\d\d +\d+\.\d\d +\d+", start)
    for line, size in ((small_ones, "100"), (large_ones, "10,000")):
        assert re.fullmatch(rf"{kind} +{size} bytes +[\d,]+ +[\d,]+ +[\d,]+, [\d,]+", line)
    p50, p99, worst, lost, _ = latency.split("/s")[1].split()
    assert 0 < float(p50) <= float(p99) <= float(worst) and lost == "0"
    assert idle.startswith(f"{kind}     wait  0.1 s"[:6]) and idle.split()[-1] == "0"
    assert float(idle.split()[-3].replace(",", "")) > 0  # responses a second


def test_each_client_gets_new_groups_first_record(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert against_kafka.main(["group", "--groups", "1", "--only", "ours"]) == 0

    said = capsys.readouterr()
    if said.err:
        unavailable(said.err.strip())
    _, heads, row = said.out.splitlines()
    assert heads.split("s ", 1)[1].split() == [
        "confluent-kafka",
        "aiokafka",
        "kafka-python",
        "Java",
        "kafkajs",
    ]
    assert all(
        0.1 <= float(cell) < TIMEOUT for cell in row.split()[4:]
    )  # a busy machine; it is 0.1 to 0.3 on a quiet one
    assert len(row.split()) == 9


def test_missing_client_is_left_out_with_reason(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")

    assert against_kafka.main(["group", "--groups", "1", "--only", "ours"]) == 0

    said = capsys.readouterr()
    assert said.out.split()[-2:] == ["-", "-"]
    assert (
        "without Java: needs Java 17" in said.err
        and "without kafkajs: needs Node and npm" in said.err
    )
