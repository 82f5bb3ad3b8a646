"""Ctrl-C: one line and the exit status 130, whenever it comes, and nothing is left running."""

import pytest
from py4j.protocol import Py4JNetworkError

from purgatory.pipeline import _command_line
from purgatory.pipeline._command_line import main


@pytest.mark.parametrize(
    "over_it", [None, Py4JNetworkError("Answer from Java side is empty"), AttributeError("no _jsc")]
)
def test_errors_caused_by_ctrl_c_are_not_reported(
    over_it: Exception | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object) -> int:
        try:
            raise KeyboardInterrupt
        finally:
            if over_it is not None:
                try:
                    raise OSError("the connection is gone")
                finally:
                    raise over_it

    monkeypatch.setattr(_command_line, "_parser", interrupted)

    assert main([]) == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_unexpected_error_is_reported_with_traceback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_command_line, "_parser", lambda *_: dict[str, int]()["x"])

    with pytest.raises(KeyError):
        main([])
