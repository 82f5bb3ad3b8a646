"""The group coordinator: how members join, get their assignment, send heartbeats, and leave.

For each group one operation waits for joins and one for syncs; the members only keep the callback
of their request. For each member one operation waits for its next heartbeat.
"""

import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, Final
from uuid import uuid4

from purgatory import Purgatory

from .group_operations import DelayedHeartbeat, DelayedJoin, DelayedSync, InitialJoin
from .groups import Group, Member, State
from .metadata_log import Key, MetadataLog
from .responses import ApiError, ErrorCode, Response, attempt, raise_if
from .settings import Settings
from .wire import Request

MAX_SESSION_TIMEOUT: Final = 1800.0  # seconds; Kafka's group.max.session.timeout.ms
MAX_REBALANCES: Final = 10_000  # their durations are kept


class Coordinator:
    """All groups.

    Args:
        metadata_log: has the state that survives a restart: the members of each group, and the
            offsets, by group, topic and partition.

    Attributes:
        rebalances: the durations of the last ones in seconds, from the first join to the
            assignment.
    """

    def __init__(self, settings: Settings, metadata_log: MetadataLog) -> None:
        self.settings, self.metadata_log = settings, metadata_log
        self.joins: Purgatory[InitialJoin | DelayedJoin] = Purgatory("join")
        self.syncs: Purgatory[DelayedSync] = Purgatory("sync")
        self.heartbeats: Purgatory[DelayedHeartbeat] = Purgatory("heartbeat")
        tables = metadata_log.tables
        self.groups = {
            str(name): Group.from_metadata(str(name), value)
            for (name,), value in tables["groups"].items()
        }
        for name in {str(key[0]) for key in tables["offsets"]} - set(self.groups):
            self.groups[name] = Group(group_id=name)
        self.rebalances: deque[float] = deque(maxlen=MAX_REBALANCES)

    def start(self) -> None:
        """Expects heartbeats from the members that there were before a restart."""
        for group in self.groups.values():
            for member in group.members.values():
                self.expect_heartbeat(group, member)

    def save(self, group: Group) -> None:
        """Writes the members of a group to the metadata log. If it cannot be written, they are not
        there after a restart."""
        with suppress(OSError):  # the log has it
            self.metadata_log.append(("groups", (group.group_id,), group.to_metadata()))

    def delete_offsets(self, which: Callable[[Key], bool]) -> None:
        """Deletes the committed offsets of a deleted group or topic, so that a new one starts
        without any."""
        self.metadata_log.append(
            *[("offsets", key, None) for key in self.metadata_log.tables["offsets"] if which(key)]
        )

    def delete_group(self, group: Group) -> None:
        """Deletes a group and its offsets. Its members get no response."""
        del self.groups[group.group_id]
        self.metadata_log.append(("groups", (group.group_id,), None))
        self.delete_offsets(lambda key: key[0] == group.group_id)
        for member_id in list(group.heartbeats):
            self.cancel_heartbeat(group, member_id)
        for purgatory in (self.joins, self.syncs):
            purgatory.cancel_for_key(group.group_id)

    def clear(self) -> None:
        """Deletes all groups and offsets."""
        for group in list(self.groups.values()):
            self.delete_group(group)

    def ensure_group(self, name: str) -> Group:
        """The group of this name, which is created if it does not exist."""
        return self.groups.setdefault(name, Group(group_id=name))

    def check_transactional_commit(self, body: Any) -> None:
        """Raises `ApiError` if a producer commits for an unknown member, or one of an earlier
        generation."""
        group, is_of_member = (
            self.groups.get(body.group_id),
            body.member_id or body.group_instance_id is not None,
        )
        if body.generation_id >= 0:
            raise_if(group is None, ErrorCode.illegal_generation)
            self.member(body, body.generation_id)
        elif is_of_member and group is not None and group.state is not State.EMPTY:
            self.member(body, body.generation_id)

    def member(self, body: Any, generation: int | None = None) -> tuple[Group, Member]:
        """The group and the member that have sent a request, perhaps of a certain generation.

        Raises:
            ApiError: there is no such member, another one has its static name by now, or the
                generation is over.
        """
        group = self.groups.get(body.group_id) or Group(group_id=body.group_id)
        member, instance = group.members.get(body.member_id), body.group_instance_id
        raise_if(group.static_member(instance) not in (None, member), ErrorCode.fenced_instance_id)
        if member is None or instance not in (None, member.group_instance_id):
            raise ApiError(ErrorCode.unknown_member_id)
        raise_if(generation not in (None, group.generation_id), ErrorCode.illegal_generation)
        return group, member

    def _respond(self, group: Group, member: Member, response: Response) -> None:
        """Responds to the request for which a member waits, if any. Its heartbeats are expected
        again."""
        respond, member.respond = member.respond, None
        if respond is not None:
            respond(response)
            self.expect_heartbeat(group, member)

    # -- joining

    def join_group(self, request: Request) -> Response | None:
        """Responds when all have joined."""
        body, protocols = (
            request.body,
            {protocol.name: protocol.metadata for protocol in request.body.protocols},
        )
        raise_if(not body.group_id, ErrorCode.invalid_group_id)
        is_possible = (
            self.settings.min_session_timeout <= body.session_timeout <= MAX_SESSION_TIMEOUT
        )
        raise_if(not is_possible, ErrorCode.invalid_session_timeout)
        raise_if(body.member_id and body.group_id not in self.groups, ErrorCode.unknown_member_id)
        group = self.ensure_group(body.group_id)
        is_supported = (
            protocols
            and body.protocol_type
            and group.supports(body.protocol_type, protocols, body.member_id)
        )
        raise_if(not is_supported, ErrorCode.inconsistent_group_protocol)
        member_id = body.member_id or f"{body.group_instance_id or request.client_id}-{uuid4()}"
        member = Member(
            member_id=member_id,
            group_instance_id=body.group_instance_id,
            client_id=request.client_id,
            client_host=request.peer[0],
            session_timeout=body.session_timeout,
            rebalance_timeout=body.rebalance_timeout
            if body.rebalance_timeout >= 0
            else body.session_timeout,
            protocols=protocols,
            respond=request.respond,
        )
        response = self._join(group, member, request)
        self.joins.check_and_complete(group.group_id)
        return response

    def _join(self, group: Group, member: Member, request: Request) -> Response | None:
        """Adds a member or updates it, and starts a rebalance; returns a response if it is not to
        wait."""
        static_member = group.static_member(member.group_instance_id)
        if request.body.member_id and member.member_id not in group.pending_members:
            _, before = self.member(request.body)
            if member.protocols == before.protocols and (
                group.state is State.COMPLETING
                or (group.state is State.STABLE and member.member_id != group.leader)
            ):
                return group.join_response(before)  # the last response was lost
            member.group_instance_id = (
                before.group_instance_id
            )  # which old versions of the request lack
        elif static_member is not None:
            self._replace(group, static_member, member)
            return None
        elif (
            not request.body.member_id and member.group_instance_id is None and request.version >= 4
        ):
            # The client joins once more with this id, so that a lost response leaves no member
            # behind.
            group.pending_members.add(member.member_id)
            self.expect_heartbeat(group, member)
            return {"error_code": ErrorCode.member_id_required, "member_id": member.member_id}
        else:
            group.pending_members.discard(member.member_id)
            group.protocol_type = request.body.protocol_type
            group.new_member_added = True
        self._rebalance(group, member)
        return None

    def _replace(self, group: Group, old: Member, new: Member) -> None:
        """A static member is back under a new id. There is no rebalance unless the group selects
        another protocol with what it supports now."""
        is_leader, new.assignment = group.leader == old.member_id, old.assignment
        self._respond(group, old, {"error_code": ErrorCode.fenced_instance_id})
        group.remove(old)
        self.cancel_heartbeat(group, old.member_id)
        group.leader = new.member_id if is_leader else group.leader
        if group.state is not State.STABLE:
            self._rebalance(group, new)
            return
        group.add(new)
        if group.select_protocol() != group.protocol_name:
            self._rebalance(group, new)
            return
        self.save(group)
        # A member that knows that it is the leader would assign partitions anew, and no other
        # member would get that assignment.
        self._respond(
            group,
            new,
            group.join_response(new)
            | ({"leader": old.member_id, "members": []} if is_leader else {}),
        )

    def _rebalance(self, group: Group, member: Member | None = None) -> None:
        """Starts a rebalance, unless there is one. A member that joins starts it, and then
        waits."""
        if group.state is State.COMPLETING:
            for other in group.members.values():
                self._respond(group, other, {"error_code": ErrorCode.rebalance_in_progress})
        if member is not None:
            group.add(member)
            self.cancel_heartbeat(group, member.member_id)
        if group.state is State.PREPARING:
            return
        group.new_member_added = group.state is State.EMPTY
        group.state, group.rebalance_began = State.PREPARING, time.monotonic()
        group.initial_join_left = group.rebalance_timeout
        group.pending_sync.clear()
        self.syncs.check_and_complete(group.group_id)
        if group.new_member_added:
            self.continue_initial_join(group)
        else:
            self._wait_for_joins(group)

    def continue_initial_join(self, group: Group) -> None:
        """Waits for more members of a group that was empty; once more if one has joined during the
        last wait."""
        if not group.new_member_added or group.initial_join_left <= 0:
            self.complete_join(group)
            return
        delay = min(self.settings.rebalance_delay, group.initial_join_left)
        group.new_member_added, group.initial_join_left = False, group.initial_join_left - delay
        self.joins.try_complete_else_watch(
            InitialJoin(group, delay, self.continue_initial_join), [group.group_id]
        )

    def _wait_for_joins(self, group: Group) -> None:
        self.joins.try_complete_else_watch(
            DelayedJoin(group, group.rebalance_timeout, self.complete_join), [group.group_id]
        )

    def complete_join(self, group: Group) -> None:
        """Makes the members that have joined the next generation of the group."""
        if group.state is not State.PREPARING:
            return
        for member in list(group.members.values()):
            if member.respond is None and member.group_instance_id is None:
                group.remove(member)
                self.cancel_heartbeat(group, member.member_id)
        joined = [member for member in group.members.values() if member.respond is not None]
        if (
            group.members and not joined
        ):  # only static members are left: they have until the end of their session
            self._wait_for_joins(group)
            return
        if joined and group.leader not in [member.member_id for member in joined]:
            group.leader = joined[0].member_id
        group.next_generation()
        if not group.members:
            self.save(group)
            return
        for member in joined:
            self._respond(group, member, group.join_response(member))
        operation = DelayedSync(group, group.rebalance_timeout, self.remove_pending_sync)
        self.syncs.try_complete_else_watch(operation, [group.group_id])

    # -- the assignment

    def sync_group(self, request: Request) -> None:
        """Responds when the leader has sent the assignment."""
        body = request.body
        group, member = self.member(body, body.generation_id)
        raise_if(group.state is State.PREPARING, ErrorCode.rebalance_in_progress)
        raise_if(
            body.protocol_type not in (None, group.protocol_type),
            ErrorCode.inconsistent_group_protocol,
        )
        raise_if(
            body.protocol_name not in (None, group.protocol_name),
            ErrorCode.inconsistent_group_protocol,
        )
        group.pending_sync.discard(member.member_id)
        member.respond = request.respond
        self.cancel_heartbeat(group, member.member_id)
        if group.state is State.COMPLETING and member.member_id == group.leader:
            assignments = {assigned.member_id: assigned.assignment for assigned in body.assignments}
            for other in group.members.values():
                other.assignment = assignments.get(other.member_id, b"")
            group.state = State.STABLE
            self.rebalances.append(time.monotonic() - group.rebalance_began)
            self.save(group)
        if group.state is State.STABLE:
            for other in group.members.values():
                self._respond(group, other, group.sync_response(other))
        self.syncs.check_and_complete(group.group_id)

    def remove_pending_sync(self, group: Group) -> None:
        """Removes the members that have not sent their sync in time."""
        for member_id in list(group.pending_sync):
            self.remove(group, member_id)

    # -- heartbeats

    def heartbeat(self, request: Request) -> Response:
        """The response shows the member whether there is a rebalance."""
        group, member = self.member(request.body, request.body.generation_id)
        self.expect_heartbeat(group, member)
        return {
            "error_code": ErrorCode.rebalance_in_progress
            if group.state is State.PREPARING
            else ErrorCode.none
        }

    def expect_heartbeat(self, group: Group, member: Member) -> None:
        """A member has sent a request. The next one is due within its session timeout."""
        self.cancel_heartbeat(group, member.member_id)
        operation = group.heartbeats[member.member_id] = DelayedHeartbeat(
            group, member, self.remove
        )
        self.heartbeats.try_complete_else_watch(operation, [(group.group_id, member.member_id)])

    def cancel_heartbeat(self, group: Group, member_id: str) -> None:
        """Expects no heartbeats of a member: it waits for a response, or has left."""
        group.heartbeats.pop(member_id, None)
        self.heartbeats.check_and_complete((group.group_id, member_id))

    # -- leaving

    def leave_group(self, request: Request) -> Response:
        """Removes members; a static one at the request of an administrator, too."""
        body = request.body
        if request.version < 3:  # has fields for one member, and no list
            return attempt(self._leave, body.group_id, body.member_id, None)
        left = [
            {"member_id": who.member_id, "group_instance_id": who.group_instance_id}
            | attempt(self._leave, body.group_id, who.member_id, who.group_instance_id)
            for who in body.members
        ]
        return {"members": left}

    def _leave(self, group_id: str, member_id: str, instance: str | None) -> None:
        group = self.groups.get(group_id) or Group(group_id=group_id)
        if not member_id and (static_member := group.static_member(instance)) is not None:
            member_id = static_member.member_id
        if member_id not in group.pending_members:
            self.member(
                SimpleNamespace(group_id=group_id, member_id=member_id, group_instance_id=instance)
            )
        self.remove(group, member_id)

    def remove(self, group: Group, member_id: str) -> None:
        """Removes a member or a pending one."""
        member = group.members.get(member_id)
        if member is not None:
            self._respond(group, member, {"error_code": ErrorCode.unknown_member_id})
            group.remove(member)
        group.pending_members.discard(member_id)
        self.cancel_heartbeat(group, member_id)
        if member is not None and group.state in (State.STABLE, State.COMPLETING):
            self._rebalance(group)
        self.joins.check_and_complete(group.group_id)
