"""Requests about groups that never wait: committed offsets, and groups as administrators see
them."""

import logging
import struct
from functools import cache
from typing import Any, Final

from .codec import STRING, Frame, Malformed
from .coordinator import Coordinator
from .groups import Group, State
from .logs import printable
from .metadata_log import Change
from .replicas import LEADER
from .responses import ApiError, ErrorCode, Response, attempt, for_partitions, raise_if
from .topics import Topics
from .transactions import Transactions
from .wire import Request

logger: Final = logging.getLogger("purgatory_broker")

CONSUMER: Final = "consumer"  # the protocol type of consumers; connectors have another one
NO_OFFSET: Final = (-1, -1, "")  # instead of an offset, the leader's epoch and the metadata


def subscribed_topics(subscription: bytes) -> set[str]:
    """The topics of a consumer's subscription; empty for other bytes."""
    frame = Frame(subscription)
    try:
        (count,) = struct.unpack_from(">i", frame, 2)  # after the version
        topics, at = set[str](), 6
        for _ in range(count):
            topic, at = STRING.read(frame, at)
            topics.add(topic)
    except (Malformed, IndexError, struct.error, UnicodeDecodeError):
        return set()
    return topics


class GroupRequests:
    """The handlers."""

    def __init__(
        self, coordinator: Coordinator, topics: Topics, transactions: Transactions
    ) -> None:
        self.coordinator, self.topics, self.transactions = coordinator, topics, transactions
        self.groups, self.metadata_log = coordinator.groups, coordinator.metadata_log

    # -- offsets

    def offset_commit(self, request: Request) -> Response:
        """Commits offsets of a member, or of a client outside the group while the group is
        empty."""
        body, changes = request.body, list[Change]()
        committing_group = cache(lambda: self._committing_group(body))

        def commit(name: str, wanted: Any) -> None:
            group = committing_group()
            self.topics.partition(name, wanted.index)
            value = (
                wanted.committed_offset,
                wanted.committed_leader_epoch,
                wanted.committed_metadata or "",
            )
            changes.append(("offsets", (group.group_id, name, wanted.index), value))

        response = for_partitions(body.topics, commit)
        try:
            self.metadata_log.append(*changes)
            self.transactions.discard_offsets({key for _, key, _ in changes}.__contains__)
        except OSError:  # as in Kafka, where clients find the coordinator anew and try again
            return for_partitions(body.topics, lambda *_: {"error_code": ErrorCode.not_coordinator})
        return response

    def _committing_group(self, body: Any) -> Group:
        generation = body.generation_id_or_member_epoch
        if generation < 0 and not body.member_id:
            raise_if(not body.group_id, ErrorCode.invalid_group_id)
            group = self.coordinator.ensure_group(body.group_id)
            raise_if(group.members, ErrorCode.unknown_member_id)
            return group
        raise_if(body.group_id not in self.groups, ErrorCode.illegal_generation)
        group, member = self.coordinator.member(body, generation)
        raise_if(group.state is State.COMPLETING, ErrorCode.rebalance_in_progress)
        self.coordinator.expect_heartbeat(group, member)
        return group

    def offset_fetch(self, request: Request) -> Response:
        """The committed offsets, -1 without one. Cost: a request for all iterates over the offsets
        of all groups."""
        body, table = request.body, self.metadata_log.tables["offsets"]
        if body.topics is None:
            partitions = [key[1:] for key in table if key[0] == body.group_id]
        else:
            partitions = [
                (topic.name, index) for topic in body.topics for index in topic.partitions
            ]
        topics: dict[Any, list[Response]] = {}
        for name, index in partitions:
            offset, epoch, metadata = table.get((body.group_id, name, index), NO_OFFSET)
            entry = {
                "index": index,
                "committed_offset": offset,
                "committed_leader_epoch": epoch,
                "metadata": metadata,
            }
            if body.require_stable and self.transactions.unstable((body.group_id, name, index)):
                entry = {
                    "index": index,
                    "committed_offset": -1,
                    "error_code": ErrorCode.unstable_offset_commit,
                }
            topics.setdefault(name, []).append(entry)
        return {
            "topics": [{"name": name, "partitions": entries} for name, entries in topics.items()]
        }

    def offset_delete(self, request: Request) -> Response:
        """Deletes committed offsets, except of topics to which a member is subscribed."""
        body, table = request.body, self.metadata_log.tables["offsets"]
        group = self.groups.get(body.group_id)
        if group is None:
            raise ApiError(ErrorCode.group_id_not_found)
        raise_if(group.members and group.protocol_type != CONSUMER, ErrorCode.non_empty_group)
        subscriptions = [
            protocol for member in group.members.values() for protocol in member.protocols.values()
        ]
        subscribed = {
            topic for subscription in subscriptions for topic in subscribed_topics(subscription)
        }

        def delete(name: str, wanted: Any) -> None:
            raise_if(name in subscribed, ErrorCode.group_subscribed_to_topic)
            self.topics.partition(name, wanted.index)
            if (key := (group.group_id, name, wanted.index)) in table:
                self.metadata_log.append(("offsets", key, None))

        return for_partitions(body.topics, delete)

    def consumer_group_heartbeat(self, request: Request) -> Response:
        """The group protocol of KIP-848 is refused as by a Kafka that has it switched off."""
        message = (
            "client %s of group %s uses the group protocol of KIP-848, which is not served: "
            "group.protocol has to be classic"
        )
        client, group = printable(request.client_id), printable(request.body.group_id)
        logger.warning(message, client, group)
        raise ApiError(ErrorCode.unsupported_version, message % (client, group))

    # -- groups as administrators see them

    def find_coordinator(self, request: Request) -> Response:
        """This broker coordinates all groups and all transactions."""
        return {"node_id": LEADER, "host": request.address[0], "port": request.address[1]}

    def describe_groups(self, request: Request) -> Response:
        """The members of groups; the state of an unknown group is Dead."""
        groups, dead = self.groups, {"group_state": "Dead"}
        names = request.body.groups
        return {
            "groups": [
                groups[name].description() if name in groups else dead | {"group_id": name}
                for name in names
            ]
        }

    def list_groups(self, request: Request) -> Response:
        """All groups, or the groups in certain states."""
        states = {state.lower() for state in request.body.states_filter}
        groups = [group.description() for group in self.groups.values()]
        return {
            "groups": [
                group for group in groups if not states or group["group_state"].lower() in states
            ]
        }

    def delete_groups(self, request: Request) -> Response:
        """Deletes empty groups and their offsets."""

        def delete(name: str) -> None:
            raise_if(name not in self.groups, ErrorCode.group_id_not_found)
            raise_if(self.groups[name].state is not State.EMPTY, ErrorCode.non_empty_group)
            self.coordinator.delete_group(self.groups[name])
            self.transactions.discard_offsets(lambda key: key[0] == name)

        return {
            "results": [
                {"group_id": name} | attempt(delete, name) for name in request.body.groups_names
            ]
        }
