"""`purgatory.asgi._request`: one reader, which buffers the body for the application and notices a
disconnect."""

import asyncio
from typing import Any

import pytest
from asgi_requests import Message, Request
from helpers import iterations
from loops import on_virtual_time

from purgatory.asgi._request import READ_AHEAD, Client


class Listener:
    def __init__(self) -> None:
        self.notified: list[str] = []

    def on_disconnect(self) -> None:
        self.notified.append("left")

    def on_request_end(self) -> None:
        self.notified.append("ended")


async def nobody(scope: Any, receive: Any, send: Any) -> None:
    pass


def client_and_request(read_ahead: int = READ_AHEAD) -> tuple[Client, Request]:
    request = Request(nobody)
    return Client(request.receive, read_ahead), request


async def test_messages_read_ahead_keep_their_order():
    client, request = client_and_request()
    client.add_listener(Listener())
    request.body(b"par", more=True)
    request.body(b"t")
    await iterations(20)
    assert request.messages.empty()
    assert [(await client.receive())["body"] for _ in range(2)] == [b"par", b"t"]
    client.close()
    await iterations(2)


async def test_the_end_of_a_body_stays_in_order():
    client, request = client_and_request()
    client.add_listener(Listener())
    request.body(b"part", more=True)
    request.body()
    request.messages.put_nowait({"type": "http.something.new"})
    request.body()
    await iterations(20)
    end = {"type": "http.request", "body": b"", "more_body": False}
    assert (await client.receive())["body"] == b"part"
    assert [await client.receive() for _ in range(3)] == [end, {"type": "http.something.new"}, end]
    client.close()
    await iterations(2)


async def test_an_unknown_message_is_kept_as_well():
    client, request = client_and_request()
    client.add_listener(Listener())
    request.messages.put_nowait({"type": "http.something.new"})
    await iterations(20)
    assert await client.receive() == {"type": "http.something.new"}
    client.close()
    await iterations(2)


async def test_end_of_body_is_not_a_disconnect():
    client, request = client_and_request()
    listener = Listener()
    client.add_listener(listener)
    request.body(b"all of it")
    await iterations(20)
    assert (client.disconnected, listener.notified) == (False, [])
    request.leave()
    await iterations(20)
    assert (client.disconnected, listener.notified) == (True, ["left"])
    assert (await client.receive())["body"] == b"all of it"
    assert [await client.receive() for _ in range(2)] == [{"type": "http.disconnect"}] * 2


async def test_there_is_one_reader_however_many_ask():
    client, request = client_and_request()
    listener = Listener()
    client.add_listener(listener)
    asking = [asyncio.create_task(client.receive()) for _ in range(3)]
    await iterations(3)
    request.body(b"one", more=True)
    request.body(b"two", more=True)
    await iterations(20)
    request.leave()
    answers = [await task for task in asking]
    assert [answer.get("body") for answer in answers] == [b"one", b"two", None]
    assert listener.notified == ["left"]
    assert request.most_readers == 1


async def test_cancelled_reader_hands_over():
    client, request = client_and_request()
    listener = Listener()
    reader = asyncio.create_task(client.receive())
    await iterations(2)
    client.add_listener(listener)
    await iterations(2)
    reader.cancel()
    await iterations(4)
    request.leave()
    await iterations(20)
    assert listener.notified == ["left"]
    assert request.most_readers == 1


async def test_waiter_for_the_reader_may_be_cancelled():
    client, request = client_and_request()
    client.add_listener(Listener())
    await iterations(2)
    first, second = (asyncio.create_task(client.receive()) for _ in range(2))
    await iterations(2)
    first.cancel()
    await iterations(2)
    request.body(b"for the second")
    assert (await second)["body"] == b"for the second"
    client.close()
    await iterations(2)


@on_virtual_time
async def test_long_body_is_read_at_the_applications_pace():
    client, request = client_and_request()
    listener = Listener()
    client.add_listener(listener)
    for _ in range(10):
        request.body(bytes(READ_AHEAD // 4), more=True)
    request.leave()
    await asyncio.sleep(1)
    left = request.messages.qsize()
    assert left == 11 - 4  # the fourth exceeded the limit, with the overhead of a message
    assert listener.notified == []
    for _ in range(10):
        assert len((await client.receive())["body"]) == READ_AHEAD // 4
    await asyncio.sleep(1)
    assert listener.notified == ["left"]


@on_virtual_time
@pytest.mark.parametrize(
    ("chunks", "notified"),
    [
        ([bytes(64 * 1024)], ["left"]),
        ([bytes(100)] * 300, ["left"]),
        ([bytes(READ_AHEAD - 256), b"x"], []),
    ],
    ids=["64 KiB", "300 chunks", "beyond"],
)
async def test_disconnect_after_unread_body_is_noticed_within_bounds(chunks, notified):
    client, request = client_and_request()
    listener = Listener()
    client.add_listener(listener)
    for chunk in chunks:
        request.body(chunk, more=True)
    request.body()
    request.leave()
    await asyncio.sleep(1)
    assert listener.notified == notified


async def test_disconnect_after_the_body_ignores_the_bound():
    client, request = client_and_request(0)
    listener = Listener()
    client.add_listener(listener)
    request.body()
    request.leave()
    await iterations(20)
    assert listener.notified == ["left"]


@on_virtual_time
async def test_single_bytes_are_not_kept_for_nothing():
    client, request = client_and_request(64 * 1024)
    client.add_listener(Listener())
    for _ in range(10_000):
        request.body(b"x", more=True)
    request.body()
    await asyncio.sleep(1)
    assert 10_000 - request.messages.qsize() < 300
    taken = b"".join([(await client.receive())["body"] for _ in range(10_001)])
    assert taken == b"x" * 10_000
    assert client._buffered_bytes == 0
    client.close()
    await iterations(2)


async def test_a_listener_that_was_removed_is_not_notified():
    client, request = client_and_request()
    first, second = Listener(), Listener()
    client.add_listener(first)
    client.add_listener(second)
    client.remove_listener(first)
    client.remove_listener(first)
    request.leave()
    await iterations(20)
    assert (first.notified, second.notified) == ([], ["left"])
    client.close()
    assert second.notified == ["left", "ended"]


async def test_closing_stops_the_listener():
    client, request = client_and_request()
    client.add_listener(Listener())
    await iterations(2)
    assert request.readers == 1
    client.close()
    await iterations(3)
    assert request.readers == 0


async def test_receive_error_is_announced_and_raised_later():
    async def receive() -> Message:
        raise ConnectionError("the server is broken")

    client, listener = Client(receive), Listener()
    client.add_listener(listener)
    await iterations(3)
    assert listener.notified == ["left"]
    assert client.disconnected is False
    for _ in range(2):
        with pytest.raises(ConnectionError, match="the server is broken"):
            client.add_listener(Listener())
    with pytest.raises(ConnectionError, match="the server is broken"):
        await client.receive()
