"""The stores against the promises of `purgatory.relay.Store`; all but the folder store on real
servers."""

from inspect import iscoroutinefunction, signature
from itertools import count

import pytest
from loops import Report, Runner, fail_on
from servers import on_all_stores

from purgatory.relay._store import open_store
from purgatory.testing import _stores, store_checks

prefixes = count(1)


@on_all_stores
@pytest.mark.parametrize("check", store_checks(), ids=lambda check: check.__name__)
def test_what_a_store_promises(loop_factory, check, url):
    prefix = f"test{next(prefixes)}"
    reports: list[Report] = []
    Runner(loop_factory, reports)(check(lambda: open_store(url, prefix)))
    # asyncpg reports this if it is cancelled while it connects.
    lost = "unexpected connection_lost()"
    fail_on([report for report in reports if lost not in str(report.get("exception"))])


def test_every_check_is_among_those_that_stores_run():
    checks = {
        function
        for function in vars(_stores).values()
        if iscoroutinefunction(function) and [*signature(function).parameters] == ["make"]
    }
    assert checks == {*store_checks()} and len(store_checks()) == len(checks) > 30
