"""Each feature of the clients of Python runs on the broker, and is listed on the page."""

from pathlib import Path

import client_matrix
import pytest


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_clients_of_python_run_on_the_broker(tmp_path: Path) -> None:
    clients = ["aiokafka", "confluent-kafka", "kafka-python"]
    assert client_matrix.main([*clients, "--out", str(tmp_path / "page.md")]) == 0

    text = (tmp_path / "page.md").read_text()
    for codec in client_matrix.CODECS:
        assert f"| batches compressed by {codec} | works | works | works |" in text
    assert "| the group protocol of KIP-848 | – | refused | – |" in text
    assert "| SASL/PLAIN | refused | refused | refused |" in text
    assert "asks for SASL/PLAIN, and this port is PLAINTEXT" in text
