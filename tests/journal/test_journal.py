"""The journal: each operation and each check becomes the rows that readers need, the loop never
waits, losses are counted."""

import asyncio
import errno
import gc
import hashlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import weakref
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from math import inf, nan
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers import Listener, Probe, live
from loops import on_asyncio, on_virtual_time

from purgatory import Cause, Purgatory
from purgatory.journal import CHECKS, FOLDERS, Journal, _journal, _writer
from purgatory.journal._writer import MAX_PLAIN_ROWS

START = datetime(2026, 3, 1, 12, tzinfo=UTC)


@asynccontextmanager
async def journaled(folder: Path, **options: Any) -> AsyncIterator[tuple[Journal, Purgatory[Any]]]:
    """A journal, and a purgatory that it observes."""
    async with Journal(folder, **options) as journal, Purgatory(observer=journal) as purgatory:
        yield journal, purgatory


@pytest.fixture
def at_noon(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop's time is zero at noon."""
    now = lambda: START.timestamp() + asyncio.get_running_loop().time()  # noqa: E731
    monkeypatch.setattr(_journal, "time", SimpleNamespace(time=now))


@pytest.fixture
def never_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    """The journal's thread writes at the end only; until then tests call `_poll`."""
    monkeypatch.setattr(_writer, "POLL_INTERVAL", 3600)
    monkeypatch.setattr(_writer, "WAKE_RECORDS", 10**9)


def read(directory: Path, folder: str = "operations") -> list[dict[str, Any]]:
    """The rows of a journal, in the order of their files."""
    files = sorted((directory / folder).glob("*.parquet"))
    tables = [pq.ParquetFile(file).read() for file in files]
    assert all(table.schema.equals(FOLDERS[folder]) for table in tables)
    return [row for table in tables for row in table.to_pylist()]


def after(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


class Keeper(Listener):
    """An observer that sums the checks of each key in each second up."""

    def __init__(self) -> None:
        super().__init__()
        self.sums: defaultdict[tuple[str, datetime], Counter[str]] = defaultdict(Counter)

    def key_checked(self, key: object, tried: int, completed: int) -> None:
        second = after(asyncio.get_running_loop().time()).replace(microsecond=0)
        self.sums[str(key), second].update(checks=1, tried=tried, completed=completed)


@on_virtual_time
@pytest.mark.parametrize(("seed", "start"), [(0, 0.0), (1, 0.0), (2, 1e6)])
async def test_rows_are_what_observers_hear(tmp_path, at_noon, reports, seed, start):
    keeper = Keeper()
    async with (
        Journal(tmp_path) as journal,
        Purgatory("letters", observer=[journal, keeper]) as purgatory,
    ):
        await live(purgatory, random.Random(seed), 300)

    names = {"run_id": journal.run_id, "purgatory": "letters"}
    assert read(tmp_path) == [
        names | {
            "kind": each.kind, "operation_id": number, "keys": [str(key) for key in each.keys],
            "started_at": after(each.started_at), "ended_at": after(each.ended_at),
            "timeout_s": each.timeout, "outcome": each.state.value, "missed_trigger": each.missed_trigger,
            "failed_tries": each.failed_tries,
            "ended_by": str(each.key) if each.cause is Cause.KEY else None,
        }
        for number, each in enumerate(keeper.ended)
    ]  # fmt: skip
    sums: dict[tuple[str, datetime], Counter[str]] = defaultdict(Counter)
    for row in read(tmp_path, "checks"):
        assert row.items() >= names.items()
        counts = {name: row[name] for name in ("checks", "tried", "completed")}
        sums[row["key"], row["second"]].update(counts)
    assert sums == keeper.sums


@on_virtual_time
async def test_hashed_keys_are_nowhere_in_the_files(tmp_path, caplog):
    def hashed(key: str) -> str:
        if "fails" in key:
            raise LookupError
        return hashlib.sha256(key.encode()).hexdigest()[:8]

    async with journaled(tmp_path, key_of=hashed) as (_, purgatory):
        operation = Probe()
        purgatory.try_complete_else_watch(operation, ["alice@example.org"])
        operation.ready = True
        purgatory.check_and_complete("alice@example.org")
        purgatory.try_complete_else_watch(Probe(), ["alice fails"])

    [row, failed], [check] = read(tmp_path), read(tmp_path, "checks")
    assert row["keys"] == [row["ended_by"]] == [check["key"]] == [hashed("alice@example.org")]
    assert not any(b"alice" in file.read_bytes() for file in tmp_path.glob("*/*"))
    assert failed["keys"] == ["<str>"]
    assert "key_of failed" in caplog.text and "alice" not in caplog.text


@on_virtual_time
async def test_a_journal_does_not_keep_operations_alive(tmp_path):
    async with journaled(tmp_path) as (_, purgatory):
        operation = Probe()
        purgatory.try_complete_else_watch(operation, ["key"])
        purgatory.check_and_complete("key")
        operation.cancel()
        gone = weakref.ref(operation)
        del operation
        gc.collect()
        assert gone() is None


async def operations(purgatory, count=1):
    for _ in range(count):
        purgatory.try_complete_else_watch(Probe(ready=True), ["key"])


class Forwarding:
    """An observer that passes all events on to a journal."""

    def __init__(self, journal: Journal) -> None:
        self.operation_ended, self.key_checked = journal.operation_ended, journal.key_checked


@on_virtual_time
@pytest.mark.parametrize("is_forwarded", [False, True])
async def test_journal_serves_many_purgatories(at_noon, reports, tmp_path, is_forwarded):
    with Journal(tmp_path) as journal:
        for _ in range(2):  # in two runs of the journal
            with journal:
                observer = Forwarding(journal) if is_forwarded else journal
                one, two = (Purgatory(name, observer=observer) for name in ("one", "two"))
                await asyncio.sleep(1)
                for purgatory in (one, two, one):
                    await operations(purgatory)
                    purgatory.try_complete_else_watch(Probe(), ["waits"])
                    purgatory.check_and_complete("waits")
                await one.aclose()
                await two.aclose()

    for run_id in {row["run_id"] for row in read(tmp_path)}:
        rows = [row for row in read(tmp_path) if row["run_id"] == run_id]
        assert [row["purgatory"] for row in rows[:3]] == ["one", "two", "one"]
        assert [row["operation_id"] for row in rows] == list(range(6))
    tried = Counter[str]()
    for row in read(tmp_path, "checks"):
        tried[row["purgatory"]] += row["tried"]
    assert tried == {"one": 6, "two": 2}
    assert {row["ended_at"] for row in read(tmp_path)} == {after(1), after(2)}


@on_virtual_time
@pytest.mark.parametrize("name", ["letters", ""])
async def test_checks_before_the_first_operation_are_kept(tmp_path, never_polls, name):
    async with Journal(tmp_path) as journal, Purgatory(name, observer=journal) as purgatory:
        purgatory.try_complete_else_watch(Probe(), ["key"])
        purgatory.check_and_complete("key")
        await asyncio.to_thread(journal._writer._poll, False)

    assert [(row["purgatory"], row["tried"]) for row in read(tmp_path, "checks")] == [(name, 1)]


async def test_files_are_finished_by_size(tmp_path):
    async with journaled(tmp_path, file_bytes=200_000) as (journal, purgatory):
        await operations(purgatory, 6_000)
    statistics = journal.statistics()

    assert [row["operation_id"] for row in read(tmp_path)] == list(range(6_000))
    assert statistics.written == 6_000
    assert statistics.dropped == statistics.lost == statistics.waiting == 0
    files = list((tmp_path / "operations").iterdir())
    assert len(files) == statistics.files > 2
    assert statistics.bytes == sum(file.stat().st_size for file in files)


@on_virtual_time
async def test_checks_of_a_second_differ_between_files(tmp_path):
    async with journaled(tmp_path, file_bytes=1) as (_, purgatory):
        purgatory.try_complete_else_watch(Probe(), ["key"])
        for _ in range(5_000):
            purgatory.check_and_complete("key")

    rows = read(tmp_path, "checks")
    assert len({row["part"] for row in rows}) == len(rows) > 2
    assert sum(row["tried"] for row in rows) == 5_000


@pytest.mark.parametrize(
    ("count", "is_plain"), [(1, True), (MAX_PLAIN_ROWS, True), (MAX_PLAIN_ROWS + 1, False)]
)
def test_small_files_have_no_dictionaries_and_statistics(count, is_plain, tmp_path):
    check = {"run_id": "run", "purgatory": "letters", "second": START, "key": "key"}
    check |= {"checks": 1, "tried": 1, "completed": 1, "part": 0}
    rows = pa.Table.from_pylist([check] * count, CHECKS)

    _writer.write_parquet(rows, tmp_path / "rows.parquet")

    file = pq.ParquetFile(tmp_path / "rows.parquet", page_checksum_verification=True)
    keys = file.metadata.row_group(0).column(CHECKS.names.index("key"))
    assert (not keys.has_dictionary_page, keys.statistics is None) == (is_plain, is_plain)
    assert file.read().equals(rows)


@on_asyncio
async def test_files_are_finished_by_age(tmp_path):
    async with journaled(tmp_path, file_seconds=0.01) as (journal, purgatory):
        await operations(purgatory)
        while not read(tmp_path):  # the test's own timeout is the bound
            await asyncio.sleep(0.01)
        assert journal.statistics().written == 1


async def test_dropped_operations_are_logged_and_leave_gap(tmp_path, never_polls, caplog):
    async with journaled(tmp_path, max_rows=8_000) as (journal, purgatory):
        await operations(purgatory, 2_500)
        assert (journal.statistics().waiting, journal.statistics().dropped) == (2_000, 500)
        for _ in range(2):
            journal._writer._warn_of_drops()
        assert [record.message for record in caplog.records] == [
            f"the journal {tmp_path} drops operations: max_rows (8000) or max_bytes (134217728) is"
            " reached, since its files do not keep up"
        ]
        await asyncio.to_thread(journal._writer._poll, False)
        assert run_counts(tmp_path) == [2_500]  # left behind by a crash
        await operations(purgatory)
    statistics = journal.statistics()

    assert (statistics.written, statistics.dropped) == (2_001, 500)
    ids = [row["operation_id"] for row in read(tmp_path)]
    assert len(ids) == 2_001 and max(ids) + 1 - len(ids) == 500
    assert run_counts(tmp_path) == []


@on_asyncio
async def test_rows_are_written_after_a_full_disk(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(_writer, "RETRY_DELAY", 0.0)
    write_table, full = pq.write_table, [True]

    def write(table, file, **options):
        if full:
            file.write(b"half a file")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write_table(table, file, **options)

    monkeypatch.setattr(_writer.pq, "write_table", write)

    async with journaled(tmp_path, file_seconds=0.01) as (journal, purgatory):
        await operations(purgatory, 10)
        while journal.statistics().failure is None:
            await asyncio.sleep(0.01)
        assert list((tmp_path / "operations").iterdir()) == []
        full.clear()
        while not journal.statistics().written:
            await asyncio.sleep(0.01)
    statistics = journal.statistics()

    assert (statistics.written, statistics.lost, statistics.failure) == (10, 0, None)
    assert len(read(tmp_path)) == 10
    assert "No space left" in caplog.text


@on_asyncio
async def test_removed_folder_is_created_again(tmp_path, monkeypatch, caplog):
    folder = tmp_path / "journal"
    async with journaled(folder, file_seconds=0.01) as (journal, purgatory):
        for number in range(1, 3):
            await operations(purgatory, 10)
            while journal.statistics().written < 10 * number:
                await asyncio.sleep(0.01)
            assert run_counts(folder) == [10 * number]
            shutil.rmtree(folder)
        await operations(purgatory)

    assert [row["operation_id"] for row in read(folder)] == [20]
    assert journal.statistics().lost == 0
    assert run_counts(folder) == [] and not caplog.records


@pytest.mark.parametrize(("days", "remains"), [(0.9, True), (1.1, False)])
def test_partial_files_of_killed_writers_are_removed(tmp_path, monkeypatch, days, remains):
    Journal(tmp_path).close()
    partial = tmp_path / "operations" / f".{'0' * 32}-000007.parquet.partial"
    theirs = tmp_path / "operations" / ".theirs.parquet.partial"
    for file in (partial, theirs):
        file.write_bytes(b"half a file")
    later = time.time() + days * 86_400
    monkeypatch.setattr(_writer, "time", SimpleNamespace(**vars(time) | {"time": lambda: later}))

    Journal(tmp_path).close()

    assert partial.exists() == remains
    assert theirs.exists()


@on_asyncio
async def test_unwritten_rows_are_counted_at_close(tmp_path, monkeypatch, caplog):
    async with journaled(tmp_path) as (journal, purgatory):
        await operations(purgatory, 10)
        monkeypatch.setattr(_writer.pq, "write_table", no_space)
    statistics = journal.statistics()

    assert (statistics.written, statistics.lost, statistics.waiting) == (0, 10, 0)
    assert "closed without its last 10 operations" in caplog.text and "No space left" in caplog.text
    assert [*tmp_path.glob("*s/*.parquet")] == []
    assert run_counts(tmp_path) == [10]


def no_space(table, file, **options):
    raise OSError(errno.ENOSPC, "No space left on device")


def run_counts(directory: Path) -> list[int]:
    """How many operations have ended in the runs that are not written completely."""
    return [int(file.read_text()) for file in (directory / "runs").iterdir()]


PROGRAM = """
import asyncio, sys
from purgatory import DelayedOperation, Purgatory
from purgatory.journal import Journal

class Done(DelayedOperation):
    def try_complete(self): return self.force_complete()

async def main():
    journal = Journal(sys.argv[1], file_seconds=0.05)
    purgatory = Purgatory(observer=journal)
    for _ in range(int(sys.argv[2])):
        purgatory.try_complete_else_watch(Done(), ["key"])
        if int(sys.argv[2]) > 100:
            print(journal.statistics().written, flush=True)
            await asyncio.sleep(0.001)

asyncio.run(main())
"""


def test_unclosed_journal_is_written_at_exit(tmp_path, program):
    program("-c", PROGRAM, tmp_path, 10)

    assert len(read(tmp_path)) == 10
    assert run_counts(tmp_path) == []


@pytest.mark.slow
def test_files_of_a_killed_process_are_complete(tmp_path):
    command = [sys.executable, "-c", PROGRAM, str(tmp_path), "1000000"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout:
            if int(line) > 50:
                break
        process.send_signal(signal.SIGKILL)

    rows = read(tmp_path)
    assert [row["operation_id"] for row in rows] == list(range(len(rows)))
    assert len(rows) >= int(line)
    [ended] = run_counts(tmp_path)
    assert ended >= len(rows)


@on_virtual_time
async def test_files_age_while_the_queue_is_full(tmp_path, monkeypatch):
    monkeypatch.setattr(_writer, "MAX_BATCH", 1)
    async with journaled(tmp_path, file_seconds=1e-9) as (journal, purgatory):
        await operations(purgatory, 20)
    statistics = journal.statistics()

    assert statistics.files >= statistics.written == 20
    assert [row["operation_id"] for row in read(tmp_path)] == list(range(20))


@pytest.mark.parametrize(
    ("name", "values", "complaint"),
    [
        ("file_seconds", [0, nan], "must be positive, got {}"),
        ("file_bytes", [0, nan], "must be at least 1, got {}"),
        ("max_rows", [1, nan, inf], "must be at least 8000 and finite, got {}"),
        ("max_bytes", [0, nan], "must be at least 1, got {}"),
        ("key_of", ["orders"], "must be a function of a key, got '{}'"),
    ],
)
def test_bad_limit_is_refused_before_anything_is_made(tmp_path, name, values, complaint):
    for value in values:
        with pytest.raises((ValueError, TypeError), match=f"{name} {complaint.format(value)}"):
            Journal(tmp_path / "new", **{name: value})

    assert not (tmp_path / "new").exists()


FORKING = """
import asyncio, os, sys
from purgatory import Cause, Purgatory
from purgatory.journal import Journal

async def end(count):
    async with Purgatory("p", observer=journal) as purgatory:
        for number in range(count):
            await purgatory.wait_for(lambda: True, [number])

async def work(count):
    if count:
        await end(count)

def child(count, close):
    pid = os.fork()
    if not pid:
        asyncio.run(work(count))
        if close:
            print(count, journal.run_id, journal.close().written, flush=True)
            asyncio.run(work(count))
        sys.exit()
    assert os.waitpid(pid, 0)[1] == 0

journal = Journal(sys.argv[1])
asyncio.run(end(20))
child(10, close=True)
child(11, close=False)
child(0, close=False)
print(20, journal.run_id, journal.close().written, flush=True)  # or the next child would print it, too
child(12, close=False)
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_forked_children_have_runs_of_their_own(tmp_path, program):
    done = program("-c", FORKING, tmp_path)

    printed = [line.split() for line in done.stdout.splitlines()]
    assert [(count, written) for count, _, written in printed] == [("10", "10"), ("20", "20")]
    by_run = Counter(row["run_id"] for row in read(tmp_path))
    assert sorted(by_run.values()) == [10, 11, 20]
    assert all(by_run[run_id] == int(count) for count, run_id, _ in printed)
    assert list((tmp_path / "runs").iterdir()) == []
    assert "rror" not in done.stderr


@pytest.mark.parametrize("is_async", [False, True])
def test_reentered_journal_begins_a_new_run(run, tmp_path, caplog, is_async):
    journal = Journal(tmp_path)
    module_level, runs = Purgatory("letters", observer=journal), []

    async def lifespan() -> None:
        if is_async:
            async with journal, module_level:
                await operations(module_level)
        else:
            with journal:
                async with Purgatory("letters", observer=journal) as purgatory:
                    await operations(purgatory)

    for _ in range(3):
        run(lifespan)
        statistics = journal.statistics()
        assert (statistics.written, statistics.dropped, statistics.lost) == (1, 0, 0)
        runs.append(statistics.run_id)
    assert len(set(runs)) == 3
    assert sorted(row["run_id"] for row in read(tmp_path)) == sorted(runs)
    assert not caplog.records


@on_virtual_time
async def test_drops_after_close_are_logged_once(tmp_path, caplog):
    journal = Journal(tmp_path)
    for number in range(1, 3):
        purgatory = Purgatory("letters", observer=journal)
        async with purgatory:
            with journal:
                await operations(purgatory)
            assert journal.close() == journal.close()
            await operations(purgatory, 3)
        statistics = journal.statistics()
        assert (statistics.written, statistics.dropped) == (1, 3)
        assert [record.message for record in caplog.records] == [
            f"the journal {tmp_path} is closed, and drops all operations until it is entered again"
        ] * number


@on_virtual_time
async def test_lone_surrogates_are_escaped_everywhere(tmp_path, caplog):
    name, escaped = "a\ud800b", "a\\ud800b"
    async with Journal(tmp_path) as journal, Purgatory(name, observer=journal) as purgatory:
        await operations(purgatory)
        waiting = Probe()
        purgatory.try_complete_else_watch(waiting, ["x", name])
        waiting.ready = True
        purgatory.check_and_complete(name)
        await operations(purgatory)

    rows = read(tmp_path)
    assert [row["keys"] for row in rows] == [["key"], ["x", escaped], ["key"]]
    assert rows[1]["ended_by"] == escaped
    assert {row["purgatory"] for row in rows} == {escaped}
    assert [row["key"] for row in read(tmp_path, "checks")] == [escaped]
    assert (journal.statistics().lost, journal.statistics().lost_checks) == (0, 0)
    assert caplog.text == ""


@on_virtual_time
async def test_bad_row_costs_itself_alone_and_is_counted(tmp_path, never_polls, caplog):
    async with journaled(tmp_path) as (journal, purgatory):
        await operations(purgatory)
        template = list(journal._writer.ended)
        bad = [*template]
        bad[_journal.ENDED_FIELDS.index("failed_tries")] = 2**70
        for number in range(1500):  # two batches
            journal._writer.ended.extend(bad if number in (3, 700, 1200) else template)
            tried = 2**70 if number == 5 else 1
            journal._writer.checked.extend(["purgatory", "key", tried, 0, 0.0])
    statistics = journal.statistics()

    assert (statistics.written, statistics.lost, statistics.lost_checks) == (1498, 3, 1)
    ids = [row["operation_id"] for row in read(tmp_path)]
    assert ids == [number for number in range(1501) if number not in (4, 701, 1201)]
    assert sum(row["checks"] for row in read(tmp_path, "checks")) == 1499
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert "loses a record, which cannot be converted" in caplog.text
    assert run_counts(tmp_path) == [1501]


@on_asyncio
async def test_memory_is_bounded_by_bytes_while_writing_fails(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(_writer.pq, "write_table", no_space)
    limit = 8 * 1024 * 1024
    async with journaled(tmp_path, max_bytes=limit, file_bytes=1024 * 1024) as (journal, purgatory):
        most = 0
        for number in range(8_000):  # 64 MB
            purgatory.try_complete_else_watch(Probe(ready=True), [f"{number:08192}"])
            if number % 100 == 0:
                await asyncio.to_thread(journal._writer._bytes_of_rows)
                most = max(most, journal._writer._bytes_of_rows())
        while journal._writer.ended:
            await asyncio.sleep(0.01)
        monkeypatch.undo()
    statistics = journal.statistics()

    assert most < limit + 2 * _writer.MAX_BATCH_BYTES
    assert statistics.written + statistics.dropped == 8_000
    assert 500 < statistics.written < 2_500 and statistics.lost == 0
    assert "max_bytes (8388608) is reached" in caplog.text
    ids = [row["operation_id"] for row in read(tmp_path)]
    assert len(ids) == len(set(ids)) == statistics.written and max(ids) < 8_000


@pytest.mark.parametrize(
    ("keys", "taken"),
    [
        (["k"] * 3000, 1000),
        (["k" * 1024 * 1024] * 10, 4),
        ([("a", b"k" * 1024 * 1024)] * 10, 4),
        (["k" * 9 * 1024 * 1024] * 3, 1),
        ([], 0),
    ],
)
def test_batches_are_bounded_by_bytes(keys, taken):
    queue = [value for key in keys for value in ("letters", key, 1, 0, 0.0)]

    records = _writer._take(queue, _writer.CHECK_FIELDS, "key")

    assert records[1::5] == keys[:taken] and queue[1::5] == keys[taken:]


@on_asyncio
async def test_thread_is_woken_by_a_thousand_records(tmp_path, monkeypatch):
    monkeypatch.setattr(_writer, "POLL_INTERVAL", 3600)
    async with journaled(tmp_path) as (journal, purgatory):
        await operations(purgatory, 1_001)
        while journal._writer.ended:  # for an hour, if it is not woken
            await asyncio.sleep(0.01)


@on_virtual_time
async def test_link_at_the_next_file_is_not_followed(tmp_path, never_polls):
    precious = tmp_path / "precious"
    precious.write_text("mine")
    async with journaled(tmp_path) as (journal, purgatory):
        await operations(purgatory)
        name = f".{journal.run_id}-000000.parquet.partial"
        (tmp_path / "operations" / name).symlink_to(precious)
        await asyncio.to_thread(journal._writer._write)
        await asyncio.to_thread(journal._writer._poll, True)

    assert precious.read_text() == "mine"
