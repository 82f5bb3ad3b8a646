"""The pytest plugin: `virtual_time_runner`, and how to give the loop to other plugins.

The fixture needs no other plugin, and a test that does not request it is unchanged:

    def test_it_times_out(virtual_time_runner):
        with pytest.raises(TimeoutError):
            virtual_time_runner.run(asyncio.wait_for(asyncio.Event().wait(), 3600))

For `async def` tests, a conftest.py configures the plugin that runs them to use
`purgatory.testing.VirtualTimeLoop`. pytest-asyncio from 1.4 on, where the hook may choose by
`item`, too:

    def pytest_asyncio_loop_factories(config, item):
        return {"virtual_time": VirtualTimeLoop}

Before 1.4, override its fixture `event_loop_policy` by a policy with such a `new_event_loop`.
anyio:

    @pytest.fixture
    def anyio_backend():
        return "asyncio", {"loop_factory": VirtualTimeLoop}

This plugin does neither by itself, since that would change the loop of tests that have not
asked for it.
"""

import asyncio
from collections.abc import Iterator

import pytest

from purgatory.testing import VirtualTimeLoop


@pytest.fixture
def virtual_time_runner(request: pytest.FixtureRequest) -> Iterator[asyncio.Runner]:
    """Run coroutines on virtual time: an `asyncio.Runner`, with its `run(coroutine)` and its
    `get_loop().time()`.

    Time starts at 0, or at the value of an indirect parameter:
    `@pytest.mark.parametrize("virtual_time_runner", [0.0, 2e7, 1e9], indirect=True)`.
    """
    start: float = getattr(request, "param", 0.0)
    with asyncio.Runner(loop_factory=lambda: VirtualTimeLoop(start=start)) as runner:
        yield runner
