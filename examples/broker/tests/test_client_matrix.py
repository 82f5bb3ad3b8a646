"""Each feature of the clients of Python runs on the broker, and is listed on the page."""

from pathlib import Path

import client_matrix
import pytest


@pytest.mark.slow
def test_clients_of_python_run_on_the_broker(tmp_path: Path) -> None:
    features = ("gzip", "headers", "transactions", "delete-offsets", "new-group", "sasl")
    wanted = [argument for feature in features for argument in ("--feature", feature)]

    assert (
        client_matrix.main(
            ["aiokafka", "confluent-kafka", *wanted, "--out", str(tmp_path / "page.md")]
        )
        == 0
    )

    text = (tmp_path / "page.md").read_text()
    assert "| batches compressed by gzip | works | works |" in text
    assert "| headers of records | works | works |" in text
    assert "| transactions, with offsets; `read_committed` | works | works |" in text
    assert "| delete offsets of a group | – | – |" in text
    assert "| the group protocol of KIP-848 | – | refused |" in text
    assert "| SASL/PLAIN | refused | refused |" in text
    assert "asks for SASL/PLAIN, and this port is PLAINTEXT" in text
