"""The load behind `python examples/idle_connections.py --demo`.

Three ways to find idle connections, behind one interface, one after the other under the same load: an `IdleTracker`; a
scan of all connections each second; and one `call_later` for each connection, cancelled and made again at each packet.

Over sockets, a server in a process of its own, on uvloop, and clients in others. Each connection says something every
quarter to half of the idle time; a fifth of them fall silent, each at a moment of its own. The server notes when it last
touched each, by its loop's clock: a drop is early if less than the idle time has passed since then. The clients say what
was missed: connections that fell silent and were not dropped within ten seconds. CPU per packet is that of the server's
process, system time and these notes included.

In memory, the same with plain numbers in place of connections, on virtual time: early and late are exact, without the
noise of a busy machine, and the CPU time is that of the touching and of finding the idle. The event loop is asyncio's, the
idle time ten times as long. A hold is all that the loop does between two moments at which packets arrive.
"""

import asyncio
import heapq
import math
import random
import resource
import select
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection as Pipe
from typing import Any, Generic, TypeVar

import uvloop
from idle_connections import IdleWatch, Server
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.table import Table

from purgatory import IdleTracker
from purgatory.testing import VirtualTimeLoop

Id = TypeVar("Id")

SCAN_INTERVAL = 1.0  # seconds
SILENT_SHARE = 0.2
DROP_TIMEOUT = 10.0  # seconds; a drop that has not come by then is missed

PROCESS_CONNECTIONS = 20_000  # a client process has one source address, which has 28,000 ports
UNACCEPTED = 1000  # connections that may wait to be accepted; the clients could do more than the server's backlog holds
SPARE_FILES = 64  # for everything else that a process has open
CONNECTS_AT_ONCE = 100
IP_BIND_ADDRESS_NO_PORT = 24  # a port is chosen when we connect, when the peer is known; to search for one earlier takes long

STEP = 0.02  # seconds of virtual time
LONGER_IN_MEMORY = 10  # times the idle time: virtual time costs nothing

SPAWN = get_context("spawn")


# The two ways to do it without a wheel


class EachSecond(Generic[Id]):
    """Looks at everybody, each second."""

    def __init__(self, timeout: float, on_idle: Callable[[Id], object]) -> None:
        self.timeout, self.on_idle = timeout, on_idle
        self.last_seen: dict[Id, float] = {}
        self.loop = asyncio.get_running_loop()
        self.timer = self.loop.call_later(SCAN_INTERVAL, self.scan)

    def touch(self, id: Id) -> None:  # noqa: A002
        self.last_seen[id] = self.loop.time()

    def remove(self, id: Id) -> None:  # noqa: A002
        self.last_seen.pop(id, None)

    def scan(self) -> None:
        long_ago = self.loop.time() - self.timeout
        for id_ in [id_ for id_, seen in self.last_seen.items() if seen <= long_ago]:
            del self.last_seen[id_]
            self.on_idle(id_)
        self.timer = self.loop.call_later(SCAN_INTERVAL, self.scan)

    def close(self) -> None:
        self.timer.cancel()


class TimerEach(Generic[Id]):
    """Cancels a timer and starts another, at each packet."""

    def __init__(self, timeout: float, on_idle: Callable[[Id], object]) -> None:
        self.timeout, self.on_idle = timeout, on_idle
        self.timers: dict[Id, asyncio.TimerHandle] = {}
        self.loop = asyncio.get_running_loop()

    def touch(self, id: Id) -> None:  # noqa: A002
        timer = self.timers.get(id)
        if timer is not None:
            timer.cancel()
        self.timers[id] = self.loop.call_later(self.timeout, self.notify_idle, id)

    def remove(self, id: Id) -> None:  # noqa: A002
        timer = self.timers.pop(id, None)
        if timer is not None:
            timer.cancel()

    def notify_idle(self, id: Id) -> None:  # noqa: A002
        del self.timers[id]
        self.on_idle(id)

    def close(self) -> None:
        for timer in self.timers.values():
            timer.cancel()


STRATEGIES: dict[str, Callable[[float, Callable[[Any], None]], IdleWatch[Any]]] = {
    "IdleTracker": IdleTracker,
    "scan each second": EachSecond,
    "call_later each": TimerEach,
}


@dataclass
class Report:
    """How one strategy did under load. Times are in seconds."""

    tracked: int = 0
    packets: int = 0
    fell_silent: int = 0
    early: int = 0
    missed: int = 0
    lateness: list[float] = field(default_factory=list)
    cpu: float = 0.0
    longest_hold: float = math.nan

    @property
    def drops(self) -> int:
        return len(self.lateness) + self.early

    def judge(self, late: float) -> None:
        if late < 0:
            self.early += 1
        else:
            self.lateness.append(late)


# Over sockets: the server's process


class Audited(Generic[Id]):
    """A strategy, and beside it when each id was touched last, to check it."""

    def __init__(self, strategy: str, report: Report, timeout: float, on_idle: Callable[[Id], object]) -> None:
        self.watch = STRATEGIES[strategy](timeout, self.notify_idle)
        self.report, self.timeout, self.on_idle = report, timeout, on_idle
        self.time = asyncio.get_running_loop().time
        self.last_touched: dict[Id, float] = {}

    def touch(self, id: Id) -> None:  # noqa: A002
        self.report.packets += 1
        self.last_touched[id] = self.time()
        self.watch.touch(id)

    def remove(self, id: Id) -> None:  # noqa: A002
        self.last_touched.pop(id, None)
        self.watch.remove(id)

    def notify_idle(self, id: Id) -> None:  # noqa: A002
        self.report.judge(self.time() - (self.last_touched.pop(id) + self.timeout))
        self.on_idle(id)

    def close(self) -> None:
        self.watch.close()


def run_server(strategy: str, idle: float, pipe: Pipe) -> None:
    """Serves, and answers when it is asked."""
    raise_file_limit()
    uvloop.run(serve_and_answer(strategy, idle, pipe))


async def serve_and_answer(strategy: str, idle: float, pipe: Pipe) -> None:
    report = Report()
    server = Server(idle, partial(Audited, strategy, report))
    listener = await server.start("127.0.0.1", 0)
    pipe.send(listener.sockets[0].getsockname()[1])
    cpu_before = 0.0

    def answer() -> None:
        nonlocal cpu_before
        question = pipe.recv()
        if question == "how many?":
            pipe.send((len(server.open), report.packets, report.drops))
        elif question == "begin":
            report.__init__(len(server.open))  # type: ignore[misc]
            cpu_before = time.process_time()
        else:
            report.cpu = time.process_time() - cpu_before
            pipe.send(report)

    asyncio.get_running_loop().add_reader(pipe.fileno(), answer)
    await asyncio.Event().wait()


def raise_file_limit() -> int:
    """How many files this process may have open, once it has asked for as many as it can get."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


# Over sockets: a process of clients


@dataclass(slots=True)
class Client:
    """One connection, as its client sees it."""

    socket: socket.socket
    last_sent: float
    silent_at: float = math.inf
    silent: bool = False


class Clients:
    """Many connections that one thread keeps talking. Plain epoll: it should be cheap beside the server."""

    def __init__(self, idle: float, seed: int) -> None:
        self.idle = idle
        self.random = random.Random(seed)
        self.poll = select.epoll()
        self.clients: dict[int, Client] = {}
        self.agenda: list[tuple[float, int]] = []  # who is to speak, and when
        self.fell_silent = 0
        self.outstanding = 0

    def connect(self, port: int, source: str, wanted: int) -> Iterator[int]:
        """Opens the connections, some at a time, while those that are open talk already. Yields how many there are."""
        while len(self.clients) < wanted:
            for _ in range(min(CONNECTS_AT_ONCE, wanted - len(self.clients))):
                started = time.monotonic()
                sock = socket.socket()
                sock.setsockopt(socket.IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1)
                sock.bind((source, 0))
                sock.settimeout(DROP_TIMEOUT)
                sock.connect(("127.0.0.1", port))
                sock.setblocking(False)
                self.clients[sock.fileno()] = Client(sock, started)
                self.poll.register(sock, select.EPOLLIN | select.EPOLLRDHUP)
                heapq.heappush(self.agenda, (started + self.pause() * self.random.random(), sock.fileno()))
            self.talk(time.monotonic())
            yield len(self.clients)

    def pause(self) -> float:
        return self.random.uniform(self.idle / 4, self.idle / 2)

    def let_some_fall_silent(self) -> None:
        """Chooses who, and when: within one idle time from now."""
        now = time.monotonic()
        for client in self.random.sample(list(self.clients.values()), round(SILENT_SHARE * len(self.clients))):
            client.silent_at = now + self.random.random() * self.idle

    def talk(self, until: float) -> None:
        """Lets everybody talk until then, at least for one round."""
        while True:
            now = time.monotonic()
            while self.agenda and self.agenda[0][0] <= now:
                self.speak(heapq.heappop(self.agenda)[1])
            wait = min(until, self.agenda[0][0] if self.agenda else math.inf) - time.monotonic()
            for number, _ in self.poll.poll(max(wait, 0.0)):
                self.dropped(number)
            if time.monotonic() >= until:
                return

    def speak(self, number: int) -> None:
        client = self.clients.get(number)
        if client is None:
            return
        now = time.monotonic()
        # If we were held up, the server is right to take us for idle.
        if now >= client.silent_at or now - client.last_sent > 0.75 * self.idle:
            client.silent = True
            self.fell_silent += 1
            self.outstanding += 1
            return
        try:
            client.socket.send(b"still here")
        except ConnectionError:
            return  # it was dropped; the poll will say so
        client.last_sent = now
        heapq.heappush(self.agenda, (now + self.pause(), number))

    def dropped(self, number: int) -> None:
        client = self.clients.pop(number)
        self.poll.unregister(number)
        client.socket.close()
        self.outstanding -= client.silent

    def wait_for_the_rest(self) -> None:
        """Waits until all that have fallen silent are dropped; those that are not, in time, are missed."""
        deadline = time.monotonic() + DROP_TIMEOUT
        while self.outstanding and time.monotonic() < deadline:
            self.talk(time.monotonic() + 0.1)


def run_clients(idle: float, port: int, source: str, wanted: int, seed: int, pipe: Pipe) -> None:
    """Connects as fast as it is allowed to, talks, and says how many fell silent and how many of them were missed."""
    raise_file_limit()
    clients = Clients(idle, seed)

    def talk_until_asked() -> None:
        while not pipe.poll():
            clients.talk(time.monotonic() + 0.02)
        pipe.recv()

    for connected in clients.connect(port, source, wanted):
        pipe.send(connected)
        talk_until_asked()
    clients.let_some_fall_silent()
    clients.talk(time.monotonic() + 2 * idle + 0.5)
    clients.wait_for_the_rest()
    pipe.send((clients.fell_silent, clients.outstanding))
    pipe.recv()


# Over sockets: who starts them all


def over_sockets(strategy: str, wanted: int, idle: float, show: Callable[[str, float], None]) -> Report:
    """Puts so many connections on a server, and reports how they fared."""
    with ExitStack() as stack:
        server = stack.enter_context(process(run_server, strategy, idle))
        port = server.recv()
        clients = []
        processes = max(min(2, wanted), math.ceil(wanted / PROCESS_CONNECTIONS))
        for number in range(processes):
            share = wanted * (number + 1) // processes - wanted * number // processes
            source = f"127.0.0.{number + 2}"
            clients.append((stack.enter_context(process(run_clients, idle, port, source, share, number)), share))
        connected = [0] * len(clients)
        accepted = 0
        while min(accepted, sum(connected)) < wanted:
            show(f"{strategy}: {accepted:,} of {wanted:,} connections", 0.3 * accepted / wanted)
            for number, (pipe, share) in enumerate(clients):
                if pipe.poll():
                    connected[number] = pipe.recv()
                    if connected[number] < share:
                        pipe.send("go on")
            time.sleep(0.002)
            accepted = accepted_by(server)
            while sum(connected) - accepted > UNACCEPTED:
                time.sleep(0.005)
                accepted = accepted_by(server)

        server.send("begin")
        for pipe, _ in clients:
            pipe.send("go on")
        started = time.monotonic()
        while not all(pipe.poll() for pipe, _ in clients):
            spent = min((time.monotonic() - started) / (2 * idle + 1.5), 1.0)
            opened, packets, drops = ask(server)
            show(f"{strategy}: {opened:,} open, {packets:,} packets, {drops:,} drops", 0.3 + 0.7 * spent)
            time.sleep(0.25)
        server.send("report")
        report: Report = server.recv()
        for pipe, _ in clients:
            fell_silent, missed = pipe.recv()
            report.fell_silent += fell_silent
            report.missed += missed
    return report


def ask(server: Pipe) -> tuple[int, int, int]:
    """How many connections are open, packets have come, connections were dropped."""
    server.send("how many?")
    answer: tuple[int, int, int] = server.recv()
    return answer


def accepted_by(server: Pipe) -> int:
    opened, _, drops = ask(server)
    return opened + drops


@contextmanager
def process(target: Callable[..., None], *arguments: object) -> Iterator[Pipe]:
    """A process that is killed at the end, and the pipe to it: it would take seconds to close its files one by one."""
    ours, its = SPAWN.Pipe()
    child = SPAWN.Process(target=target, args=(*arguments, its), daemon=True)
    child.start()
    its.close()
    try:
        yield ours
    finally:
        child.kill()
        child.join()


# In memory


def in_memory(strategy: str, tracked: int, idle: float) -> Report:
    """The same with numbers, on virtual time. In a process of its own, so that none has to clear up another's garbage."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(touch_numbers(strategy, tracked, idle))


async def touch_numbers(strategy: str, tracked: int, idle: float) -> Report:
    """Everybody speaks once in 0.8 idle times, in turn; after the first round a fifth fall silent, at their own moments."""
    loop = asyncio.get_running_loop()
    rng = random.Random(tracked)
    last_touched = [0.0] * tracked
    silent_at = [math.inf] * tracked
    for number in rng.sample(range(tracked), round(SILENT_SHARE * tracked)):
        silent_at[number] = idle * rng.uniform(0.8, 1.0)
    idle_calls = bytearray(tracked)
    report = Report(tracked, fell_silent=round(SILENT_SHARE * tracked), longest_hold=0.0)

    def on_idle(number: int) -> None:
        idle_calls[number] += 1
        report.judge(loop.time() - (last_touched[number] + idle))

    watch = STRATEGIES[strategy](idle, on_idle)
    touch = watch.touch
    order = rng.sample(range(tracked), tracked)
    steps_of_a_round = max(1, round(0.8 * idle / STEP))
    done = time.process_time()
    for step in range(round((2.0 * idle + SCAN_INTERVAL + 0.5) / STEP)):
        started = time.process_time()
        report.cpu += started - done
        report.longest_hold = max(report.longest_hold, started - done)
        position, now = step % steps_of_a_round, loop.time()
        batch = order[tracked * position // steps_of_a_round : tracked * (position + 1) // steps_of_a_round]
        batch = [number for number in batch if now < silent_at[number]]
        for number in batch:
            last_touched[number] = now
        started = time.process_time()
        for number in batch:
            touch(number)
        done = time.process_time()
        report.packets += len(batch)
        report.cpu += done - started
        await asyncio.sleep(STEP * rng.uniform(0.9, 1.1))
    report.missed = sum(1 for number in range(tracked) if silent_at[number] < math.inf and not idle_calls[number])
    report.early += sum(1 for number in range(tracked) if silent_at[number] == math.inf and idle_calls[number])
    watch.close()
    return report


# What it prints


def table_of(title: str, what: str, reports: dict[str, Report]) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column("")
    for strategy in reports:
        table.add_column(strategy, justify="right")

    def row(name: str, value: Callable[[Report], str]) -> None:
        table.add_row(name, *map(value, reports.values()))

    row(what, lambda report: f"{report.tracked:,}")
    row("packets", lambda report: f"{report.packets:,}")
    row("fell silent", lambda report: f"{report.fell_silent:,}")
    row("drops", lambda report: f"{report.drops:,}")
    row("early drops", lambda report: f"{report.early:,}")
    row("missed drops", lambda report: f"{report.missed:,}")
    table.add_section()
    row("lateness, p50", lambda report: milliseconds(percentile(report.lateness, 0.50)))
    row("lateness, p99", lambda report: milliseconds(percentile(report.lateness, 0.99)))
    row("CPU per packet", lambda report: f"{1e6 * report.cpu / report.packets if report.packets else math.nan:.2f} µs")
    if not any(math.isnan(report.longest_hold) for report in reports.values()):
        row("longest hold, CPU", lambda report: milliseconds(report.longest_hold))
    return table


def percentile(values: Iterable[float], fraction: float) -> float:
    """The value below which this fraction lies; nan if there are none."""
    ordered = sorted(values)
    return ordered[int(fraction * (len(ordered) - 1))] if ordered else math.nan


def milliseconds(duration: float) -> str:
    return f"{1000 * duration:.1f} ms"


def run_demo(connections: int, ids: list[int], idle: float) -> None:
    """Runs everything, one after the other, and prints a table for each."""
    console = Console()
    files = raise_file_limit()
    wanted = min(connections, files - SPARE_FILES)
    if wanted < connections:
        console.print(f"The file limit of a process is {files:,}: {wanted:,} connections instead of {connections:,}.")
    columns = (BarColumn(20), TextColumn("{task.description}"))
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task("", total=len(STRATEGIES) * (1 + len(ids)))
        reports = {}
        for number, strategy in enumerate(STRATEGIES):
            show = progress_shower(progress, bar, number)
            reports[strategy] = over_sockets(strategy, wanted, idle, show)
        console.print(table_of(f"over sockets, on uvloop; idle after {idle:g} s", "connections", reports))
        for position, tracked in enumerate(ids, start=1):
            reports = {}
            for number, strategy in enumerate(STRATEGIES):
                show = progress_shower(progress, bar, position * len(STRATEGIES) + number)
                show(f"{strategy}: {tracked:,} ids in memory", 0.0)
                with ProcessPoolExecutor(1, SPAWN) as pool:
                    reports[strategy] = pool.submit(in_memory, strategy, tracked, LONGER_IN_MEMORY * idle).result()
            console.print(table_of(f"in memory, on asyncio's loop; idle after {LONGER_IN_MEMORY * idle:g} s", "ids", reports))


def progress_shower(progress: Progress, bar: TaskID, done: int) -> Callable[[str, float], None]:
    return lambda text, fraction: progress.update(bar, description=text, completed=done + fraction)
