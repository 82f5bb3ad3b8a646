"""Objects at the level of a module, under the lifespans of Starlette's `TestClient`, each of which
has a loop of its own."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest
from asgi_modules import EXAMPLES, load
from helpers import iterations
from starlette.testclient import TestClient

from purgatory import IdleTracker, Purgatory, PurgatoryClosed, PurgatoryFull, ThresholdPurgatory


@pytest.mark.parametrize("kind", [Purgatory, ThresholdPurgatory])
def test_closed_purgatory_opens_with_next_lifespan(run, kind):
    purgatory = kind("module's", max_pending=1)
    results: list[str] = []

    async def wait(value: int) -> None:
        await (
            purgatory.wait_for(lambda: results, ["key"])
            if kind is Purgatory
            else purgatory.wait("key", value)
        )

    async def lifespan() -> None:
        for number in (1, 2):  # also on the same loop
            async with purgatory:
                waiting = asyncio.create_task(wait(number))
                await iterations(2)
                assert purgatory.pending == 1
                with pytest.raises(PurgatoryFull):
                    await wait(9)
                if kind is Purgatory:
                    results.append("x")
                    assert purgatory.check_and_complete("key") == 1
                    results.clear()
                else:
                    assert purgatory.advance("key", number) == 1
                    purgatory.forget("key")
                await waiting
            with pytest.raises(PurgatoryClosed):
                await wait(1)

    for _ in range(2):
        run(lifespan)


def test_closed_idle_tracker_tracks_again_when_entered(virtual):
    idle: list[str] = []
    tracker = IdleTracker(1.0, idle.append)

    async def lifespan() -> None:
        with tracker:
            tracker.touch("id")
            await asyncio.sleep(2)
            tracker.touch("forgotten")
        with pytest.raises(PurgatoryClosed):
            tracker.touch("late")

    for _ in range(2):
        virtual(lifespan)
    assert idle == ["id"] * 2


def test_board_serves_consecutive_lifespans(tmp_path):
    journal = tmp_path / "journal"
    board = load(EXAMPLES / "long_poll_board.py").Board(tmp_path / "board.jsonl", journal)
    for number in range(3):
        with TestClient(board.app) as client:
            assert client.post("/topics/tea", content="ready").json() == {"offset": number}
            news = client.get(f"/topics/tea?offset={number}&timeout=1")
            assert news.json()["messages"] == ["ready"]
            state = client.get("/purgatory/state", headers={"host": "localhost"})
            assert state.status_code in (200, 403)
    files = (journal / "operations").glob("*.parquet")
    assert len({file.name.split("-")[0] for file in files}) == 3


@pytest.mark.parametrize("name", ["litestar", "quart"])  # Django has no lifespans
def test_recipes_serve_consecutive_lifespans(name):
    recipe = load(EXAMPLES / "recipes" / f"with_{name}.py")
    client = TestClient(recipe.app)

    def ask_all(number: int) -> None:
        with ThreadPoolExecutor() as threads:
            assert client.get("/jobs/0?wait=0.01").status_code == (204 if number == 0 else 200)
            waiting = [threads.submit(client.get, f"/jobs/{number}?wait=20") for _ in range(2)]
            while recipe.jobs.pending < 2:
                client.get("/jobs/-1?wait=0")
            assert client.put(f"/jobs/{number}", content="done").status_code == 204
            assert [each.result().text for each in waiting] == ["done"] * 2

    for number in range(3):
        with client:
            ask_all(number)
    assert client.get("/jobs/0?wait=0").text == "done"  # without a lifespan
