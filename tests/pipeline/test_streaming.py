"""What the stream job does when a query fails, without Spark."""

import argparse
import threading
from typing import Any
from unittest.mock import MagicMock

import pytest
from pyspark.errors import StreamingQueryException

from purgatory.pipeline.streaming import _command, _job
from purgatory.pipeline.streaming._job import Job


def test_what_ended_a_query_is_reported_in_one_line_without_what_spark_puts_around_it() -> None:
    error = StreamingQueryException(
        "[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: [PARQUET_COLUMN_DATA_TYPE_MISMATCH] Error while "
        "reading file:///a.parquet. Expected string, actual DOUBLE. SQLSTATE: KD001 SQLSTATE: XXKST\n=== Streaming Query ===\n"
    )

    assert _command._brief(error) == (
        "[PARQUET_COLUMN_DATA_TYPE_MISMATCH] Error while reading file:///a.parquet. Expected string, actual DOUBLE."
    )
    assert _command._brief(ValueError("as it is")) == "as it is"


def test_a_query_that_fails_takes_the_one_that_sends_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the next try could not send: Spark allows one query for each checkpoint."""
    deciding, sending = MagicMock(), MagicMock()
    deciding.awaitTermination.side_effect = StreamingQueryException("the disk is full")
    monkeypatch.setattr(Job, "_start", lambda *_: deciding)
    monkeypatch.setattr(Job, "_send", lambda _: sending)
    options = argparse.Namespace(out="out", checkpoint="checkpoint", every=0.0, out_topic="outcomes", available_now=False)

    with pytest.raises(StreamingQueryException, match="disk"):
        Job(MagicMock(), options, threading.Event())._follow(MagicMock())

    sending.stop.assert_called_once_with()


def test_a_query_whose_worker_was_too_slow_to_start_is_started_again_a_few_times(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    errors = iter([StreamingQueryException("Python worker failed to connect back."), None])
    tries: list[object] = []

    def follow(job: Job, decided: object) -> None:
        tries.append(decided)
        if error := next(errors):
            raise error

    monkeypatch.setattr(Job, "_follow", follow)
    job: Any = Job(None, argparse.Namespace(), threading.Event())  # type: ignore[arg-type]

    job._decide("query")
    assert tries == ["query"] * 2 and "once more" in capsys.readouterr().out

    errors = iter([StreamingQueryException("the disk is full")])
    with pytest.raises(StreamingQueryException, match="disk"):
        job._decide("query")

    errors = (StreamingQueryException("failed to connect back") for _ in range(99))
    with pytest.raises(StreamingQueryException, match="connect"):
        job._decide("query")
    assert len(tries) == 3 + _job.MAX_STARTS
