"""A missing requirement skips a test, or fails it where everything has to be installed."""

import re
import shutil
from pathlib import Path

import pytest
from requirements import left_out_without, need, unavailable


def test_missing_requirement_skips_test_with_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("PURGATORY_REQUIRE_ALL", raising=False)

    with pytest.raises(pytest.skip.Exception, match="needs a browser: apt-get install chromium"):
        unavailable("needs a browser: apt-get install chromium")


def test_missing_requirement_fails_where_all_are_required(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PURGATORY_REQUIRE_ALL", "1")

    with pytest.raises(pytest.fail.Exception, match="needs a browser: apt-get install chromium"):
        unavailable("needs a browser: apt-get install chromium")


def test_needed_command_is_path_or_skips() -> None:
    assert need("ls", "needs coreutils") == shutil.which("ls")

    with pytest.raises((pytest.skip.Exception, pytest.fail.Exception), match="needs a moon"):
        need("no-such-command-anywhere", "needs a moon")


def test_other_missing_requirements_are_reported_too() -> None:
    by_itself = re.compile(r"pytest\.skip\(|skipif\(.*(?:which|find_spec)")
    here = Path(__file__).parent
    skipping = [
        str(file.relative_to(here))
        for file in here.rglob("*.py")
        if by_itself.search(file.read_text("utf-8"))
    ]
    assert skipping == ["requirements.py"]


def test_files_are_left_out_without_their_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PURGATORY_REQUIRE_ALL", raising=False)
    assert left_out_without(["re", "no_such_module"], "test_a.py") == ["test_a.py"]
    assert left_out_without(["re"], "test_a.py") == []

    monkeypatch.setenv("PURGATORY_REQUIRE_ALL", "1")
    assert left_out_without(["no_such_module"], "test_a.py") == []
