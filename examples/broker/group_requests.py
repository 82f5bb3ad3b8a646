"""Requests about groups that wait for nothing: what they have committed, and what they look like from outside."""

from functools import cache
from typing import Any, Final

from .answers import Answer, ErrorCode, attempt, for_partitions, refuse_if
from .coordinator import Coordinator
from .groups import Group, State
from .kept import Change
from .records import refuse_transactions
from .topics import Topics
from .wire import Request

NOTHING: Final = (-1, -1, "")  # in place of an offset, the leader's epoch that the consumer saw, and what it noted down


class GroupRequests:
    """Answers at once."""

    def __init__(self, coordinator: Coordinator, topics: Topics) -> None:
        self.coordinator, self.topics = coordinator, topics
        self.groups, self.kept = coordinator.groups, coordinator.kept

    # -- offsets

    def offset_commit(self, request: Request) -> Answer:
        """A member has come so far; or somebody who is in no group, while the group is empty."""
        body, changes = request.body, list[Change]()
        committer = cache(lambda: self._committer(body))

        def commit(name: str, wanted: Any) -> None:
            group, note = committer(), wanted.committed_metadata or ""
            self.topics.partition(name, wanted.index)
            place = group.group_id, name, wanted.index
            changes.append(("offsets", place, (wanted.committed_offset, wanted.committed_leader_epoch, note)))

        answer = for_partitions(body.topics, commit)
        self.kept.change(*changes)
        return answer

    def _committer(self, body: Any) -> Group:
        generation = body.generation_id_or_member_epoch
        if generation < 0 and not body.member_id:
            refuse_if(not body.group_id, ErrorCode.invalid_group_id)
            group = self.groups.setdefault(body.group_id, Group(body.group_id))
            refuse_if(group.members, ErrorCode.unknown_member_id)
            return group
        refuse_if(body.group_id not in self.groups, ErrorCode.illegal_generation)
        group, member = self.coordinator.member(body, generation)
        refuse_if(group.state is State.COMPLETING, ErrorCode.rebalance_in_progress)
        self.coordinator.expect(group, member)
        return group

    def offset_fetch(self, request: Request) -> Answer:
        """How far a group has come; -1 where it has committed nothing. Cost: looks through all offsets if it asks for all."""
        body, table = request.body, self.kept.tables["offsets"]
        if body.topics is None:
            places = [place[1:] for place in table if place[0] == body.group_id]
        else:
            places = [(topic.name, index) for topic in body.topics for index in topic.partitions]
        topics: dict[Any, list[Answer]] = {}
        for name, index in places:
            offset, epoch, note = table.get((body.group_id, name, index), NOTHING)
            part = {"index": index, "committed_offset": offset, "committed_leader_epoch": epoch, "metadata": note}
            topics.setdefault(name, []).append(part)
        return {"topics": [{"name": name, "partitions": parts} for name, parts in topics.items()]}

    # -- groups as seen from outside

    def find_coordinator(self, request: Request) -> Answer:
        """It is here. Transactions have none."""
        refuse_transactions(request.body.key if request.body.key_type else None)
        return {"node_id": 0, "host": request.here[0], "port": request.here[1]}

    def describe_groups(self, request: Request) -> Answer:
        """Who is in some groups; of one that is not there, that it is dead."""
        groups, dead = self.groups, {"group_state": "Dead"}
        names = request.body.groups
        return {"groups": [groups[name].described() if name in groups else dead | {"group_id": name} for name in names]}

    def list_groups(self, request: Request) -> Answer:
        """Which groups there are, or those in certain states."""
        states = {state.lower() for state in request.body.states_filter}
        groups = [group.described() for group in self.groups.values()]
        return {"groups": [group for group in groups if not states or group["group_state"].lower() in states]}

    def delete_groups(self, request: Request) -> Answer:
        """Deletes groups that are empty, with their offsets."""

        def delete(name: str) -> None:
            refuse_if(name not in self.groups, ErrorCode.group_id_not_found)
            refuse_if(self.groups[name].state is not State.EMPTY, ErrorCode.non_empty_group)
            del self.groups[name]
            self.kept.change(("groups", (name,), None))
            self.coordinator.forget_offsets(lambda place: place[0] == name)

        return {"results": [{"group_id": name} | attempt(delete, name) for name in request.body.groups_names]}
