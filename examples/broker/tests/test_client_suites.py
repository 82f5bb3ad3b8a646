"""A client's own suite runs on the broker: failures are distinguished, and reported."""

from pathlib import Path

import client_suites
import pytest


@pytest.mark.slow
def test_confluent_kafka_checkout_runs_on_the_broker(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tests = tmp_path / "tests" / "integration"
    tests.mkdir(parents=True)
    (tests / "test_metadata.py").write_text("""\
import os
from confluent_kafka.admin import AdminClient
from trivup.clusters.KafkaCluster import KafkaCluster

def test_it_answers():
    admin = AdminClient({"bootstrap.servers": os.environ["BROKERS"], "log_level": 0})
    assert admin.list_topics(timeout=30).topics == {}

def test_it_is_another_one():
    assert os.environ["BROKERS"] == ""
""")

    (tests / "test_broken.py").write_text("import nothing_that_is_installed\n")
    (tests / "schema_registry").mkdir()
    (tests / "schema_registry" / "test_registry.py").write_text(
        "import nothing_that_is_installed\n"
    )

    assert client_suites.main(["confluent-kafka", "--checkout", f"confluent-kafka={tmp_path}"]) == 1

    said = capsys.readouterr().out
    assert "- On this broker: 2 failed, 1 passed." in said
    assert "`tests.integration.test_broken`" in said and "registry" not in said
    assert "failed: test_it_is_another_one: AssertionError: assert '127.0.0.1:" in said
