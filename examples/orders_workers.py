"""Orders that wait for their payment, on several workers: a waiting client is answered, whichever
worker receives the webhook.

    python examples/orders_workers.py --workers 4 --port 8000
    curl -i 'http://127.0.0.1:8000/orders/7?wait=20'                    answers "open", with an ETag
    curl -i -H 'If-None-Match: "..."' 'http://127.0.0.1:8000/orders/7'  waits, with that ETag
    curl -i -X POST 'http://127.0.0.1:8000/webhooks/payment?order=7'    in another terminal; most
                                                                        likely to another worker

or let 400 clients loose on it, kill a worker meanwhile, and see the numbers: `python
examples/orders_workers.py --demo`. With `--store redis` or `--store postgresql` the demo starts
such a server for itself, and kills that, too.

`GET /orders/{order}?wait=S`
    answers with the state of the order and its `ETag`; with `If-None-Match`, as soon as it is
    another one, or 304 after S seconds (20 by default). Ask again with the new `ETag`, any
    worker, and nothing is missed.
`POST /webhooks/payment?order=N`
    called by a payment provider.
`GET /purgatory`
    a page, for a browser on this machine, which shows the answering worker and lists the rest.

The orders are in SQLite, as if that were a database. A relay notifies the workers of each other's
writes: by default `file://`, which needs no server; `--store redis://...` or `postgresql://...` for
workers of several machines. The order of the two steps in `payment` matters: first it
writes, then it notifies. A commit may take milliseconds, so it runs in a thread, and holds no other
request up. Needs the extra `examples`.
"""

import argparse
import os
import sqlite3
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import uvicorn
from anyio import to_thread
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse

from purgatory.asgi import Ending, LongPolls, Versions
from purgatory.console import console
from purgatory.relay import Relay

FOLDER = Path(
    os.environ.get("ORDERS_FOLDER", "/tmp/orders")
)  # workers are processes of their own: settings come this way
STORE = os.environ.get("ORDERS_STORE", f"file://{FOLDER}")

relay = Relay(STORE)
versions: Versions[str] = Versions(relay=relay)
polls = LongPolls(max_wait=60, default_wait=20)


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    async with relay:
        yield


app = FastAPI(title="Orders", lifespan=lifespan)


def database() -> sqlite3.Connection:
    return sqlite3.connect(FOLDER / "orders.sqlite", isolation_level=None, timeout=10)


def pay(order: int) -> None:
    with closing(database()) as orders:
        orders.execute("INSERT OR IGNORE INTO orders VALUES (?, ?)", (order, time.time()))


def state_of(order: int) -> dict[str, object]:
    with closing(database()) as orders:
        row = orders.execute("SELECT paid_at FROM orders WHERE number = ?", (order,)).fetchone()
    return {"order": order, "state": "paid" if row else "open", "paid_at": row[0] if row else None}


@app.get("/orders/{order}")
async def order_state(order: int, request: Request) -> Response:
    outcome = await versions.changed(polls.poll(request.scope), f"orders/{order}")
    headers = {**outcome.headers, "X-Worker": str(os.getpid())}
    if outcome.ending is not Ending.SATISFIED:
        return Response(outcome.reason, outcome.status, headers)
    return JSONResponse(await to_thread.run_sync(state_of, order), headers=headers)


@app.post("/webhooks/payment")
async def payment(order: int) -> Response:
    await to_thread.run_sync(pay, order)
    written_at = time.time()
    await relay.bump(f"orders/{order}")
    return JSONResponse(
        {"order": order, "written_at": written_at}, headers={"X-Worker": str(os.getpid())}
    )


@app.get("/stats")
async def stats() -> dict[str, object]:
    numbers = relay.statistics()
    return {
        "worker": os.getpid(),
        "open polls": polls.open,
        **{name: getattr(numbers, name) for name in numbers.__slots__},
    }


app.mount("/purgatory", console(polls=polls, relay=relay))
app.add_middleware(polls.middleware)


def prepare(folder: Path) -> None:
    """Makes the database of orders."""
    folder.mkdir(parents=True, exist_ok=True)
    with closing(sqlite3.connect(folder / "orders.sqlite", isolation_level=None)) as orders:
        orders.execute("PRAGMA journal_mode = WAL")
        orders.execute(
            "CREATE TABLE IF NOT EXISTS orders (number INTEGER PRIMARY KEY, paid_at REAL NOT NULL)"
        )


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        description="Orders on several workers, with a relay for requests that wait for a payment."
    )
    parser.add_argument(
        "--host", default="127.0.0.1", help="address to serve on (default: loopback only)"
    )
    parser.add_argument("--port", type=int, default=8000, help="port to serve on (default: 8000)")
    parser.add_argument("--workers", type=int, default=4, help="how many processes (default: 4)")
    parser.add_argument("--folder", type=Path, help="for the orders (default: a temporary one)")
    stores = "file:///folder, redis://... or postgresql://... (default: in the folder)"
    parser.add_argument(
        "--store",
        help=f"of the relay: {stores}; with --demo also redis or postgresql, for a server of its "
        "own",
    )
    parser.add_argument(
        "--demo",
        action="store_true",
        help="run clients against it, kill processes, print the measurements",
    )
    parser.add_argument("--clients", type=int, default=400, help="of the demo (default: 400)")
    parser.add_argument(
        "--rate",
        type=float,
        default=40.0,
        help="orders that the demo pays in a second (default: 40)",
    )
    parser.add_argument(
        "--seconds", type=float, default=15.0, help="for which the demo runs (default: 15)"
    )
    options = parser.parse_args(arguments)
    if options.store in ("redis", "postgresql") and not options.demo:
        parser.error(
            f"--store {options.store}: a server of its own is for the --demo; name the address "
            f"of yours, {options.store}://..."
        )
    with tempfile.TemporaryDirectory(prefix="orders-") as temporary:
        folder = options.folder or Path(temporary)
        prepare(folder)
        os.environ["ORDERS_FOLDER"] = str(folder.resolve())
        os.environ["ORDERS_STORE"] = options.store or f"file://{folder.resolve()}/relay"
        if options.demo:
            from _orders_workers_demo import run_demo  # noqa: PLC0415  the demo brings a client, which serving does not need

            run_demo(
                [
                    sys.executable,
                    __file__,
                    "--workers",
                    str(options.workers),
                    "--folder",
                    str(folder),
                ],
                options,
            )
        else:
            here = str(Path(__file__).parent)
            # A new worker imports for some seconds on a busy machine, before it answers the
            # supervisor's health check.
            checks: dict[str, Any] = {"timeout_worker_healthcheck": 60}
            uvicorn.run(
                "orders_workers:app",
                host=options.host,
                port=options.port,
                workers=options.workers,
                app_dir=here,
                **checks,
            )


if __name__ == "__main__":
    main()
