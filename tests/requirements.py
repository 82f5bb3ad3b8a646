"""Requirements of tests that pip cannot install: `need("java", "needs Java 17: apt-get ...")`.

On a machine that lacks one the test is skipped, and the summary of pytest shows how to get it.
`.ci/run` sets `PURGATORY_REQUIRE_ALL=1`: there a test that cannot run has failed.
"""

import os
import shutil
from collections.abc import Iterable
from importlib.util import find_spec
from typing import NoReturn

import pytest

CLIENTS = ("aiokafka", "confluent_kafka")
"""Clients of Kafka that have no wheels for Python 3.15."""


def unavailable(reason: str) -> NoReturn:
    """Ends the running test, skipped or failed, for a reason: the missing program and how to get
    it."""
    if os.environ.get("PURGATORY_REQUIRE_ALL") == "1":
        pytest.fail(
            f"{reason} (it may not be missing here: PURGATORY_REQUIRE_ALL is 1)", pytrace=False
        )
    pytest.skip(reason)


def need(command: str, reason: str) -> str:
    """The path of a command; without it the test is `unavailable`."""
    return shutil.which(command) or unavailable(reason)


def left_out_without(modules: Iterable[str], *files: str) -> list[str]:
    """For `collect_ignore`: `files`, which import `modules`, where one of these is missing; an empty
    list otherwise, and if `PURGATORY_REQUIRE_ALL` is 1, so that they fail."""
    is_missing = any(find_spec(name) is None for name in modules)
    return [*files] if is_missing and os.environ.get("PURGATORY_REQUIRE_ALL") != "1" else []
