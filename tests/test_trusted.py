"""The page *Trust boundaries*: each file and each test that it names exists."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / ".docs" / "guide" / "trusted.md"
TEXT = PAGE.read_text("utf-8")
UNDEFENDED = {"a stream's checkpoint"}
EDGES = UNDEFENDED | {
    "long polls",
    "the page",
    "top",
    "a relay's store",
    "a journal",
    "a stream's input",
    "metrics",
    "the broker",
}
STORES = {"file://", "postgresql://", "redis://", "nats://"}


def names_of_all_tests() -> set[str]:
    files = [*ROOT.glob("tests/**/test_*.py"), *ROOT.glob("examples/*/tests/test_*.py")]
    found = re.compile(r"^(?:async )?def (test_\w+)", re.MULTILINE)
    return {name for file in files for name in found.findall(file.read_text("utf-8"))}


def rows() -> dict[str, list[str]]:
    """The rows of the page's tables, by the name of their edge."""
    lines = [line.strip("| ").split(" | ") for line in TEXT.splitlines() if line[:2] == "| "]
    label = re.compile(r"\[?`?([^]`]+)")
    return {label.match(row[0])[1]: row for row in lines if row[0] not in ("edge", "store")}  # type: ignore[index]


def test_every_named_test_exists() -> None:
    named = set(re.findall(r"`(test_\w+)`(?!\])", TEXT))

    assert len(named) >= 20
    assert named <= names_of_all_tests()


def test_every_linked_file_exists() -> None:
    linked = re.findall(r"\]\((\.\.[^)#]*)", TEXT)

    assert [name for name in linked if not (PAGE.parent / name).is_file()] == []


def test_every_edge_has_a_file_and_a_test() -> None:
    found = rows()

    assert found.keys() == EDGES | STORES
    for edge, row in found.items():
        assert len(row) == 5 and all(row)
        if edge in UNDEFENDED:
            continue
        assert ".py`](" in row[3] and "/test_" in row[4]


def test_security_policy_leads_to_the_page() -> None:
    assert "(../.docs/guide/trusted.md)" in (ROOT / ".github" / "SECURITY.md").read_text("utf-8")
