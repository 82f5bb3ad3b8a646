"""What a test needs and the machine may lack: skipped with a reason on a developer's machine, a failure in the gate."""

import os
import shutil
from typing import NoReturn

import pytest


def unavailable(reason: str) -> NoReturn:
    """Skips the test, or fails it where everything has to be there: with `PURGATORY_REQUIRE_ALL=1`."""
    if os.environ.get("PURGATORY_REQUIRE_ALL"):
        pytest.fail(reason)
    pytest.skip(reason)


def need(command: str, reason: str) -> str:
    """The path of a command; without it the test is `unavailable`."""
    return shutil.which(command) or unavailable(reason)
