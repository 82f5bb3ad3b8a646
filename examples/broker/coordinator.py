"""The group coordinator: the requests of groups and of their members.

One operation a group waits for joins, and one for syncs; members only keep how to answer them. One operation a member waits for
its next sign of life.
"""

import time
from collections import deque
from typing import Any, Final
from uuid import uuid4

from kio.schema.errors import ErrorCode

from purgatory import Purgatory

from .codec import Answer
from .group_waits import DelayedHeartbeat, DelayedJoin, DelayedSync, InitialJoin
from .groups import Group, Member, State, failed_join
from .offsets import Offsets
from .topics import Refused
from .waits import Reply
from .wire import Request

LONGEST_SESSION: Final = 1800.0  # seconds; Kafka's group.max.session.timeout.ms
FIRST_JOIN: Final = 300.0  # seconds for which a new member may wait for its group
REMEMBERED: Final = 10_000  # rebalances


class Coordinator:
    """All groups.

    Args:
        delay: seconds for which the first join of an empty group waits for more.
        shortest_session: the shortest session timeout that a member may ask for, in seconds.

    Attributes:
        rebalances: how long the last ones have taken, in seconds, from the first sign to the assignment.
    """

    def __init__(self, offsets: Offsets, delay: float, shortest_session: float) -> None:
        self.offsets, self.delay, self.shortest_session = offsets, delay, shortest_session
        self.joins: Purgatory[DelayedJoin] = Purgatory("join")
        self.syncs: Purgatory[DelayedSync] = Purgatory("sync")
        self.heartbeats: Purgatory[DelayedHeartbeat] = Purgatory("heartbeat")
        self.groups = {name: Group.restored(name, saved) for name, saved in offsets.members.items()}
        for name in offsets.by_group:
            self.groups.setdefault(name, Group(name))
        self.rebalances: deque[float] = deque(maxlen=REMEMBERED)

    def start(self) -> None:
        """Begins to wait for the members that were there before a restart."""
        for group in self.groups.values():
            for member in group.members.values():
                self.expect(group, member)

    # -- joining

    def join_group(self, request: Request, reply: Reply) -> None:
        """Answered when all have joined; with an error at once."""
        try:
            self._join(request, reply)
        except Refused as error:
            reply(failed_join(error.code, request.body.member_id))

    def _join(self, request: Request, reply: Reply) -> None:
        body = request.body
        session = body.session_timeout
        if not body.group_id:
            raise Refused(ErrorCode.invalid_group_id)
        if not self.shortest_session <= session <= LONGEST_SESSION:
            raise Refused(ErrorCode.invalid_session_timeout)
        group = self.groups.get(body.group_id)
        if group is None:
            if body.member_id:
                raise Refused(ErrorCode.unknown_member_id)
            group = self.groups[body.group_id] = Group(body.group_id)
        names = [protocol.name for protocol in body.protocols]
        if not names or not body.protocol_type or not group.accepts(body.protocol_type, names, body.member_id):
            raise Refused(ErrorCode.inconsistent_group_protocol)
        if body.member_id:
            self._join_known(group, request, reply)
        else:
            self._join_new(group, request, reply)
        self.joins.check_and_complete(group.id)

    def _join_new(self, group: Group, request: Request, reply: Reply) -> None:
        body = request.body
        member_id = f"{body.group_instance_id or request.client_id}-{uuid4()}"
        if body.group_instance_id is not None:
            if (old := group.static(body.group_instance_id)) is not None:
                self._replace(group, old, member_id, request, reply)
            else:
                self._add(group, member_id, request, reply)
        elif request.version >= 4:  # it is to join once more with this id, so that none is left behind if the answer is lost
            group.promised.add(member_id)
            self._expect_for(group, member_id, body.session_timeout)
            reply(failed_join(ErrorCode.member_id_required, member_id))
        else:
            self._add(group, member_id, request, reply)

    def _join_known(self, group: Group, request: Request, reply: Reply) -> None:
        body = request.body
        if body.member_id in group.promised:
            self._add(group, body.member_id, request, reply)
            return
        member = self.member(group, body.member_id, body.group_instance_id)
        protocols = {protocol.name: protocol.metadata for protocol in body.protocols}
        is_same = protocols == member.protocols
        if (group.state is State.COMPLETING and is_same) or (
            group.state is State.STABLE and is_same and member.id != group.leader
        ):
            reply(group.joined(member))  # it has not got our answer
            return
        self._update(member, request, reply)
        self._rebalance(group)
        self.heartbeats.check_and_complete((group.id, member.id))

    def _add(self, group: Group, member_id: str, request: Request, reply: Reply) -> None:
        group.promised.discard(member_id)
        member = Member(member_id, request.body.group_instance_id, request.client_id, f"/{request.peer[0]}")
        if not group.members:
            group.protocol_type = request.body.protocol_type
        group.has_newcomers = True
        self._update(member, request, reply)
        group.add(member)
        self._expect_for(group, member_id, FIRST_JOIN)
        self._rebalance(group)

    def _update(self, member: Member, request: Request, reply: Reply) -> None:
        body = request.body
        member.session_timeout = body.session_timeout
        rebalance = body.rebalance_timeout
        member.rebalance_timeout = rebalance if rebalance >= 0 else member.session_timeout
        member.protocols = {protocol.name: protocol.metadata for protocol in body.protocols}
        member.join = reply

    def _replace(self, group: Group, old: Member, member_id: str, request: Request, reply: Reply) -> None:
        """A static member is back under a new id. While nothing else has changed, nobody is bothered."""
        fenced = {"error_code": ErrorCode.fenced_instance_id}
        self._answer_join(old, failed_join(ErrorCode.fenced_instance_id, old.id))
        self._answer_sync(old, fenced)
        is_leader, before = group.leader == old.id, old.protocols
        group.remove(old)
        self.heartbeats.check_and_complete((group.id, old.id))
        member = Member(member_id, old.instance, request.client_id, f"/{request.peer[0]}")
        member.assignment, member.is_new = old.assignment, False
        self._update(member, request, reply)
        group.add(member)
        if is_leader:
            group.leader = member.id
        if group.state is State.STABLE and member.protocols == before:
            answer = group.joined(member)
            if is_leader:  # or it would assign partitions anew, and nobody else would hear of it
                answer |= {"leader": old.id, "members": []}
            self._answer_join(member, answer)
            self._keep(group)
        else:
            self._rebalance(group)
        self.expect(group, member)

    def _rebalance(self, group: Group) -> None:
        """All are to join again, unless they are about to."""
        if group.state is State.PREPARING:
            return
        if group.state is State.COMPLETING:
            for member in group.members.values():
                self._answer_sync(member, {"error_code": ErrorCode.rebalance_in_progress})
                self.expect(group, member)
        was_empty = group.state is State.EMPTY
        group.begin_rebalance()
        self.syncs.check_and_complete(group.id)
        timeout = group.rebalance_timeout
        join = InitialJoin(self, group, self.delay, timeout - self.delay) if was_empty else DelayedJoin(self, group, timeout)
        group.has_newcomers = False
        self.joins.try_complete_else_watch(join, [group.id])

    def wait_longer(self, group: Group, left: float) -> None:
        """Somebody has come while the first join of a group waited: it waits once more."""
        group.has_newcomers = False
        delay = min(self.delay, left)
        self.joins.try_complete_else_watch(InitialJoin(self, group, delay, left - delay), [group.id])

    def all_joined(self, group: Group) -> None:
        """The group goes on with those who have joined, in a new generation."""
        if group.state is not State.PREPARING:
            return
        for member in [member for member in group.members.values() if member.join is None and member.instance is None]:
            group.remove(member)
            self.heartbeats.check_and_complete((group.id, member.id))
        joined = [member.id for member in group.members.values() if member.join is not None]
        if group.members and not joined:  # static members have until the end of their session
            self.joins.try_complete_else_watch(DelayedJoin(self, group, group.rebalance_timeout), [group.id])
            return
        if group.members and group.leader not in joined:
            group.leader = joined[0]
        group.next_generation()
        if not group.members:
            self._keep(group)
            return
        group.unsynced.update(group.members)
        for member in list(group.members.values()):
            member.is_new = False
            self._answer_join(member, group.joined(member))
            self.expect(group, member)
        self.syncs.try_complete_else_watch(DelayedSync(self, group, group.rebalance_timeout), [group.id])

    # -- the assignment

    def sync_group(self, request: Request, reply: Reply) -> None:
        """Answered when the leader has brought the assignment; with an error at once."""
        body = request.body
        try:
            group = self._group(body.group_id)
            member = self.member(group, body.member_id, body.group_instance_id, body.generation_id)
            if group.state is State.PREPARING:
                raise Refused(ErrorCode.rebalance_in_progress)
            if body.protocol_type not in (None, group.protocol_type) or body.protocol_name not in (None, group.protocol):
                raise Refused(ErrorCode.inconsistent_group_protocol)
        except Refused as error:
            reply({"error_code": error.code})
            return
        group.unsynced.discard(member.id)
        member.sync = reply
        self.heartbeats.check_and_complete((group.id, member.id))
        if group.state is State.COMPLETING and member.id == group.leader:
            assignments = {assigned.member_id: assigned.assignment for assigned in body.assignments}
            for other in group.members.values():
                other.assignment = assignments.get(other.id, b"")
            group.state = State.STABLE
            self.rebalances.append(time.monotonic() - group.began)
            self._keep(group)
        if group.state is State.STABLE:
            for other in group.members.values():
                if other.sync is not None:
                    self._answer_sync(other, group.synced(other))
                    self.expect(group, other)
        self.syncs.check_and_complete(group.id)

    def not_synced(self, group: Group) -> None:
        """Members that did not ask in time are out."""
        for member_id in list(group.unsynced):
            self._remove(group, group.members[member_id])

    # -- signs of life

    def heartbeat(self, request: Request, reply: Reply) -> None:
        """A sign of life; the answer tells of a rebalance."""
        body = request.body
        error = ErrorCode.none
        try:
            group = self._group(body.group_id)
            member = self.member(group, body.member_id, body.group_instance_id, body.generation_id)
            self.expect(group, member)
            if group.state is State.PREPARING:
                error = ErrorCode.rebalance_in_progress
        except Refused as refused:
            error = refused.code
        reply({"error_code": error})

    def expect(self, group: Group, member: Member) -> None:
        """A member has given a sign of life, and is to give the next one within its session timeout."""
        member.heard += 1
        self._expect_for(group, member.id, member.session_timeout)

    def _expect_for(self, group: Group, member_id: str, timeout: float) -> None:
        key = (group.id, member_id)
        self.heartbeats.check_and_complete(key)
        self.heartbeats.try_complete_else_watch(DelayedHeartbeat(self, group, member_id, timeout), [key])

    def fell_silent(self, group: Group, member_id: str) -> None:
        """A member has given no sign of life: it is out."""
        if (member := group.members.get(member_id)) is not None:
            self._remove(group, member)
        else:
            group.promised.discard(member_id)
            self.joins.check_and_complete(group.id)

    def leave_group(self, request: Request, reply: Reply) -> None:
        """Members are out at their own wish, or, if they are static, at that of an administrator."""
        body = request.body
        errors = [self._leave(body.group_id, who) for who in body.members]
        members = [
            {"member_id": who.member_id, "group_instance_id": who.group_instance_id, "error_code": error}
            for who, error in zip(body.members, errors, strict=True)
        ]
        reply({"error_code": errors[0] if request.version < 3 else ErrorCode.none, "members": members})

    def _leave(self, group_id: str, who: Any) -> ErrorCode:
        try:
            group = self._group(group_id)
            if who.member_id in group.promised:
                self.fell_silent(group, who.member_id)
                return ErrorCode.none
            member = None if who.group_instance_id is None else group.static(who.group_instance_id)
            if member is None or who.member_id:
                member = self.member(group, who.member_id, who.group_instance_id)
            self._remove(group, member)
        except Refused as error:
            return error.code
        return ErrorCode.none

    def _remove(self, group: Group, member: Member) -> None:
        self._answer_join(member, failed_join(ErrorCode.unknown_member_id, member.id))
        self._answer_sync(member, {"error_code": ErrorCode.unknown_member_id})
        group.remove(member)
        self.heartbeats.check_and_complete((group.id, member.id))
        if group.state in (State.STABLE, State.COMPLETING):
            self._rebalance(group)
        self.joins.check_and_complete(group.id)

    # -- small things

    def _group(self, group_id: str) -> Group:
        if (group := self.groups.get(group_id)) is None:
            raise Refused(ErrorCode.unknown_member_id)
        return group

    def member(self, group: Group, member_id: str, instance: str | None, generation: int | None = None) -> Member:
        """A member of the group, which says which generation it means.

        Raises:
            Refused: it is none, its name belongs to another one by now, or that generation is over.
        """
        if instance is not None and (known := group.static(instance)) is not None and known.id != member_id:
            raise Refused(ErrorCode.fenced_instance_id)
        member = group.members.get(member_id)
        if member is None or (instance is not None and member.instance != instance):
            raise Refused(ErrorCode.unknown_member_id)
        if generation is not None and generation != group.generation:
            raise Refused(ErrorCode.illegal_generation)
        return member

    def _answer_join(self, member: Member, answer: Answer) -> None:
        reply, member.join = member.join, None
        if reply is not None:
            reply(answer)

    def _answer_sync(self, member: Member, answer: Answer) -> None:
        reply, member.sync = member.sync, None
        if reply is not None:
            reply(answer)

    def _keep(self, group: Group) -> None:
        self.offsets.keep_members(group.id, group.saved())
