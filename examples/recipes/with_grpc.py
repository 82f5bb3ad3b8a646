"""gRPC: the wait has the deadline of the call. A client that disconnects cancels its
handler. Without `.proto` files.

pip install . grpcio
python examples/recipes/with_grpc.py          # serves /jobs/Result and /jobs/Finish, with bytes for messages
"""

import asyncio
import signal
from typing import Any

import grpc

from purgatory import OperationCancelled, OperationTimeout, Purgatory, PurgatoryClosed

jobs: Purgatory[Any] = Purgatory("jobs")
results: dict[str, bytes] = {}
MAX_WAIT = 60.0


async def result(request: bytes, context: Any) -> bytes:
    name, left = request.decode(), context.time_remaining()
    wait = (
        MAX_WAIT if left is None else min(left * 0.9, MAX_WAIT)
    )  # so that the answer is there before the client's deadline
    try:  # a client that disconnects cancels this handler, and with it the wait
        return await jobs.wait_for(lambda: results.get(name), [name], timeout=wait)
    except OperationTimeout:
        await context.abort(grpc.StatusCode.NOT_FOUND, "no result yet, ask again")
    except (OperationCancelled, PurgatoryClosed):
        await context.abort(grpc.StatusCode.UNAVAILABLE, "the server is stopping")
    raise AssertionError  # abort has raised


async def finish(request: bytes, _: Any) -> bytes:
    name, _, value = request.partition(b"=")
    results[name.decode()] = value
    jobs.check_and_complete(name.decode())
    return b""


def server_on(address: str) -> tuple[Any, int]:
    server = grpc.aio.server()
    handlers = {
        "Result": grpc.unary_unary_rpc_method_handler(result),
        "Finish": grpc.unary_unary_rpc_method_handler(finish),
    }
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("jobs", handlers)])
    return server, server.add_insecure_port(address)


async def stop(server: Any) -> None:
    await jobs.aclose()  # an answer for each waiting client
    await server.stop(grace=5)


async def main() -> None:
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    server, _ = server_on("127.0.0.1:8000")
    await server.start()
    await stopping.wait()
    await stop(server)


if __name__ == "__main__":
    asyncio.run(main())
