"""Programs of clients are run, their outcomes distinguished, and listed on the page."""

import sys
from pathlib import Path

import client_matrix
import pytest
from client_matrix import Cell, page, run


def program(text: str) -> list[str]:
    return [sys.executable, "-c", text]


@pytest.mark.parametrize(
    ("text", "feature", "expected"),
    [
        ("", "headers", Cell("works")),
        ("print('NotOffered: headers'); exit(1)", "headers", Cell("not offered")),
        (
            "print('KafkaError: 127.0.0.1:9 | closed'); exit(1)",
            "tls",
            Cell("refused", "KafkaError: 127.0.0.1:9092 / closed"),
        ),
        ("print('KafkaError'); exit(1)", "headers", Cell("failed", "KafkaError")),
        ("print('one'); print('two'); exit(1)", "acks", Cell("failed", "two")),
        ("exit('at last')", "tls", Cell("failed", "at last")),
        ("exit(1)", "sasl", Cell("failed", "it says nothing")),
    ],
)
def test_program_outcomes_are_distinguished(text: str, feature: str, expected: Cell) -> None:
    assert run(program(text), "127.0.0.1:9", feature) == expected


def test_a_program_that_does_not_end_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_matrix, "CELL_TIMEOUT", 0.5)

    assert run(program("import time; time.sleep(600)"), "127.0.0.1:9", "tls") == Cell(
        "failed", "it did not end within 0 s"
    )


def test_page_shows_clients_refusals_and_differences_from_kafka() -> None:
    refused = Cell("refused", "_FATAL", "which is not served")
    ours = {"one 1.0": {"headers": Cell("works"), "new-group": refused}}
    kafkas = {"one 1.0": {"headers": Cell("works"), "new-group": Cell("works")}}

    text = page({"ours": ours, "Kafka": kafkas}, {"Java": "needs Java 17"})

    assert (
        "| | one 1.0 |\n|---|---|\n| headers of records | works |\n| the group protocol of "
        "KIP-848 | refused |\n" in text
    )
    assert "| the group protocol of KIP-848 | one 1.0 | _FATAL | which is not served |" in text
    assert "1 cells are the same, 1 differ." in text
    assert "| the group protocol of KIP-848 | one 1.0 | refused | works |  |" in text
    assert text.endswith("- Java: needs Java 17.\n")
    assert "What failed" not in text


def test_a_client_that_does_not_exist_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        client_matrix.main(["kafka-js"])

    assert (
        "there is no client kafka-js: choose of aiokafka, confluent-kafka,"
        in capsys.readouterr().err
    )


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
