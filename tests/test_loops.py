"""How tests run on loops: each of those kinds that they ask for, at the time that they ask for, and
nothing is overlooked."""

import asyncio
from typing import Any

import pytest
from loops import CURRENT, LOOP_FACTORIES, fail_on, on_virtual_time

from purgatory.testing import VirtualTimeLoop

VIRTUAL = ("virtual", "eager")


async def test_coroutine_function_runs_on_each_loop(
    request: pytest.FixtureRequest,
) -> None:
    loop, kind = asyncio.get_running_loop(), request.node.callspec.id
    assert (isinstance(loop, VirtualTimeLoop), type(loop).__module__ == "uvloop") == (
        kind in VIRTUAL,
        kind == "uvloop",
    )
    kinds = request.node.ihook.pytest_asyncio_loop_factories(
        config=request.config, item=request.node
    )
    assert kind in kinds and set(kinds) == set(LOOP_FACTORIES)


@on_virtual_time
async def test_virtual_time_begins_at_zero() -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop) and loop.time() == 0.0


@on_virtual_time
@pytest.mark.parametrize("start", [7.0, 1e9])
async def test_virtual_time_begins_at_given_start(start: float) -> None:
    assert asyncio.get_running_loop().time() == start


async def test_reports_reach_test_that_asks_for_them(
    reports: list[dict[str, Any]],
) -> None:
    loop = asyncio.get_running_loop()
    loop.call_exception_handler({"message": "as expected"})
    assert [report["message"] for report in reports] == [
        "as expected"
    ] and CURRENT.reports is reports


def test_report_fails_test_that_does_not_ask() -> None:
    error = ValueError("the cause")
    with pytest.raises(AssertionError, match="not as expected") as failure:
        fail_on([{"message": "not as expected", "exception": error}])
    assert failure.value.__cause__ is error
    fail_on([])
