"""Faults on demand, for tests: requests that fail, responses that come late or never, members that
expire, time that moves.

A fault is for the next requests of one API, by any client. Kafka's names are used: `produce` or
`Produce` for the API, `NOT_LEADER_OR_FOLLOWER` for the error.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf
from typing import TYPE_CHECKING, Final

from purgatory import DelayedOperation, WheelTimer

from .admin import named_topics
from .delayed_operations import DelayedDeleteRecords, DelayedFetch, DelayedProduce
from .responses import ApiError, ErrorCode, Response, for_partitions
from .transactions import added_partitions
from .wire import APIS, Request

if TYPE_CHECKING:
    from .broker import Broker

Outcome = Response | DelayedOperation[None] | None
Handler = Callable[[Request], Outcome]
"""Returns the response, or the operation that will respond, or None if something else responds or
there is no response."""

API_NAMES: Final = {api.name.replace("_", ""): api.name for api in APIS.values()}
BY_PARTITION: Final[dict[str, Response]] = {  # the fields of an entry besides the error
    "produce": DelayedProduce.on_error,
    "fetch": DelayedFetch.on_error,
    "delete_records": DelayedDeleteRecords.on_error,
    "list_offsets": {},
    "offset_commit": {},
    "offset_delete": {},
    "txn_offset_commit": {},
}
# the list of the request, the list of the response, and the field that names the item
BY_ITEM: Final = {
    "create_topics": ("topics", "topics", "name"),
    "create_partitions": ("topics", "results", "name"),
    "describe_configs": ("resources", "results", "name"),
    "alter_configs": ("resources", "topics", "name"),
    "incremental_alter_configs": ("resources", "topics", "name"),
    "describe_groups": ("groups", "groups", "group_id"),
    "delete_groups": ("groups_names", "results", "group_id"),
}


def error_response(request: Request, error: ApiError) -> Response:
    """A response that has only an error, where the API has its errors."""
    name, body = request.api.name, request.body
    if name in BY_PARTITION:
        return for_partitions(body.topics, lambda *_: error.response | BY_PARTITION[name])
    if name == "add_partitions_to_txn":
        return added_partitions(body, lambda _: error.code)
    if name == "delete_topics":
        return {
            "topics": [
                error.response | {"name": topic, "topic_id": topic_id}
                for topic, topic_id in named_topics(body)
            ]
        }
    if name not in BY_ITEM:
        return error.response
    items, entries, key = BY_ITEM[name]
    return {
        entries: [error.response | {key: getattr(item, key, item)} for item in getattr(body, items)]
    }


def _check_seconds(seconds: float) -> None:
    """Raises `ValueError` unless this is a time of zero or more."""
    is_number = isinstance(seconds, (int, float)) and not isinstance(seconds, bool)
    if not is_number or not 0 <= seconds < inf:
        raise ValueError(f"seconds must be a number of zero or more, got {seconds!r}")


class SteppedLoop(asyncio.SelectorEventLoop):
    """asyncio's loop, with a clock that can be moved forward."""

    def __init__(self) -> None:
        super().__init__()
        self._offset = 0.0

    def time(self) -> float:
        """The loop's time, in seconds."""
        return super().time() + self._offset

    def advance(self, seconds: float) -> None:
        """Moves the clock forward; callbacks that are due then run in the next iteration."""
        self._offset += seconds


@dataclass(kw_only=True)
class Fault:
    """A fault of the next requests of an API.

    Attributes:
        times: for how many requests; None for all.
        apply: takes a request, and handles it by calling the second argument, or does not.
    """

    api: str
    times: int | None
    apply: Callable[[Request, Handler], Outcome]


class Faults:
    """All faults of a broker. Faults of one API take effect in the order of their requests."""

    def __init__(self, broker: "Broker") -> None:
        self._broker, self._faults, self._timer = broker, list[Fault](), WheelTimer()

    def handle(self, request: Request, handle: Handler) -> Outcome:
        """Handles a request with the fault that there is for it, or without one."""
        for fault in self._faults:
            if fault.api == request.api.name:
                if fault.times is not None:
                    fault.times -= 1
                    if not fault.times:
                        self._faults.remove(fault)
                return fault.apply(request, handle)
        return handle(request)

    def fail(self, api: str, error: str, times: int | None = 1) -> None:
        """The next requests are not handled, and get a response with an error: for each partition,
        if there are any.

        Args:
            api: such as "produce".
            error: such as "NOT_LEADER_OR_FOLLOWER".
            times: for how many requests; None for all, until `clear`.

        Raises:
            ValueError: there is no such API or error here, or `times` is less than 1.
        """
        try:
            code = ErrorCode[str(error).lower()]
        except KeyError:
            raise ValueError(
                f"{error!r} is not the name of an error of Kafka's, such as NOT_LEADER_OR_FOLLOWER"
            ) from None

        def refuse(request: Request, handle: Handler) -> Outcome:
            failure = ApiError(code, f"{code.name.upper()}, as a test has asked for")
            if (
                request.api.name == "produce" and request.body.acks == 0
            ):  # there is no response to have it
                request.respond(ConnectionError(str(failure)))
                return None
            response = error_response(request, failure)
            if request.api.name == "metadata" and isinstance(outcome := handle(request), dict):
                # It has the brokers, without which a client is lost.
                response = outcome | {
                    "topics": [
                        {"name": topic["name"]} | failure.response for topic in outcome["topics"]
                    ]
                }
            return response

        self._add(api, times, refuse)

    def delay(self, api: str, seconds: float, times: int | None = 1) -> None:
        """The next requests are handled at once, but their responses come later.

        Raises:
            ValueError: see `fail`; or `seconds` is negative.
        """
        _check_seconds(seconds)

        def postpone(request: Request, handle: Handler) -> Outcome:
            respond = request.respond

            def respond_later(response: Response | Exception | None) -> None:
                self._timer.call_later(seconds, respond, response)

            later = replace(request, respond=respond_later)
            outcome = handle(later)
            if isinstance(outcome, dict):
                later.respond(outcome)
                return None
            return outcome

        self._add(api, times, postpone)

    def drop(self, api: str, times: int | None = 1, *, handled: bool = False) -> None:
        """The next requests get no response: their connections are closed.

        Args:
            api: such as "produce".
            times: for how many requests; None for all.
            handled: whether the request is handled before; a producer that sends it again may then
                write its records twice.

        Raises:
            ValueError: see `fail`.
        """

        def disconnect(request: Request, handle: Handler) -> None:
            dropped = ConnectionError(
                f"{request.api.name} gets no response, as a test has asked for"
            )
            if handled:
                handle(replace(request, respond=lambda _: None))
            request.respond(dropped)

        self._add(api, times, disconnect)

    def expire(self, group_id: str, member_id: str | None = None) -> None:
        """Removes a member from its group, or all members: as if they had sent no heartbeat for
        their session timeout.

        Raises:
            ValueError: there is no such group or member.
        """
        coordinator = self._broker.coordinator
        group = coordinator.groups.get(group_id)
        members = [] if group is None else list(group.members) if member_id is None else [member_id]
        if group is None or not members or not set(members) <= set(group.members):
            raise ValueError(
                f"group {group_id!r} has no member"
                + ("" if member_id is None else f" {member_id!r}")
            )
        for each in members:
            coordinator.remove(group, each)

    def advance(self, seconds: float) -> None:
        """Moves time forward: every deadline in it has come, of waiting requests, sessions and
        connections; records get older.

        Raises:
            ValueError: `seconds` is negative.
            RuntimeError: the loop has no clock that can be moved.
        """
        _check_seconds(seconds)
        loop = asyncio.get_running_loop()
        if not isinstance(loop, SteppedLoop):
            raise RuntimeError(f"time cannot be moved on {loop!r}")
        loop.advance(seconds)
        self._broker.clock.offset += seconds

    def clear(self) -> None:
        """Removes all faults. Time is not moved back, except for new records of an emptied
        broker."""
        self._faults.clear()

    def _add(
        self, api: str, times: int | None, apply: Callable[[Request, Handler], Outcome]
    ) -> None:
        name = API_NAMES.get(str(api).lower().replace("_", ""))
        if name is None:
            raise ValueError(
                f"{api!r} is not offered here: {', '.join(sorted(API_NAMES.values()))} are"
            )
        if times is not None and not (isinstance(times, int) and times >= 1):
            raise ValueError(f"times must be at least 1, or None for all requests, got {times!r}")
        self._faults.append(Fault(api=name, times=times, apply=apply))
