"""What a machine lacks skips a test there, and fails it where nothing may be lacking."""

import pytest
from requirements import unavailable


def test_what_is_unavailable_skips_the_test_and_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PURGATORY_REQUIRE_ALL", raising=False)

    with pytest.raises(pytest.skip.Exception, match="needs a browser: apt-get install chromium"):
        unavailable("needs a browser: apt-get install chromium")


def test_what_is_unavailable_fails_the_test_where_everything_is_required(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PURGATORY_REQUIRE_ALL", "1")

    with pytest.raises(pytest.fail.Exception, match="needs a browser: apt-get install chromium"):
        unavailable("needs a browser: apt-get install chromium")
