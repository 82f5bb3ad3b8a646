"""What a machine lacks skips a test there, and fails it where nothing may be lacking."""

import re
import shutil
from pathlib import Path

import pytest
from requirements import need, unavailable


def test_what_is_unavailable_skips_the_test_and_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PURGATORY_REQUIRE_ALL", raising=False)

    with pytest.raises(pytest.skip.Exception, match="needs a browser: apt-get install chromium"):
        unavailable("needs a browser: apt-get install chromium")


def test_what_is_unavailable_fails_the_test_where_everything_is_required(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PURGATORY_REQUIRE_ALL", "1")

    with pytest.raises(pytest.fail.Exception, match="needs a browser: apt-get install chromium"):
        unavailable("needs a browser: apt-get install chromium")


def test_a_command_that_is_needed_is_given_by_its_path_and_skips_the_test_if_it_is_missing() -> None:
    assert need("sh", "needs a shell") == shutil.which("sh")

    with pytest.raises((pytest.skip.Exception, pytest.fail.Exception), match="needs a moon"):
        need("no-such-command-anywhere", "needs a moon")


def test_whatever_else_is_missing_is_told_by_requirements_too() -> None:
    by_itself = re.compile(r"pytest\.skip\(|skipif\(.*(?:which|find_spec)")
    here = Path(__file__).parent
    skipping = [str(file.relative_to(here)) for file in here.rglob("*.py") if by_itself.search(file.read_text("utf-8"))]
    assert skipping == ["requirements.py"]
