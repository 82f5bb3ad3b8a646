"""The stream job without Spark: a query that fails, options, and its page for this machine alone."""

import socket
from contextlib import nullcontext
from pathlib import Path
from unittest.mock import MagicMock

import pytest
from pyspark.errors import StreamingQueryException
from streams import job_of

from purgatory.metrics import StreamMeter
from purgatory.pipeline.streaming import _command, _job
from purgatory.pipeline.streaming._dashboard import dashboard
from purgatory.pipeline.streaming._job import Job

FOLDER = Path("folder")


def test_error_of_a_query_is_one_line():
    error = StreamingQueryException(
        "[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: "
        "[PARQUET_COLUMN_DATA_TYPE_MISMATCH] Error while "
        "reading file:///a.parquet. Expected string, actual DOUBLE. SQLSTATE: KD001 SQLSTATE: "
        "XXKST\n=== Streaming Query ===\n"
    )

    assert _command._brief(error) == (
        "[PARQUET_COLUMN_DATA_TYPE_MISMATCH] Error while reading file:///a.parquet. Expected "
        "string, actual DOUBLE."
    )
    assert _command._brief(ValueError("as it is")) == "as it is"


@pytest.mark.parametrize(
    ("folders", "configured", "changed"),
    [
        (("state", "out"), False, True),
        (("state", "out"), True, False),
        (("state", "hdfs://x/out"), False, False),
        (("hdfs://x/state", "out"), False, False),
    ],
)
def test_only_local_unconfigured_checkpoints_rename_without_processes(
    folders, configured, changed, monkeypatch
):
    spark, hadoop = MagicMock(), MagicMock()
    spark.sparkContext.getConf().contains.return_value = configured
    hadoop.return_value.is_on_this_machine = lambda path: "://" not in path
    monkeypatch.setattr(_command, "Hadoop", hadoop)

    _command._rename_without_processes(spark, *folders)

    assert spark.conf.set.called == changed


def test_failed_query_stops_the_sending_query(monkeypatch):
    """Otherwise the next try could not send: Spark allows one query for each checkpoint."""
    deciding, sending = MagicMock(), MagicMock()
    deciding.awaitTermination.side_effect = StreamingQueryException("the disk is full")
    monkeypatch.setattr(Job, "_start", lambda *_: deciding)
    monkeypatch.setattr(Job, "_send", lambda _: sending)
    with pytest.raises(StreamingQueryException, match="disk"):
        job_of(MagicMock(), FOLDER, "--out-topic=outcomes")._follow(MagicMock())

    sending.stop.assert_called_once_with()


SLOW = "Python worker failed to connect back."


@pytest.mark.parametrize(
    ("errors", "starts", "complaint"),
    [
        ([SLOW], 2, None),
        (["the disk is full"], 1, "disk"),
        ([SLOW] * 99, _job.MAX_STARTS, "connect"),
    ],
)
def test_slow_worker_restarts_the_query(errors, starts, complaint, monkeypatch):
    follow = MagicMock(side_effect=[*map(StreamingQueryException, errors), None])
    monkeypatch.setattr(Job, "_follow", follow)

    with pytest.raises(StreamingQueryException, match=complaint) if complaint else nullcontext():
        job_of(MagicMock(), FOLDER)._decide(MagicMock())

    assert follow.call_count == starts


@pytest.mark.parametrize(
    ("option", "reads_all"),
    [
        ("--kafka-option=kafka.security.protocol=SSL", True),
        ("--files-per-batch=1", False),
        ("--records-per-batch=1", False),
        ("--kafka-option=maxOffsetsPerTrigger=1", False),
    ],
)
def test_limited_batches_may_not_read_all(option, reads_all):
    assert job_of(MagicMock(), FOLDER, option)._reads_all() is reads_all


def test_idle_is_refused_with_available_now():
    with pytest.raises(ValueError, match="there is no --idle"):
        job_of(MagicMock(), FOLDER, "--available-now", "--idle=5").run()


ANYWHERE = ("127.0.0.1", 0)


def test_address_of_this_machine_is_served():
    found = [_command._address(text) for text in ("localhost:9109", "[::1]:80")]
    assert found == [("localhost", 9109), ("::1", 80)]


def test_taken_port_is_reported_in_one_line():
    with socket.create_server(ANYWHERE) as taken:
        where = taken.getsockname()
        complaint = rf"cannot serve on 127.0.0.1:{where[1]}: Address already in use"
        with pytest.raises(OSError, match=complaint), dashboard(StreamMeter("x"), where):
            pass


@pytest.mark.parametrize("path", ["/", "/metrics", "/events"])
def test_visitor_by_another_name_sees_nothing(path):
    with dashboard(StreamMeter("x"), ANYWHERE) as url:
        host, port = url.removeprefix("http://").rstrip("/").split(":")
        with socket.create_connection((host, int(port))) as visitor:
            head = f"GET {path} HTTP/1.1\r\nHost: example.org\r\nConnection: close\r\n\r\n"
            visitor.sendall(head.encode())
            assert b" 403 " in visitor.makefile("rb").readline()
