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

from .answers import Answer, ErrorCode, Refused, attempt, refuse_if
from .group_waits import DelayedHeartbeat, DelayedJoin, DelayedSync, InitialJoin
from .groups import Group, Member, State
from .kept import Kept, Key
from .settings import Settings
from .wire import Request

LONGEST_SESSION: Final = 1800.0  # seconds; Kafka's group.max.session.timeout.ms
REMEMBERED: Final = 10_000  # rebalances


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
        group = self.groups.get(body.group_id) or Group(body.group_id)
        member, instance = group.members.get(body.member_id), body.group_instance_id
        refuse_if(group.static(instance) not in (None, member), ErrorCode.fenced_instance_id)
        if member is None or instance not in (None, member.group_instance_id):
            raise Refused(ErrorCode.unknown_member_id)
        refuse_if(generation not in (None, group.generation_id), ErrorCode.illegal_generation)
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
        body, protocols = request.body, {protocol.name: protocol.metadata for protocol in request.body.protocols}
        refuse_if(not body.group_id, ErrorCode.invalid_group_id)
        is_possible = self.settings.shortest_session <= body.session_timeout <= LONGEST_SESSION
        refuse_if(not is_possible, ErrorCode.invalid_session_timeout)
        refuse_if(body.member_id and body.group_id not in self.groups, ErrorCode.unknown_member_id)
        group = self.groups.setdefault(body.group_id, Group(body.group_id))
        fits = protocols and body.protocol_type and group.accepts(body.protocol_type, protocols, body.member_id)
        refuse_if(not fits, ErrorCode.inconsistent_group_protocol)
        member_id = body.member_id or f"{body.group_instance_id or request.client_id}-{uuid4()}"
        who = member_id, body.group_instance_id, request.client_id, request.peer[0]
        patience = body.rebalance_timeout if body.rebalance_timeout >= 0 else body.session_timeout
        member = Member(*who, body.session_timeout, patience, protocols, reply=request.reply)
        answer = self._join(group, member, request)
        self.joins.check_and_complete(group.group_id)
        return answer

    def _join(self, group: Group, member: Member, request: Request) -> Answer | None:
        """Lets a member in, as it is by now, unless there is something to tell it at once."""
        named = group.static(member.group_instance_id)
        if request.body.member_id and member.member_id not in group.promised:
            _, before = self.member(request.body)
            if member.protocols == before.protocols and (
                group.state is State.COMPLETING or (group.state is State.STABLE and member.member_id != group.leader)
            ):
                return group.joined(before)  # it has not got our answer
            member.group_instance_id = before.group_instance_id  # which old versions do not say
        elif named is not None:
            self._replace(group, named, member)
            return None
        elif not request.body.member_id and member.group_instance_id is None and request.version >= 4:
            # It is to join once more with this id, so that none is left behind if the answer is lost.
            group.promised.add(member.member_id)
            self.expect(group, member)
            return {"error_code": ErrorCode.member_id_required, "member_id": member.member_id}
        else:
            group.promised.discard(member.member_id)
            group.protocol_type = request.body.protocol_type
            group.has_newcomers = True
        self._rebalance(group, member)
        return None

    def _replace(self, group: Group, old: Member, new: Member) -> None:
        """A static member is back under a new id. While nothing else has changed, nobody is bothered."""
        is_leader, new.assignment = group.leader == old.member_id, old.assignment
        self._answer(group, old, {"error_code": ErrorCode.fenced_instance_id})
        group.remove(old)
        self.unexpect(group, old.member_id)
        group.leader = new.member_id if is_leader else group.leader
        if group.state is not State.STABLE or old.protocols != new.protocols:
            self._rebalance(group, new)
            return
        group.add(new)
        self.keep(group)
        # A leader that is told so would assign partitions anew, and nobody else would hear of it.
        self._answer(group, new, group.joined(new) | ({"leader": old.member_id, "members": []} if is_leader else {}))

    def _rebalance(self, group: Group, member: Member | None = None) -> None:
        """All are to join again, unless they are about to. A member that joins sets it off, and then waits."""
        if group.state is State.COMPLETING:
            for other in group.members.values():
                self._answer(group, other, {"error_code": ErrorCode.rebalance_in_progress})
        if member is not None:
            group.add(member)
            self.unexpect(group, member.member_id)
        if group.state is State.PREPARING:
            return
        group.has_newcomers = group.state is State.EMPTY
        group.state, group.began, group.patience = State.PREPARING, time.monotonic(), group.rebalance_timeout
        group.unsynced.clear()
        self.syncs.check_and_complete(group.group_id)
        if group.has_newcomers:
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
        self.joins.try_complete_else_watch(InitialJoin(group, delay, self.wait_for_newcomers), [group.group_id])

    def _wait_for_all(self, group: Group) -> None:
        self.joins.try_complete_else_watch(DelayedJoin(group, group.rebalance_timeout, self.all_joined), [group.group_id])

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
        for member in joined:
            self._answer(group, member, group.joined(member))
        self.syncs.try_complete_else_watch(DelayedSync(group, group.rebalance_timeout, self.not_synced), [group.group_id])

    # -- the assignment

    def sync_group(self, request: Request) -> None:
        """Answered when the leader has brought the assignment."""
        body = request.body
        group, member = self.member(body, body.generation_id)
        refuse_if(group.state is State.PREPARING, ErrorCode.rebalance_in_progress)
        refuse_if(body.protocol_type not in (None, group.protocol_type), ErrorCode.inconsistent_group_protocol)
        refuse_if(body.protocol_name not in (None, group.protocol_name), ErrorCode.inconsistent_group_protocol)
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
            self.remove(group, member_id)

    # -- signs of life

    def heartbeat(self, request: Request) -> Answer:
        """A sign of life; the answer tells of a rebalance."""
        group, member = self.member(request.body, request.body.generation_id)
        self.expect(group, member)
        return {"error_code": ErrorCode.rebalance_in_progress if group.state is State.PREPARING else ErrorCode.none}

    def expect(self, group: Group, member: Member) -> None:
        """A member has given a sign of life, and is to give the next one within its session timeout."""
        self.unexpect(group, member.member_id)
        operation = group.awaited[member.member_id] = DelayedHeartbeat(group, member, self.remove)
        self.heartbeats.try_complete_else_watch(operation, [(group.group_id, member.member_id)])

    def unexpect(self, group: Group, member_id: str) -> None:
        """A member is not to give a sign of life: it waits for us, or is gone."""
        group.awaited.pop(member_id, None)
        self.heartbeats.check_and_complete((group.group_id, member_id))

    def leave_group(self, request: Request) -> Answer:
        """Members are out at their own wish, or, if they are static, at that of an administrator."""
        body = request.body
        if request.version < 3:  # one member, which is named by the request itself
            return attempt(self._leave, body.group_id, body.member_id, None)
        left = [vars(who) | attempt(self._leave, body.group_id, who.member_id, who.group_instance_id) for who in body.members]
        return {"members": left}

    def _leave(self, group_id: str, member_id: str, instance: str | None) -> None:
        group = self.groups.get(group_id) or Group(group_id)
        if not member_id and (static := group.static(instance)) is not None:
            member_id = static.member_id
        if member_id not in group.promised:
            self.member(SimpleNamespace(group_id=group_id, member_id=member_id, group_instance_id=instance))
        self.remove(group, member_id)

    def remove(self, group: Group, member_id: str) -> None:
        """A member is out, or an id that was promised is not to be joined with any more."""
        member = group.members.get(member_id)
        if member is not None:
            self._answer(group, member, {"error_code": ErrorCode.unknown_member_id})
            group.remove(member)
        group.promised.discard(member_id)
        self.unexpect(group, member_id)
        if member is not None and group.state in (State.STABLE, State.COMPLETING):
            self._rebalance(group)
        self.joins.check_and_complete(group.group_id)
