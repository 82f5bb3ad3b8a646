"""`examples/orders_workers.py --demo`: no client misses a payment, although a worker and the
store are killed."""

import re
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from servers import PostgresServer, need, served

pytestmark = pytest.mark.slow

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "orders_workers.py"


@pytest.fixture
def demo(program: Callable[..., CompletedProcess[str]]) -> Callable[..., str]:
    """Runs the demo, in which no client misses anything, and returns its output."""

    def run(*options: str) -> str:
        shown = program(
            EXAMPLE, "--demo", "--workers", "2", "--clients", "30", "--seconds", "3", *options
        ).stdout
        numbers = dict(re.findall(r"│ (.*?) +│ +(\d+) │", shown))
        assert (
            int(numbers["completed"]) == int(numbers["orders waited for"]) >= 30
        )  # one for each client at least
        assert numbers["missed"] == "0"
        for path in ("the same worker", "another worker", "any, around a kill"):
            assert re.search(
                rf"from write to answer on {path}: \d+ times, p50 +│ +([\d.]+|nan) ms │", shown
            )
        assert re.search(r"killed worker \d+", shown)
        return shown

    return run


@pytest.mark.parametrize("kind", ["file", "redis", "postgresql"])
def test_demo_loses_no_payment_when_killed(demo: Callable[..., str], kind: str) -> None:
    if kind == "file":
        demo()
        return
    if kind == "redis":
        need("redis-server", "needs redis-server: apt-get install redis-server")
    else:
        PostgresServer._binaries()
    assert re.search(rf"killed\s+{kind},\s+and\s+started\s+it\s+again", demo("--store", kind))


def test_demo_never_kills_a_foreign_store(demo: Callable[..., str], tmp_path: Path) -> None:
    with served("redis", tmp_path) as server:
        assert re.search(
            r"which\s+is\s+yours\s+and\s+was\s+not\s+killed", demo("--store", server.url)
        )
        assert server.ask("PING").startswith(b"+PONG")
