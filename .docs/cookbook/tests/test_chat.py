"""The recipe for a chat: a message reaches each reader of its room, once."""

import asyncio

import chat
import httpx2


def client():
    return httpx2.AsyncClient(transport=httpx2.ASGITransport(chat.app), base_url="http://chat")


def test_message_reaches_each_client_in_its_room(virtual_time_runner):
    async def main():
        async with client() as one, client() as two:
            waiting = [asyncio.create_task(each.get("/rooms/tea?after=0")) for each in (one, two)]
            elsewhere = asyncio.create_task(one.get("/rooms/coffee?wait=20"))
            await asyncio.sleep(10)
            await one.post("/rooms/tea?text=hello")
            for response in await asyncio.gather(*waiting):
                assert response.json() == {"messages": ["hello"], "after": 1}
            assert (await elsewhere).status_code == 204
            assert asyncio.get_running_loop().time() == 20
            assert chat.listeners.statistics().missed_triggers == 0

    virtual_time_runner.run(main())


def test_message_between_two_requests_is_not_missed(virtual_time_runner):
    async def main():
        async with client() as one:
            await one.post("/rooms/garden?text=hello")
            await one.post("/rooms/garden?text=again")
            answer = (await one.get("/rooms/garden?after=1")).json()
            assert answer == {"messages": ["again"], "after": 2}

    virtual_time_runner.run(main())
