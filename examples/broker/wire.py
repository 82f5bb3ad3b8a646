"""Frames to requests, answers to frames; and which requests are understood."""

import struct
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, NamedTuple

from kio.index import load_request_schema, load_response_schema

from .codec import Answer, Malformed, Read, Write, pass_tags, read_text, reader, writer

Address = tuple[str, int]

LARGEST: Final = 100 * 1024 * 1024  # bytes of a request; Kafka's socket.request.max.bytes


class Api(NamedTuple):
    """A kind of request, and the versions of it that are offered."""

    name: str
    key: int
    lowest: int
    highest: int


# Versions without topic ids (so Fetch up to 12), and none of the later ones that ask for more than this broker has. Produce is
# told to clients from 0 on, as Kafka 4 does: older librdkafkas take that as leave to compress (KAFKA-18659).
APIS: Final = {
    api.key: api
    for api in (
        Api("produce", 0, 3, 9),
        Api("fetch", 1, 4, 12),
        Api("list_offsets", 2, 1, 7),
        Api("metadata", 3, 0, 9),
        Api("offset_commit", 8, 2, 8),
        Api("offset_fetch", 9, 1, 7),
        Api("find_coordinator", 10, 0, 3),
        Api("join_group", 11, 0, 7),
        Api("heartbeat", 12, 0, 4),
        Api("leave_group", 13, 0, 5),
        Api("sync_group", 14, 0, 5),
        Api("describe_groups", 15, 0, 5),
        Api("list_groups", 16, 0, 4),
        Api("api_versions", 18, 0, 3),
        Api("create_topics", 19, 2, 6),
        Api("delete_topics", 20, 1, 5),
        Api("delete_records", 21, 0, 2),
        Api("init_producer_id", 22, 0, 4),
        Api("describe_configs", 32, 1, 4),
        Api("create_partitions", 37, 0, 3),
        Api("delete_groups", 42, 0, 2),
    )
}


class BadRequest(Exception):
    """The bytes are not a request that can be answered; says what is wrong with them."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request as it is handled.

    Attributes:
        version: of the request as it came; `body` is of the newest version all the same.
        client_id: the client's name for itself.
        here, peer: the two addresses of the connection, ours and the client's.
    """

    api: Api
    version: int
    correlation_id: int
    client_id: str
    body: Any
    here: Address
    peer: Address


def read_request(frame: bytes, here: Address, peer: Address) -> Request:
    """The request in a frame (without its length), which came to the address `here` from `peer`.

    Raises:
        BadRequest: it is not one.
    """
    try:
        key, version, correlation_id = struct.unpack_from(">hhi", frame)
        api = APIS.get(key)
        if api is None:
            raise BadRequest(f"API key {key} is not known here")
        if not api.lowest <= version <= api.highest:
            if api.name == "api_versions":  # answered all the same, so that the client can choose another version
                return Request(api, -1, correlation_id, "", None, here, peer)
            raise BadRequest(f"version {version} of {api.name} is not offered ({api.lowest} to {api.highest} are)")
        has_tags, read = _request_reader(api, version)
        client_id, at = read_text(frame, 8)
        if has_tags:
            at = pass_tags(frame, at)
        body, _ = read(frame, at)  # what comes after it is nobody's: librdkafka sends more than it should, at times
    except (Malformed, IndexError, struct.error, UnicodeDecodeError) as error:
        raise BadRequest(f"{frame[:16].hex(' ')}... is not a request: {error}") from error
    return Request(api, version, correlation_id, client_id or "", body, here, peer)


def write_answer(request: Request, answer: Answer) -> bytes | bytearray:
    """The frame that answers `request`, with its length."""
    has_tags, write = _answer_writer(request.api, max(request.version, 0))
    out = bytearray(9 if has_tags else 8)
    write(out, answer)
    struct.pack_into(">ii", out, 0, len(out) - 4, request.correlation_id)
    return out


@cache
def _request_reader(api: Api, version: int) -> tuple[bool, Read]:
    cls: Any = load_request_schema(api.key, version)
    return cls.__header_schema__.__flexible__, reader(cls, load_request_schema(api.key, api.highest))


@cache
def _answer_writer(api: Api, version: int) -> tuple[bool, Write]:
    cls: Any = load_response_schema(api.key, version)
    return cls.__header_schema__.__flexible__, writer(cls)
