"""Requests from frames, frames from responses; and the requests that are understood."""

import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, NamedTuple

from kio.index import load_request_schema, load_response_schema
from kio.schema.index import api_key_map

from .codec import STRING, Frame, Malformed, Serde, serde_of, skip_tagged_fields
from .responses import Response, ResponseCallback

Address = tuple[str, int]

MAX_REQUEST_SIZE: Final = 100 * 1024 * 1024  # bytes; Kafka's socket.request.max.bytes

# Versions that need features which this broker lacks are left out.
OFFERED: Final = """
    api_versions=0-3 metadata=0-12 init_producer_id=0-4 sasl_handshake=0-1
    produce=3-10 fetch=4-13 list_offsets=1-7 delete_records=0-2
    find_coordinator=0-3 join_group=0-7 sync_group=0-5 heartbeat=0-4 leave_group=0-5
    offset_commit=2-8 offset_fetch=1-7 describe_groups=0-5 list_groups=0-4 delete_groups=0-2
    add_partitions_to_txn=0-3 add_offsets_to_txn=0-3 end_txn=0-3 txn_offset_commit=0-3
    offset_delete=0-0 consumer_group_heartbeat=0-1
    create_topics=2-7 create_partitions=0-3 delete_topics=1-6
    describe_configs=1-4 alter_configs=0-2 incremental_alter_configs=0-1
"""


class Api(NamedTuple):
    """A kind of request, and the versions of it that are offered."""

    name: str
    key: int
    min_version: int
    max_version: int


KEYS: Final = {name: key for key, name in api_key_map.items()}
APIS: Final = {
    KEYS[name]: Api(name, KEYS[name], int(first), int(last))
    for name, first, last in re.findall(r"(\w+)=(\d+)-(\d+)", OFFERED)
}


class BadRequest(Exception):
    """The bytes are no request that is offered; the message names the reason."""


@dataclass(slots=True)
class Request:
    """One request.

    Attributes:
        version: version of the request, -1 if it is not offered; `body` has the fields of the
            newest version all the same.
        correlation_id: the client's number for the request, which the response repeats.
        client_id: the client's name for itself.
        address: this broker's address, as the client reaches it.
        peer: the client's address.
        respond: sends the response.
    """

    api: Api
    version: int
    correlation_id: int
    client_id: str
    body: Any
    address: Address
    peer: Address
    respond: ResponseCallback


def read_request(
    frame: bytes, address: Address, peer: Address, respond: ResponseCallback
) -> Request:
    """The request in a frame (without its length), of a client at `peer` that reaches this broker
    by `address`.

    Raises:
        BadRequest: the frame is not a request that is offered.
    """
    try:
        key, version, correlation_id = struct.unpack_from(">hhi", frame)
        api = APIS.get(key)
        if api is None:
            raise BadRequest(f"API key {key} is not known here")
        if not api.min_version <= version <= api.max_version:
            if (
                api.name == "api_versions"
            ):  # gets a response all the same, so that the client can choose another version
                return Request(api, -1, correlation_id, "", None, address, peer, respond)
            offered = f"{api.min_version} to {api.max_version} are"
            raise BadRequest(f"version {version} of {api.name} is not offered ({offered})")
        has_tags, serde = _message(load_request_schema, api, version)
        data = Frame(frame)
        client_id, at = STRING.read(data, 8)
        if has_tags:
            at = skip_tagged_fields(data, at)
        # Bytes after it are ignored: librdkafka sometimes sends more than it should.
        body, _ = serde.read(data, at)
    except (Malformed, IndexError, struct.error, UnicodeDecodeError) as error:
        raise BadRequest(f"{frame[:16].hex(' ')}... is not a request: {error}") from error
    return Request(api, version, correlation_id, client_id or "", body, address, peer, respond)


def write_response(request: Request, response: Response) -> bytes | bytearray:
    """The frame of the response to `request`, with its length."""
    has_tags, serde = _message(load_response_schema, request.api, max(request.version, 0))
    out = bytearray(9 if has_tags else 8)
    serde.write(out, response)
    struct.pack_into(">ii", out, 0, len(out) - 4, request.correlation_id)
    return out


@cache
def _message(load: Callable[[int, int], Any], api: Api, version: int) -> tuple[bool, Serde]:
    """Whether the header of a message has tagged fields, and how its body is read and written.
    Loads schemas on first use."""
    cls = load(api.key, version)
    return cls.__header_schema__.__flexible__, serde_of(cls, load(api.key, api.max_version))
