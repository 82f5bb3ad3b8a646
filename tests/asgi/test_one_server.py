"""One real server, in a process of its own, answers each ending; the other servers are in
`test_servers`."""

import signal

from asgi_server import SERVERS, running
from loops import on_asyncio


@on_asyncio
async def test_under_uvicorn_each_ending_has_its_answer() -> None:
    with running(*SERVERS["uvicorn-uvloop-httptools"]) as server:
        satisfied, leaving, late, stopped = [await server.connect() for _ in range(4)]
        late.send("/poll?key=never&wait=0.01")
        assert (await late.answer())[0] == 204
        satisfied.send("/poll?key=a&wait=300")
        leaving.send("/poll?key=b&wait=300")
        stopped.send("/poll?key=c&wait=300")
        await server.until(lambda stats: stats["open"] == 3)
        await server.ask("/check?key=a", "POST")
        assert (await satisfied.answer())[::2] == (200, b'{"value":"1"}')
        leaving.reset()
        stats = await server.until(lambda stats: stats["open"] == 1)
        assert stats["pending"] == stats["watched"] == 1
        server.process.send_signal(signal.SIGTERM)
        assert (await stopped.answer())[::2] == (503, b"the server is stopping")
        assert (
            'endings: {"deadline": 1, "satisfied": 1, "gone": 1, "stopping": 1}'
            in await server.ended()
        )
        for connection in (satisfied, leaving, late, stopped):
            connection.hang_up()
