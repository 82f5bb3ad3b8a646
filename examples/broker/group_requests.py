"""Requests about groups that wait for nothing: what they have committed, and what they look like from outside."""

from typing import Any, Final

from kio.schema.errors import ErrorCode

from .codec import Answer
from .coordinator import Coordinator
from .groups import Group, State
from .offsets import Committed
from .topics import Refused, Topics
from .waits import UNKNOWN, Reply, by_topic
from .wire import Request

LONGEST_NOTE: Final = 4096  # bytes that may be committed with an offset; Kafka's offset.metadata.max.bytes
NOTHING: Final = Committed(-1, -1, "")


class GroupRequests:
    """Answers at once."""

    def __init__(self, coordinator: Coordinator, topics: Topics) -> None:
        self.coordinator, self.topics = coordinator, topics
        self.groups, self.offsets = coordinator.groups, coordinator.offsets

    # -- offsets

    def offset_commit(self, request: Request, reply: Reply) -> None:
        """A member has come so far; or somebody who is in no group, while the group is empty."""
        body, refusal = request.body, ErrorCode.none
        try:
            group = self._committer(body)
        except Refused as error:
            group, refusal = None, error.code
        commits: dict[tuple[str, int], Committed] = {}

        def one(topic: str, wanted: Any) -> Answer:
            note, error = wanted.committed_metadata or "", ErrorCode.none
            if group is None:
                error = refusal
            elif self.topics.partition(topic, wanted.partition_index) is None:
                error = UNKNOWN
            elif len(note.encode()) > LONGEST_NOTE:
                error = ErrorCode.offset_metadata_too_large
            else:
                commits[topic, wanted.partition_index] = Committed(wanted.committed_offset, wanted.committed_leader_epoch, note)
            return {"partition_index": wanted.partition_index, "error_code": error}

        topics = [
            {"name": topic.name, "partitions": [one(topic.name, wanted) for wanted in topic.partitions]}
            for topic in body.topics
        ]
        if group is not None and commits:
            self.offsets.commit(group.id, commits)
        reply({"topics": topics})

    def _committer(self, body: Any) -> Group:
        group = self.groups.get(body.group_id)
        if body.generation_id_or_member_epoch < 0 and not body.member_id:
            if group is None:
                if not body.group_id:
                    raise Refused(ErrorCode.invalid_group_id)
                group = self.groups[body.group_id] = Group(body.group_id)
            if group.members:
                raise Refused(ErrorCode.unknown_member_id)
            return group
        if group is None:
            raise Refused(ErrorCode.illegal_generation)
        member = self.coordinator.member(group, body.member_id, body.group_instance_id, body.generation_id_or_member_epoch)
        if group.state is State.COMPLETING:
            raise Refused(ErrorCode.rebalance_in_progress)
        self.coordinator.expect(group, member)
        return group

    def offset_fetch(self, request: Request, reply: Reply) -> None:
        """How far a group has come; -1 where it has committed nothing."""
        body = request.body
        offsets = self.offsets.by_group.get(body.group_id, {})
        if body.topics is None:
            places = list(offsets)
        else:
            places = [(topic.name, index) for topic in body.topics for index in topic.partition_indexes]
        found = ((place, offsets.get(place, NOTHING)) for place in places)
        topics = by_topic(
            (
                name,
                {
                    "partition_index": index,
                    "committed_offset": committed.offset,
                    "committed_leader_epoch": committed.epoch,
                    "metadata": committed.note,
                },
            )
            for (name, index), committed in found
        )
        reply({"topics": [{"name": name, "partitions": parts} for name, parts in topics.items()]})

    # -- groups as seen from outside

    def find_coordinator(self, request: Request, reply: Reply) -> None:
        """It is here. Transactions have none."""
        if request.body.key_type != 0:
            error = ErrorCode.transactional_id_authorization_failed
            reply(
                {
                    "error_code": error,
                    "error_message": "transactions are not offered here",
                    "node_id": -1,
                    "host": "",
                    "port": -1,
                }
            )
        else:
            reply({"node_id": 0, "host": request.here[0], "port": request.here[1]})

    def describe_groups(self, request: Request, reply: Reply) -> None:
        """Who is in some groups; of one that is not there, that it is dead."""
        dead: Answer = {"group_state": "Dead"}
        found = [
            self.groups[name].described() if name in self.groups else dead | {"group_id": name} for name in request.body.groups
        ]
        reply({"groups": found})

    def list_groups(self, request: Request, reply: Reply) -> None:
        """Which groups there are, or those in certain states."""
        states = {state.lower() for state in request.body.states_filter}
        groups = [
            {"group_id": group.id, "protocol_type": group.protocol_type, "group_state": group.state.value}
            for group in self.groups.values()
            if not states or group.state.value.lower() in states
        ]
        reply({"groups": groups})

    def delete_groups(self, request: Request, reply: Reply) -> None:
        """Deletes groups that are empty, with their offsets."""
        results = []
        for name in request.body.groups_names:
            group = self.groups.get(name)
            if group is None:
                error = ErrorCode.group_id_not_found
            elif group.state is not State.EMPTY:
                error = ErrorCode.non_empty_group
            else:
                error = ErrorCode.none
                del self.groups[name]
                self.offsets.forget(name)
            results.append({"group_id": name, "error_code": error})
        reply({"results": results})
