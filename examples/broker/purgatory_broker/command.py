"""The command line: `purgatory-broker`."""

import argparse
import asyncio
import logging
import re
import signal
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from .control import Control
from .faults import SteppedLoop
from .files import check_directory, raise_max_open_files
from .server import Server, new_loop
from .settings import Settings
from .wire import Address

MAX_PORT = 65_535
UNITS = {"ms": 0.001, "s": 1.0, "min": 60.0}


def seconds(text: str) -> float:
    """Parses a time of zero or more, with its unit: 5ms, 0.1s, 2min."""
    match = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)(ms|s|min)", text)
    if match is None:
        raise argparse.ArgumentTypeError(
            f"expected a time with its unit, such as 5ms, 0.1s or 2min, got {text!r}"
        )
    return float(match[1]) * UNITS[match[2]]


def count(text: str) -> int:
    """Parses a positive number."""
    if not re.fullmatch(r"[0-9]{1,9}", text) or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a number of at least 1, got {text!r}")
    return int(text)


def port(text: str) -> int:
    """Parses a port; 0 means a free one."""
    if not re.fullmatch(r"[0-9]{1,5}", text) or int(text) > MAX_PORT:
        raise argparse.ArgumentTypeError(f"expected a port from 0 to {MAX_PORT}, got {text!r}")
    return int(text)


def address(text: str) -> Address:
    """Parses HOST:PORT."""
    host, _, number = text.rpartition(":")
    if not host or port(number) == 0:
        raise argparse.ArgumentTypeError(f"expected HOST:PORT, got {text!r}")
    return host.strip("[]"), int(number)


async def serve(settings: Settings, options: argparse.Namespace) -> None:
    """Serves until SIGINT or SIGTERM; then prints how all operations have ended."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    async with Server(settings, options.host, options.port, advertised=options.advertise) as server:
        if settings.replicas > 1:
            loop.add_signal_handler(signal.SIGUSR1, server.broker.followers.toggle_last)
        print(f"listening on {server.address}", flush=True)
        with ExitStack() as stack:
            if options.control is not None:
                print(
                    f"control at {stack.enter_context(Control(server, options.control)).address}",
                    flush=True,
                )
            await stop.wait()
    for purgatory in server.broker.purgatories:
        counts = purgatory.statistics()
        outcomes = (
            f"completed {counts.completed}, expired {counts.expired}, cancelled {counts.cancelled}"
        )
        print(
            f"{counts.name}: {outcomes}, missed triggers {counts.missed_triggers}, pending "
            f"{counts.pending}"
        )
    rebalances = server.broker.coordinator.rebalances
    print(f"rebalances: {len(rebalances)}, longest {max(rebalances, default=0.0):.3f} s")


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="purgatory-broker",
        description="A small broker for tests, which Kafka's own clients can talk to.",
    )
    add = parser.add_argument
    add("--host", default="127.0.0.1", help="address to listen on (default: loopback only)")
    add(
        "--port",
        type=port,
        default=9092,
        help="port to listen on; 0 takes a free one (default: 9092)",
    )
    add(
        "--advertise",
        type=address,
        metavar="HOST:PORT",
        help="where clients are to connect (default: where they did)",
    )
    add("--directory", type=Path, help="for all data (default: in memory)")
    add(
        "--control",
        type=port,
        metavar="PORT",
        help="where to ask for faults over HTTP; 0 takes a free port (default: nowhere)",
    )
    add("--fsync", action="store_true", help="each append is on the disk before its response")
    add(
        "--partitions",
        type=count,
        default=1,
        help="of topics that are created automatically (default: 1)",
    )
    add(
        "--no-auto-create",
        dest="auto_create_topics",
        action="store_false",
        help="do not create topics when clients ask for them",
    )
    add(
        "--replicas",
        type=count,
        default=1,
        help="nodes, all but one simulated (default: 1); SIGUSR1 stops and starts one",
    )
    add(
        "--replica-lag",
        type=seconds,
        default=0.005,
        help="from an append until the followers have it (default: 5ms)",
    )
    add(
        "--replica-timeout",
        type=seconds,
        default=30.0,
        help="time until a stopped replica is out of sync (default: 30s)",
    )
    add(
        "--rebalance-delay",
        type=seconds,
        default=0.1,
        help="of an empty group, for more members to come (default: 0.1s)",
    )
    options = parser.parse_args(arguments)
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s")
    given = {
        name: value
        for name, value in vars(options).items()
        if name in Settings.__dataclass_fields__
    }
    try:
        settings = Settings(**given)
    except ValueError as error:
        parser.error(str(error))
    if settings.directory is not None:
        try:
            check_directory(settings.directory)
        except OSError as error:
            parser.exit(1, f"purgatory-broker: cannot use --directory: {error}\n")
    raise_max_open_files()
    try:
        with asyncio.Runner(
            loop_factory=new_loop if options.control is None else SteppedLoop
        ) as runner:
            runner.run(serve(settings, options))
    except OSError as error:
        parser.exit(
            1, f"purgatory-broker: cannot serve at {options.host}:{options.port}: {error}\n"
        )
