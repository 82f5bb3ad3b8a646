"""Frames to requests, answers to frames; and which requests are understood."""

import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, NamedTuple

from kio.index import load_request_schema, load_response_schema
from kio.schema.index import api_key_map

from .answers import Answer, Reply
from .codec import TEXT, Form, Malformed, form_of, pass_tags

Address = tuple[str, int]

LARGEST: Final = 100 * 1024 * 1024  # bytes of a request; Kafka's socket.request.max.bytes

# In which versions: without topic ids (so Fetch up to 12), and none of the later ones that ask for more than this broker has.
OFFERED: Final = """
    api_versions=0-3 metadata=0-9 init_producer_id=0-4
    produce=3-9 fetch=4-12 list_offsets=1-7 delete_records=0-2
    find_coordinator=0-3 join_group=0-7 sync_group=0-5 heartbeat=0-4 leave_group=0-5
    offset_commit=2-8 offset_fetch=1-7 describe_groups=0-5 list_groups=0-4 delete_groups=0-2
    create_topics=2-6 create_partitions=0-3 delete_topics=1-5 describe_configs=1-4
"""


class Api(NamedTuple):
    """A kind of request, and the versions of it that are offered."""

    name: str
    key: int
    lowest: int
    highest: int


KEYS: Final = {name: key for key, name in api_key_map.items()}
APIS: Final = {
    KEYS[name]: Api(name, KEYS[name], int(lowest), int(highest))
    for name, lowest, highest in re.findall(r"(\w+)=(\d+)-(\d+)", OFFERED)
}


class BadRequest(Exception):
    """The bytes are not a request that can be answered; says what is wrong with them."""


@dataclass(slots=True)
class Request:
    """One request as it is handled.

    Attributes:
        version: of the request as it came; `body` is of the newest version all the same. -1 if it is not offered.
        number: of the request, by which the client knows the answer.
        client_id: the client's name for itself.
        here, peer: the two addresses of the connection, ours and the client's.
        reply: sends the answer.
    """

    api: Api
    version: int
    number: int
    client_id: str
    body: Any
    here: Address
    peer: Address
    reply: Reply


def read_request(frame: bytes, here: Address, peer: Address, reply: Reply) -> Request:
    """The request in a frame (without its length), which came to the address `here` from `peer`.

    Raises:
        BadRequest: it is not one.
    """
    try:
        key, version, number = struct.unpack_from(">hhi", frame)
        api = APIS.get(key)
        if api is None:
            raise BadRequest(f"API key {key} is not known here")
        if not api.lowest <= version <= api.highest:
            if api.name == "api_versions":  # answered all the same, so that the client can choose another version
                return Request(api, -1, number, "", None, here, peer, reply)
            raise BadRequest(f"version {version} of {api.name} is not offered ({api.lowest} to {api.highest} are)")
        has_tags, form = _form(load_request_schema, api, version)
        client_id, at = TEXT.read(frame, 8)
        if has_tags:
            at = pass_tags(frame, at)
        body, _ = form.read(frame, at)  # what comes after it is nobody's: librdkafka sends more than it should, at times
    except (Malformed, IndexError, struct.error, UnicodeDecodeError) as error:
        raise BadRequest(f"{frame[:16].hex(' ')}... is not a request: {error}") from error
    return Request(api, version, number, client_id or "", body, here, peer, reply)


def write_answer(request: Request, answer: Answer) -> bytes | bytearray:
    """The frame that answers `request`, with its length."""
    has_tags, form = _form(load_response_schema, request.api, max(request.version, 0))
    out = bytearray(9 if has_tags else 8)
    form.write(out, answer)
    struct.pack_into(">ii", out, 0, len(out) - 4, request.number)
    return out


@cache
def _form(load: Callable[[int, int], Any], api: Api, version: int) -> tuple[bool, Form]:
    """Whether the header of a message has tags, and the message. Loads the schemas, when they are needed first."""
    cls = load(api.key, version)
    return cls.__header_schema__.__flexible__, form_of(cls, load(api.key, api.highest))
