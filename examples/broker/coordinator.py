"""The group coordinator: how members join, get their assignment, and fall silent.

One operation a group waits for joins, and one for syncs; members only keep how to answer them. One operation a member waits for
its next sign of life.
"""

import time
from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Final
from uuid import uuid4

from purgatory import Purgatory

from .answers import Answer, ErrorCode, Refused, Reply, attempt
from .group_waits import DelayedHeartbeat, DelayedJoin, DelayedSync, InitialJoin
from .groups import Group, Member, State
from .kept import Kept, Key
from .settings import Settings
from .wire import Request

LONGEST_SESSION: Final = 1800.0  # seconds; Kafka's group.max.session.timeout.ms
REMEMBERED: Final = 10_000  # rebalances


def protocols_of(request: Request) -> dict[str, bytes]:
    """How the sender of a join could assign partitions, and what it subscribes to."""
    return {protocol.name: protocol.metadata for protocol in request.body.protocols}


class Coordinator:
    """All groups.

    Args:
        kept: what survives a restart: the members of each group, and the offsets, by group, topic and partition.

    Attributes:
        rebalances: how long the last ones have taken, in seconds, from the first sign to the assignment.
    """

    def __init__(self, settings: Settings, kept: Kept) -> None:
        self.settings, self.kept = settings, kept
        self.joins: Purgatory[InitialJoin | DelayedJoin] = Purgatory("join")
        self.syncs: Purgatory[DelayedSync] = Purgatory("sync")
        self.heartbeats: Purgatory[DelayedHeartbeat] = Purgatory("heartbeat")
        self.groups = {str(name): Group.restored(str(name), saved) for (name,), saved in kept.tables["groups"].items()}
        for name in {str(place[0]) for place in kept.tables["offsets"]} - set(self.groups):
            self.groups[name] = Group(name)
        self.rebalances: deque[float] = deque(maxlen=REMEMBERED)

    def start(self) -> None:
        """Begins to wait for the members that were there before a restart."""
        for group in self.groups.values():
            for member in group.members.values():
                self.expect(group, member)

    def keep(self, group: Group) -> None:
        """Writes down who is in a group."""
        self.kept.change(("groups", (group.group_id,), group.saved()))

    def forget_offsets(self, which: Callable[[Key], bool]) -> None:
        """Offsets are gone: those of a deleted group, or of a topic, so that one in its place begins anew."""
        self.kept.change(*[("offsets", place, None) for place in self.kept.tables["offsets"] if which(place)])

    def member(self, body: Any, generation: int | None = None) -> tuple[Group, Member]:
        """The group and the member that a request says it is from, and perhaps of which generation.

        Raises:
            Refused: there is no such member, its name belongs to another one by now, or that generation is over.
        """
        group = self.groups.get(body.group_id)
        if group is None:
            raise Refused(ErrorCode.unknown_member_id)
        member, instance = group.members.get(body.member_id), body.group_instance_id
        if group.static(instance) not in (None, member):
            raise Refused(ErrorCode.fenced_instance_id)
        if member is None or instance not in (None, member.group_instance_id):
            raise Refused(ErrorCode.unknown_member_id)
        if generation not in (None, group.generation_id):
            raise Refused(ErrorCode.illegal_generation)
        return group, member

    def _answer(self, group: Group, member: Member, answer: Answer) -> None:
        """Answers what a member waits for, if anything; now it is to give signs of life again."""
        reply, member.reply = member.reply, None
        if reply is not None:
            reply(answer)
            self.expect(group, member)

    # -- joining

    def join_group(self, request: Request) -> Answer | None:
        """Answered when all have joined."""
        body = request.body
        if not body.group_id:
            raise Refused(ErrorCode.invalid_group_id)
        if not self.settings.shortest_session <= body.session_timeout <= LONGEST_SESSION:
            raise Refused(ErrorCode.invalid_session_timeout)
        group = self.groups.get(body.group_id)
        if group is None:
            if body.member_id:
                raise Refused(ErrorCode.unknown_member_id)
            group = self.groups[body.group_id] = Group(body.group_id)
        names = protocols_of(request)
        if not names or not body.protocol_type or not group.accepts(body.protocol_type, names, body.member_id):
            raise Refused(ErrorCode.inconsistent_group_protocol)
        answer = self._join(group, request)
        self.joins.check_and_complete(group.group_id)
        return answer

    def _join(self, group: Group, request: Request) -> Answer | None:
        body, known = request.body, group.static(request.body.group_instance_id)
        new_id = body.member_id or f"{body.group_instance_id or request.client_id}-{uuid4()}"
        if body.member_id and new_id not in group.promised:
            _, member = self.member(body)
            if protocols_of(request) == member.protocols and (
                group.state is State.COMPLETING or (group.state is State.STABLE and new_id != group.leader)
            ):
                return group.joined(member)  # it has not got our answer
            self._take(group, member, request)
        elif known is not None:
            return self._replace(group, known, new_id, request)
        elif not body.member_id and body.group_instance_id is None and request.version >= 4:
            # It is to join once more with this id, so that none is left behind if the answer is lost.
            group.promised.add(new_id)
            self._expect(group, new_id, body.session_timeout)
            return {"error_code": ErrorCode.member_id_required, "member_id": new_id}
        else:
            group.promised.discard(new_id)
            group.protocol_type = body.protocol_type
            group.has_newcomers = True
            member = Member(new_id, body.group_instance_id, request.client_id, request.peer[0])
            group.add(member)
            self._take(group, member, request)
        return None

    def _take(self, group: Group, member: Member, request: Request) -> None:
        """A member says what it wants, and waits for the others."""
        body = request.body
        member.session_timeout = body.session_timeout
        member.rebalance_timeout = body.rebalance_timeout if body.rebalance_timeout >= 0 else body.session_timeout
        member.protocols = protocols_of(request)
        self._rebalance(group, member, request.reply)

    def _replace(self, group: Group, member: Member, new_id: str, request: Request) -> Answer | None:
        """A static member is back under a new id. While nothing else has changed, nobody is bothered."""
        old_id, before, is_leader = member.member_id, member.protocols, group.leader == member.member_id
        self._answer(group, member, {"error_code": ErrorCode.fenced_instance_id})
        group.remove(member)
        self.unexpect(group, old_id)
        member.member_id, member.client_id, member.client_host = new_id, request.client_id, request.peer[0]
        group.add(member)
        group.leader = new_id if is_leader else group.leader
        if group.state is not State.STABLE or before != protocols_of(request):
            self._take(group, member, request)
            return None
        self.expect(group, member)
        self.keep(group)
        # A leader that is told so would assign partitions anew, and nobody else would hear of it.
        return group.joined(member) | ({"leader": old_id, "members": []} if is_leader else {})

    def _rebalance(self, group: Group, member: Member | None = None, reply: Reply | None = None) -> None:
        """All are to join again, unless they are about to. A member that joins sets it off, and then waits."""
        if group.state is State.COMPLETING:
            for other in group.members.values():
                self._answer(group, other, {"error_code": ErrorCode.rebalance_in_progress})
        if member is not None:
            member.reply = reply
            self.unexpect(group, member.member_id)
        if group.state is State.PREPARING:
            return
        was_empty = group.state is State.EMPTY
        group.state, group.began, group.patience = State.PREPARING, time.monotonic(), group.rebalance_timeout
        group.unsynced.clear()
        self.syncs.check_and_complete(group.group_id)
        group.has_newcomers = was_empty
        if was_empty:
            self.wait_for_newcomers(group)
        else:
            self._wait_for_all(group)

    def wait_for_newcomers(self, group: Group) -> None:
        """The first join of a group waits for others; once more if somebody has come meanwhile."""
        if not group.has_newcomers or group.patience <= 0:
            self.all_joined(group)
            return
        delay = min(self.settings.rebalance_delay, group.patience)
        group.has_newcomers, group.patience = False, group.patience - delay
        self.joins.try_complete_else_watch(InitialJoin(self, group, delay), [group.group_id])

    def _wait_for_all(self, group: Group) -> None:
        self.joins.try_complete_else_watch(DelayedJoin(self, group, group.rebalance_timeout), [group.group_id])

    def all_joined(self, group: Group) -> None:
        """The group goes on with those who have joined, in a new generation."""
        if group.state is not State.PREPARING:
            return
        for member in list(group.members.values()):
            if member.reply is None and member.group_instance_id is None:
                group.remove(member)
                self.unexpect(group, member.member_id)
        joined = [member for member in group.members.values() if member.reply is not None]
        if group.members and not joined:  # static members have until the end of their session
            self._wait_for_all(group)
            return
        if joined and group.leader not in [member.member_id for member in joined]:
            group.leader = joined[0].member_id
        group.next_generation()
        if not group.members:
            self.keep(group)
            return
        for member in list(group.members.values()):
            self._answer(group, member, group.joined(member))
        self.syncs.try_complete_else_watch(DelayedSync(self, group, group.rebalance_timeout), [group.group_id])

    # -- the assignment

    def sync_group(self, request: Request) -> None:
        """Answered when the leader has brought the assignment."""
        body = request.body
        group, member = self.member(body, body.generation_id)
        if group.state is State.PREPARING:
            raise Refused(ErrorCode.rebalance_in_progress)
        if body.protocol_type not in (None, group.protocol_type) or body.protocol_name not in (None, group.protocol_name):
            raise Refused(ErrorCode.inconsistent_group_protocol)
        group.unsynced.discard(member.member_id)
        member.reply = request.reply
        self.unexpect(group, member.member_id)
        if group.state is State.COMPLETING and member.member_id == group.leader:
            assignments = {assigned.member_id: assigned.assignment for assigned in body.assignments}
            for other in group.members.values():
                other.assignment = assignments.get(other.member_id, b"")
            group.state = State.STABLE
            self.rebalances.append(time.monotonic() - group.began)
            self.keep(group)
        if group.state is State.STABLE:
            for other in group.members.values():
                self._answer(group, other, vars(group) | {"assignment": other.assignment})
        self.syncs.check_and_complete(group.group_id)

    def not_synced(self, group: Group) -> None:
        """Members that did not ask in time are out."""
        for member_id in list(group.unsynced):
            self._remove(group, group.members[member_id])

    # -- signs of life

    def heartbeat(self, request: Request) -> Answer:
        """A sign of life; the answer tells of a rebalance."""
        group, member = self.member(request.body, request.body.generation_id)
        self.expect(group, member)
        return {"error_code": ErrorCode.rebalance_in_progress if group.state is State.PREPARING else ErrorCode.none}

    def expect(self, group: Group, member: Member) -> None:
        """A member has given a sign of life, and is to give the next one within its session timeout."""
        self._expect(group, member.member_id, member.session_timeout)

    def _expect(self, group: Group, member_id: str, timeout: float) -> None:
        self.unexpect(group, member_id)
        operation = group.awaited[member_id] = DelayedHeartbeat(self, group, member_id, timeout)
        self.heartbeats.try_complete_else_watch(operation, [(group.group_id, member_id)])

    def unexpect(self, group: Group, member_id: str) -> None:
        """A member is not to give a sign of life: it waits for us, or is gone."""
        group.awaited.pop(member_id, None)
        self.heartbeats.check_and_complete((group.group_id, member_id))

    def fell_silent(self, group: Group, member_id: str) -> None:
        """A member has given no sign of life, or nobody has joined with an id that was promised: it is out."""
        if (member := group.members.get(member_id)) is not None:
            self._remove(group, member)
        else:
            group.promised.discard(member_id)
            self.unexpect(group, member_id)
            self.joins.check_and_complete(group.group_id)

    def leave_group(self, request: Request) -> Answer:
        """Members are out at their own wish, or, if they are static, at that of an administrator."""
        body = request.body
        if request.version < 3:  # one member, which is named by the request itself
            return self._leave(body.group_id, body.member_id, None)
        members = [
            vars(who) | attempt(self._leave, body.group_id, who.member_id, who.group_instance_id) for who in body.members
        ]
        return {"members": members}

    def _leave(self, group_id: str, member_id: str, instance: str | None) -> Answer:
        group = self.groups.get(group_id) or Group(group_id)
        if member_id in group.promised:
            self.fell_silent(group, member_id)
            return {}
        if not member_id and (static := group.static(instance)) is not None:
            member_id = static.member_id
        self._remove(*self.member(SimpleNamespace(group_id=group_id, member_id=member_id, group_instance_id=instance)))
        return {}

    def _remove(self, group: Group, member: Member) -> None:
        self._answer(group, member, {"error_code": ErrorCode.unknown_member_id})
        group.remove(member)
        self.unexpect(group, member.member_id)
        if group.state in (State.STABLE, State.COMPLETING):
            self._rebalance(group)
        self.joins.check_and_complete(group.group_id)
