"""A service that keeps its orders in SQLite, and whose writes forget the check: the page, `top`,
metrics and the report say how many triggers were missed."""

import asyncio
import json
import sqlite3
from pathlib import Path

from asgi_requests import Request
from loops import on_virtual_time

from purgatory import Purgatory
from purgatory.console import console
from purgatory.journal import Journal
from purgatory.metrics import Meter
from purgatory.metrics.prometheus import collector
from purgatory.pipeline.report._duckdb import DuckDB
from purgatory.pipeline.report._findings import findings
from purgatory.pipeline.report._tables import make_tables
from purgatory.top._drawing import screen

CHECKED, FORGOTTEN, UNPAID = 10, 25, 5
"""Orders whose write is followed by a check, by none, and that are never written."""


class Orders:
    """A service on a database."""

    def __init__(self, file: Path, purgatory: Purgatory) -> None:
        self.database = sqlite3.connect(file)
        self.database.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, state TEXT)")
        self.purgatory = purgatory

    async def paid(self, order: int) -> str | None:
        """The state of an order, by a query that takes 5 ms."""
        await asyncio.sleep(0.005)
        found = self.database.execute("SELECT state FROM orders WHERE id = ?", [order]).fetchone()
        return found and found[0]

    async def wait(self, order: int) -> str:
        """Long-polls for an order."""
        return await self.purgatory.wait_for(lambda: self.paid(order), [order], timeout=20)

    def pay(self, order: int, *, forgets: bool) -> None:
        """Writes an order."""
        with self.database:
            self.database.execute("INSERT INTO orders VALUES (?, 'paid')", [order])
        if not forgets:
            self.purgatory.check_and_complete(order)


@on_virtual_time
async def test_missed_triggers_are_visible_everywhere(tmp_path):
    meter = Meter()
    async with (
        Journal(tmp_path / "journal") as journal,
        Purgatory("orders", observer=[meter, journal]) as purgatory,
    ):
        orders = Orders(tmp_path / "orders.sqlite", purgatory)
        count = CHECKED + FORGOTTEN + UNPAID
        waits = [asyncio.create_task(orders.wait(order)) for order in range(count)]
        await asyncio.sleep(1)
        for order in range(CHECKED + FORGOTTEN):
            orders.pay(order, forgets=order >= CHECKED)
        await asyncio.wait(waits)
        orders.database.close()
        app = console(purgatory, meter=meter)
        answer = await Request(
            app, b"", {"host": "127.0.0.1"}, path="/state", host="127.0.0.1"
        ).done()
        [family] = [
            each
            for each in collector(meter, purgatories=purgatory).collect()
            if each.name == "purgatory_missed_triggers"
        ]

    ends = [wait.exception() or wait.result() for wait in waits]
    assert ends[: CHECKED + FORGOTTEN] == ["paid"] * (CHECKED + FORGOTTEN)
    assert all(isinstance(end, TimeoutError) for end in ends[CHECKED + FORGOTTEN :])
    assert purgatory.statistics().missed_triggers == FORGOTTEN
    state = json.loads(answer.content)
    [shown] = state["purgatories"]
    assert shown["missed"] == sum(kind["missed"] for kind in shown["kinds"]) == FORGOTTEN
    assert {int(each["keys"][0]) for each in shown["missedLast"]} <= {*range(CHECKED, count)}
    lines = [line.plain.split() for line in screen(state, "", 40)]
    [overview] = [line for line in lines if line[:2] == ["orders", "0"]]
    assert overview[5] == str(FORGOTTEN)
    assert sum(line[:2] == ["missed", "trigger:"] for line in lines) == 3  # the last ones
    assert [sample.value for sample in family.samples] == [FORGOTTEN]

    with DuckDB.opened() as engine:
        summary = make_tables(engine, [str(tmp_path / "journal")], str(tmp_path / "report"))
    said = [each.text for each in findings(summary) if each.place == "missed"]
    assert said == [
        "check_and_complete was not called for keys of 'Condition' in 'orders' when its condition "
        f"held: {FORGOTTEN} of {count} operations completed only at their deadline."
    ]
