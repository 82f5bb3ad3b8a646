"""aiohttp: no ASGI, so the handler uses the purgatory itself. With an option the server cancels the
handlers of lost clients.

pip install . aiohttp
python examples/recipes/with_aiohttp.py
curl -i 'http://127.0.0.1:8000/jobs/7?wait=20'                  # waits for the result of job 7
curl -X PUT --data done http://127.0.0.1:8000/jobs/7            # brings the result
"""

from typing import Any

from aiohttp import web

from purgatory import OperationCancelled, OperationTimeout, Purgatory, PurgatoryClosed

jobs: Purgatory[Any] = Purgatory("jobs")
results: dict[str, str] = {}


async def result(request: web.Request) -> web.Response:
    name, wait = request.match_info["name"], float(request.query.get("wait", 20))
    try:  # a client that leaves cancels this handler, and with it the wait
        return web.Response(
            text=await jobs.wait_for(lambda: results.get(name), [name], timeout=min(wait, 60))
        )
    except OperationTimeout:
        return web.Response(status=204)
    except (OperationCancelled, PurgatoryClosed):  # the server stops
        return web.Response(status=503, headers={"Retry-After": "1"})


async def finish(request: web.Request) -> web.Response:
    name = request.match_info["name"]
    results[name] = await request.text()
    jobs.check_and_complete(name)
    return web.Response(status=204)


async def stop(_: web.Application) -> None:
    await jobs.aclose()  # comes before the server waits for its connections


app = web.Application()
app.add_routes([web.get("/jobs/{name}", result), web.put("/jobs/{name}", finish)])
app.on_shutdown.append(stop)

if __name__ == "__main__":
    web.run_app(app, host="127.0.0.1", port=8000, handler_cancellation=True)
