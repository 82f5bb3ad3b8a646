"""The three stores against the promises of `purgatory.relay.Store`, on real servers."""

import asyncio
from collections.abc import Iterator
from itertools import count

import pytest
from servers import place

from purgatory.relay._store import open_store
from purgatory.testing import store_checks

prefixes = count(1)


@pytest.fixture(scope="module", params=["file", "redis", "cluster", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with place(request.param, tmp_path_factory.mktemp("relay")) as url:
        yield url


@pytest.mark.parametrize("check", store_checks(), ids=lambda check: check.__name__)
def test_what_a_store_promises(check, url: str) -> None:
    prefix = f"test{next(prefixes)}"
    asyncio.run(check(lambda: open_store(url, prefix)))
