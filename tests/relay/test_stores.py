"""The stores against the promises of `purgatory.relay.Store`; all but the folder store on real
servers."""

from inspect import iscoroutinefunction, signature

import pytest
from servers import on_all_stores

from purgatory.relay._store import open_store
from purgatory.testing import _stores, store_checks


@on_all_stores
@pytest.mark.parametrize("check", store_checks(), ids=lambda check: check.__name__)
async def test_what_a_store_promises(check, url, prefix):
    await check(lambda: open_store(url, prefix))


def test_every_check_is_among_those_that_stores_run():
    checks = {
        function
        for function in vars(_stores).values()
        if iscoroutinefunction(function) and [*signature(function).parameters] == ["make"]
    }
    assert checks == {*store_checks()} and len(store_checks()) == len(checks) > 30
