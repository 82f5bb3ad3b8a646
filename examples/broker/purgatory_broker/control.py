"""Faults over HTTP, for tests in other languages: `POST /fail` with the arguments of `Faults.fail`
as a JSON object.

The paths are the names of the methods of `Faults`, and `/reset`, after which the broker is empty.
204 is the response, or 400 with the reason. It listens on the loopback interface only, and wants
`Content-Type: application/json`, which a web page of another site cannot send. A page could, if its
name led to this address, so the Host has to be of the loopback interface, too.
"""

import asyncio
import json
import re
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any, Final

from .server import Server

MAX_BODY_SIZE: Final = 65_536  # bytes
READ_TIMEOUT: Final = 10.0  # seconds
LOOPBACK: Final = re.compile(r"(127\.0\.0\.1|\[::1\]|localhost)(:[0-9]{1,5})?")


def is_local(host: str) -> bool:
    """Whether the Host of a request is of the loopback interface."""
    return LOOPBACK.fullmatch(host) is not None


class Control:
    """An HTTP server in threads of its own. A context manager.

    Args:
        port: 0 takes a free one.

    Attributes:
        address: where it listens.
    """

    def __init__(self, server: Server, port: int) -> None:
        self._server, self._port = server, port

    def __enter__(self) -> "Control":
        faults, loop = self._server.broker.faults, asyncio.get_running_loop()
        actions: dict[str, Callable[..., None]] = {
            f"/{action.__name__}": action
            for action in (faults.fail, faults.delay, faults.drop, faults.expire, faults.advance)
        }
        actions |= {"/clear": faults.clear, "/reset": self._server.clear}

        async def call(action: Callable[..., None], arguments: dict[str, Any]) -> None:
            action(**arguments)

        class Handler(BaseHTTPRequestHandler):
            timeout = READ_TIMEOUT

            def do_POST(self) -> None:
                if not is_local(self.headers.get("Host", "")) or "Origin" in self.headers:
                    self._respond(HTTPStatus.FORBIDDEN, b"only programs of this machine may ask")
                    return
                try:
                    if self.headers.get_content_type() != "application/json":
                        raise ValueError("Content-Type has to be application/json")
                    if self.path not in actions:
                        raise ValueError(f"{self.path} is not one of {', '.join(actions)}")
                    size = int(self.headers.get("Content-Length", 0))
                    if not 0 <= size <= MAX_BODY_SIZE:
                        raise ValueError(f"0 to {MAX_BODY_SIZE} bytes are possible, not {size}")
                    arguments = json.loads(self.rfile.read(size) or b"{}")
                    if not isinstance(arguments, dict):
                        raise ValueError("a JSON object is expected")
                    asyncio.run_coroutine_threadsafe(
                        call(actions[self.path], arguments), loop
                    ).result()
                except (TypeError, ValueError, RuntimeError) as error:
                    self._respond(HTTPStatus.BAD_REQUEST, str(error).encode())
                else:
                    self._respond(HTTPStatus.NO_CONTENT, b"")

            def _respond(self, status: HTTPStatus, body: bytes) -> None:
                self.send_response(status)
                if body:
                    self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Logs nothing: a requested fault is not news."""

        self._http = ThreadingHTTPServer(("127.0.0.1", self._port), Handler)
        self._http.daemon_threads = True
        self._thread = Thread(target=self._http.serve_forever, name="control", daemon=True)
        self._thread.start()
        self.address = f"127.0.0.1:{self._http.server_port}"
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()
