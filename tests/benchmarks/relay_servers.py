"""The servers, the stores and the processes of ``python tests/benchmarks relay``."""

import asyncio
import json
import shutil
import socket
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ports import free_port

from benchmarks.process import run_module

SERVER_TIMEOUT = 60.0

Child = subprocess.Popen[str]


def stored_bytes(url: str, prefix: str) -> int:
    """The size of a store: its files, the memory of a Redis, a table of PostgreSQL, or a stream of
    NATS."""
    scheme = url.partition(":")[0]
    if scheme == "file":
        return sum(
            path.stat().st_size for path in Path(urlsplit(url).path).rglob("*") if path.is_file()
        )
    if scheme == "redis":
        return int(field_of_redis(url, "memory", "used_memory"))
    if scheme.startswith("postgres"):
        tables = [f'"{prefix}_versions"', f'"{prefix}_settled"']
        return sum(asyncio.run(bytes_of_table(url, table)) for table in tables)
    if scheme == "nats":
        streams = [f"{prefix}_versions", f"{prefix}_settled"]
        return sum(asyncio.run(state_of_stream(url, stream, "bytes")) for stream in streams)
    raise ValueError(f"--sizes does not know how to measure a {scheme}:// store")


def stored_replies(url: str, prefix: str) -> int:
    """How many replies a store holds, with expired ones; for a Redis, how many keys of any kind."""
    scheme = url.partition(":")[0]
    if scheme == "file":
        [path] = Path(urlsplit(url).path).glob(f"{prefix}.*.sqlite")
        with closing(sqlite3.connect(path, timeout=SERVER_TIMEOUT)) as database:
            return int(database.execute("SELECT count(*) FROM settled").fetchone()[0])
    if scheme == "redis":
        return int(ask(url, "DBSIZE").removeprefix(":"))
    if scheme == "nats":
        return asyncio.run(state_of_stream(url, f"{prefix}_settled", "messages"))
    return asyncio.run(value_of(url, f'SELECT count(*) FROM "{prefix}_settled"'))


async def bytes_of_table(url: str, table: str) -> int:
    """The size of a table with its indexes, or 0 if there is none."""
    return await value_of(url, "SELECT pg_total_relation_size(to_regclass($1))", table)


async def value_of(url: str, query: str, *arguments: str) -> int:
    """The number that a query returns, or 0 for null."""
    import asyncpg  # only this store needs it

    connection: Any = await asyncpg.connect(url)
    try:
        return int(await connection.fetchval(query, *arguments) or 0)
    finally:
        await connection.close()


async def state_of_stream(url: str, stream: str, field: str) -> int:
    """A number of a stream's state, as NATS counts, or 0 if there is no stream."""
    import nats  # only this store needs it

    connection = await nats.connect(url)
    try:
        answer = json.loads((await connection.request(f"$JS.API.STREAM.INFO.{stream}")).data)
        return int(answer.get("state", {}).get(field, 0))
    finally:
        await connection.close()


@contextmanager
def own_redis(folder: str) -> Iterator[str | None]:
    """The address of a Redis of its own, or None where there is none."""
    command = shutil.which("redis-server")
    if command is None:
        yield None
        return
    port = free_port()
    words = [
        command,
        "--port",
        str(port),
        "--bind",
        "127.0.0.1",
        "--dir",
        folder,
        "--save",
        "",
        "--loglevel",
        "warning",
    ]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL) as server:
        try:
            deadline = time.monotonic() + SERVER_TIMEOUT
            while time.monotonic() < deadline:
                with socket.socket() as client:
                    if client.connect_ex(("127.0.0.1", port)) == 0:
                        break
                time.sleep(0.05)
            yield f"redis://127.0.0.1:{port}/0"
        finally:
            server.kill()


@contextmanager
def process(job: dict[str, Any], module: str = "benchmarks.relay_process") -> Iterator[Child]:
    command, env = run_module(module, json.dumps(job))
    with subprocess.Popen(
        command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        try:
            yield child
        finally:
            child.kill()


def read_line(child: Child) -> str:
    assert child.stdout is not None
    text = child.stdout.readline()
    if not text:
        raise RuntimeError(f"a process of the benchmark ended with status {child.wait()}")
    return text


def resume(child: Child, message: object = None) -> None:
    """Resumes a waiting process: sends a message and closes its standard input."""
    assert child.stdin is not None
    child.stdin.write(json.dumps(message))
    child.stdin.close()


def ask(url: str, command: str) -> str:
    """The answer of a Redis to a command."""
    port = int(url.rpartition(":")[2].partition("/")[0])
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(command.encode() + b"\r\n")
        return client.recv(1 << 16).decode()


def cpu_of_redis(url: str) -> float:
    """The seconds of CPU time that a Redis has used."""
    return sum(
        float(field_of_redis(url, "cpu", name)) for name in ("used_cpu_user", "used_cpu_sys")
    )


def field_of_redis(url: str, section: str, name: str) -> str:
    """A number that a Redis knows about itself."""
    return dict(
        row.split(":", 1) for row in ask(url, f"INFO {section}").splitlines() if ":" in row
    )[name]
