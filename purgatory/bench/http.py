"""``python -m purgatory.bench http``: long polls under load, ours and the handler that people write today.

One server process (uvicorn), one process of clients; `purgatory.bench._http_service` has the two handlers. In each round both
take their turn on the same server and the same connections: all polls are opened, events come at random times under random
keys and answer ten polls each, which are asked again at once, and at last all are ended. Latency is from the event in the
server to the answer in the client, CPU is the server process's alone.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.table import Table

from purgatory.bench._http_service import raise_file_limit
from purgatory.bench._program import Program, has_uvloop, writable_file
from purgatory.bench._report import environment, write_report

POLLS = (1_000, 5_000, 15_000)
ANSWERS_PER_SECOND = 500
LIMITS = {1_000: 1.0, 15_000: 0.7}
"""What the ratios of p99 and of CPU must not be above."""
FIGURES = {
    "p50": ("p50", 1e3, "ms"),
    "p99": ("p99", 1e3, "ms"),
    "p99.9": ("p99.9", 1e3, "ms"),
    "cpu": ("CPU per answer", 1e6, "µs"),
}

Row = dict[str, Any]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--polls",
        type=at_least_one,
        action="append",
        metavar="N",
        help="open polls; may be repeated (default: 1000, 5000, 15000)",
    )
    parser.add_argument(
        "--rounds", type=at_least_one, default=5, metavar="N", help="turns of both handlers (default: %(default)s)"
    )
    parser.add_argument(
        "--seconds", type=more_than_zero, default=5.0, metavar="S", help="length of a turn (default: %(default)s)"
    )
    parser.add_argument(
        "--loop",
        choices=["asyncio", "uvloop"],
        default="uvloop" if has_uvloop() else "asyncio",
        help="the event loop of the server (default: %(default)s)",
    )
    parser.add_argument(
        "--look-every",
        type=more_than_zero,
        default=1.0,
        metavar="S",
        help="seconds after which their handler looks whether its client is still there (default: %(default)s)",
    )
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="of everything random (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="do a hundredth: shows that it runs, and proves nothing")
    parser.add_argument("--json", type=writable_file, metavar="FILE", help="write the figures to FILE, too")


def at_least_one(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be 1 or more, not {text}")
    return number


def more_than_zero(text: str) -> float:
    number = float(text)
    if not 0.0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"must be more than zero, not {text}")
    return number


at_least_one.__name__, more_than_zero.__name__ = "int", "float"  # as argparse names them in its complaints


def run(options: argparse.Namespace) -> int:
    console = Console()
    counts = options.polls or list(POLLS)
    divisor = 100 if options.quick else 1
    if max([10_000, *counts]) // divisor + 100 > raise_file_limit():
        console.print(f"cannot open {max([10_000, *counts])} connections: the limit of open files is {raise_file_limit()}")
        return 2
    where = environment()
    console.print(", ".join(f"{name}: {value}" for name, value in where.items()))
    rows: list[Row] = []
    common = {"loop": options.loop, "seed": options.seed, "look_every": options.look_every}
    for count in counts:
        order = {"polls": max(10, count // divisor), "rate": ANSWERS_PER_SECOND / 10, **common}
        order |= {"rounds": 1 if options.quick else options.rounds, "seconds": 0.3 if options.quick else options.seconds}
        console.print(f"{count:,} open polls ...")
        compared_rows = compared(count, measured({"work": "load", **order}))
        console.print(", ".join(f"{row['work'].partition(': ')[2]} {row['ratio']:.2f} ×" for row in compared_rows))
        rows += compared_rows
    rows += [*memory(5_000, divisor, common), stop(1_000, divisor, common), vanish(10_000, divisor, common)]
    console.print(figures(rows, options))
    head = {"program": "http", "environment": where, "seed": options.seed, "quick": options.quick, **common}
    write_report(console, options.json, {**head, "rows": rows})
    return 0


# -- what is measured


def compared(count: int, turns: list[dict[str, Any]]) -> list[Row]:
    """A row for each figure of a load: medians of both, and of the ratios of the rounds."""
    ours = {turn["round"]: turn for turn in turns if turn["path"] == "ours"}
    theirs = {turn["round"]: turn for turn in turns if turn["path"] == "theirs"}
    rows = []
    for figure, (name, factor, unit) in FIGURES.items():
        rounds = [number for number in ours if figure in ours[number] and figure in theirs[number]]
        if not rounds:
            continue
        limit = LIMITS.get(count) if figure in ("p99", "cpu") else None
        ratio = statistics.median(ours[number][figure] / theirs[number][figure] for number in rounds)
        rows.append(
            {
                "work": f"{count:,} open polls: {name}",
                "unit": unit,
                "ours": factor * statistics.median(ours[number][figure] for number in rounds),
                "theirs": factor * statistics.median(theirs[number][figure] for number in rounds),
                "ratio": ratio,
                "target": limit,
                "verdict": verdict(ratio, limit),
                "turns": turns,
            }
        )
    return rows


def memory(count: int, divisor: int, common: dict[str, Any]) -> list[Row]:
    """What an open poll adds to a server process, less what a bare one adds to another."""
    cost = {}
    for path in ("bare", "alone", "ours", "theirs"):
        [result] = measured({"work": "memory", "polls": count // divisor, "path": path, **common})
        cost[path] = result["bytes"]
    share = cost["alone"] - cost["bare"]
    row: Row = {"unit": "bytes", "ratio": None, "bare": cost["bare"]}
    own = {"work": "memory of an open poll: the purgatory's share", "ours": share, "theirs": None, "target": 1024.0}
    whole = {"work": "... and all that a bare one has not", "ours": cost["ours"] - cost["bare"], "target": None}
    whole["theirs"] = cost["theirs"] - cost["bare"]
    return [{**row, **own, "verdict": verdict(share, 1024.0)}, {**row, **whole, "verdict": "no target"}]


def stop(count: int, divisor: int, common: dict[str, Any]) -> Row:
    """From SIGTERM to the exit of the server process, with all polls open."""
    count //= divisor
    with server(common) as process:
        [result] = clients(process, {"work": "stop", "polls": count, **common})
        process.wait(60)
        # The clients' clock began with the signal; what came after their last answer is added here.
        seconds = time.monotonic() - result["told"] + result["seconds"]
    answered = result["answered"] == count
    return {
        "work": f"SIGTERM with {count:,} polls open: {result['answered']:,} answered, to exit",
        "unit": "s",
        "ours": seconds,
        "theirs": None,
        "ratio": None,
        "target": 1.0,
        "verdict": verdict(seconds, 1.0) if answered else "missed",
    }


def vanish(count: int, divisor: int, common: dict[str, Any]) -> Row:
    """From the last of the clients' resets to nothing pending."""
    count //= divisor
    [result] = measured({"work": "vanish", "polls": count, **common})
    return {
        "work": f"{count:,} clients vanish: until {result['pending']} are pending",
        "unit": "s",
        "ours": result["seconds"],
        "theirs": None,
        "ratio": None,
        "target": 1.0,
        "verdict": verdict(result["seconds"], 1.0) if not result["pending"] else "missed",
    }


def verdict(value: float, limit: float | None) -> str:
    if limit is None:
        return "no target"
    return "met" if value <= limit else "missed"


# -- the processes


@contextmanager
def server(order: dict[str, Any]) -> Iterator["subprocess.Popen[str]"]:
    options = ["--loop", order["loop"], "--look-every", str(order["look_every"])]
    command = [sys.executable, "-m", "purgatory.bench._http_service", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def clients(process: "subprocess.Popen[str]", order: dict[str, Any]) -> list[dict[str, Any]]:
    """What the clients say, with the time at which each thing was told."""
    assert process.stdout is not None
    port = process.stdout.readline().strip()
    command = [sys.executable, "-m", "purgatory.bench._http_load", str(process.pid), port, json.dumps(order)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as load:
        assert load.stdout is not None
        told = [{**json.loads(line), "told": time.monotonic()} for line in load.stdout]
    if load.returncode:
        raise RuntimeError(f"the clients ended with status {load.returncode}")
    return told


def measured(order: dict[str, Any]) -> list[dict[str, Any]]:
    """The same on a server of its own."""
    with server(order) as process:
        return clients(process, order)


# -- the report


def figures(rows: list[Row], options: argparse.Namespace) -> Table:
    rounds = 1 if options.quick else options.rounds
    caption = (
        f"Medians of {rounds} rounds; ratios are of paired turns. Theirs looks for its client every {options.look_every:g} s."
        f" uvicorn with httptools on {options.loop}."
    )
    busiest = max((turn["clients_busy"] for row in rows for turn in row.get("turns", ())), default=0.0)
    caption += f"\nThe process of the clients was busy for up to {busiest:.0%} of a turn."
    if busiest > 0.9:
        caption += " That is too much: these latencies are also the clients' own."
    if options.quick:
        caption += "\nQUICK: done with a hundredth of everything; these verdicts prove nothing."
    table = Table(title="purgatory, long polls", title_justify="left", caption=caption, caption_justify="left")
    table.add_column("")
    for name in ("ours", "theirs", "ratio", "target", "verdict"):
        table.add_column(name, justify="right")
    for row in rows:
        cells = [f"{row[side]:,.4g} {row['unit']}" if row[side] is not None else "" for side in ("ours", "theirs")]
        ratio = "" if row["ratio"] is None else f"{row['ratio']:.2f} ×"
        target = "" if row["target"] is None else f"{row['target']:g}"
        table.add_row(row["work"], *cells, ratio, target, row["verdict"])
    return table


PROGRAM = Program("http", "Long polls on a real server, against the handler that people write today.", add_arguments, run)
