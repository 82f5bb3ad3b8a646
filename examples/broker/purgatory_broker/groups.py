"""Consumer groups: their members, and the state of their rebalance. The rules and the terms are
Kafka's.

- Empty -> PreparingRebalance: a member joins; all known members must join again, and late ones are
  removed.
- PreparingRebalance -> CompletingRebalance: all have joined; each gets a response, and the leader's
  response lists the members.
- CompletingRebalance -> Stable: the leader has sent the assignment, which each member gets in
  response to its sync.
- any -> PreparingRebalance: a member joins, leaves, or sends no heartbeat.
- PreparingRebalance -> Empty: the last member has left.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

from .responses import Response, ResponseCallback

SAVED_OF_MEMBER: Final = (
    *("member_id", "group_instance_id", "client_id", "client_host"),
    *("session_timeout", "rebalance_timeout", "protocols", "assignment"),
)
SAVED_OF_GROUP: Final = ("generation_id", "protocol_type", "protocol_name", "leader")


class State(Enum):
    """States of a group; the values are shown by Kafka's tools."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"


@dataclass(eq=False, kw_only=True)
class Member:
    """One consumer.

    Attributes:
        group_instance_id: the name of a static member, which it keeps when it restarts.
        protocols: the ways to assign partitions that it supports, by preference, each with its
            subscription.
        respond: responds to the request that it waits for: its join during PreparingRebalance, its
            sync during CompletingRebalance.
    """

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    session_timeout: float
    rebalance_timeout: float
    protocols: dict[str, bytes]
    assignment: bytes = b""
    respond: ResponseCallback | None = None

    def to_metadata(self) -> Any:
        """The member as a value for the metadata log."""
        return {name: getattr(self, name) for name in SAVED_OF_MEMBER}


def common_protocols(members: Iterable[Member]) -> set[str]:
    """The protocols that all members support."""
    return set.intersection(*(set(member.protocols) for member in members))


@dataclass(eq=False, kw_only=True)
class Group:
    """The members of a group, and its generation.

    Attributes:
        pending_members: ids that were given out, without a join yet.
        pending_sync: members of this generation that have not sent their sync yet.
        heartbeats: the `DelayedHeartbeat` of each member, or pending member, from which a request
            is expected.
        new_member_added: a member has joined during the last wait of the initial join.
        initial_join_left: how long the initial join may still wait, in seconds.
        rebalance_began: when the rebalance did, in seconds.
    """

    group_id: str
    state: State = State.EMPTY
    generation_id: int = 0
    protocol_type: str = ""
    protocol_name: str | None = None
    leader: str | None = None
    members: dict[str, Member] = field(default_factory=dict)
    pending_members: set[str] = field(default_factory=set)
    pending_sync: set[str] = field(default_factory=set)
    heartbeats: dict[str, object] = field(default_factory=dict)
    new_member_added: bool = False
    initial_join_left: float = 0.0
    rebalance_began: float = 0.0

    def static_member(self, instance: str | None) -> Member | None:
        """The static member of this name."""
        found = (member for member in self.members.values() if member.group_instance_id == instance)
        return next(found, None) if instance is not None else None

    def supports(self, protocol_type: str, protocols: Iterable[str], without: str) -> bool:
        """Whether all members, except `without`, support one of these protocols."""
        others = [member for member in self.members.values() if member.member_id != without]
        return not others or (
            protocol_type == self.protocol_type
            and not common_protocols(others).isdisjoint(protocols)
        )

    def add(self, member: Member) -> None:
        """Adds a member."""
        self.members[member.member_id] = member
        self.leader = self.leader or member.member_id

    def remove(self, member: Member) -> None:
        """Removes a member."""
        del self.members[member.member_id]
        self.pending_sync.discard(member.member_id)
        if self.leader == member.member_id:
            self.leader = next(iter(self.members), None)

    @property
    def has_all_joined(self) -> bool:
        """Whether all members, and pending members, have joined the rebalance."""
        return not self.pending_members and all(
            member.respond is not None for member in self.members.values()
        )

    @property
    def rebalance_timeout(self) -> float:
        """How long the group waits for all to join, in seconds: the longest that a member asks
        for."""
        return max((member.rebalance_timeout for member in self.members.values()), default=0.0)

    def next_generation(self) -> None:
        """Makes the current members the next generation."""
        self.generation_id += 1
        self.pending_sync = set(self.members)
        self.state = State.COMPLETING if self.members else State.EMPTY
        self.protocol_name = self.select_protocol() if self.members else None

    def select_protocol(self) -> str:
        """Each member votes for the first of its protocols that all support; the one with the most
        votes is taken."""
        members = self.members.values()
        common = common_protocols(members)
        votes = Counter(
            next(name for name in member.protocols if name in common) for member in members
        )
        return votes.most_common(1)[0][0]

    def join_response(self, member: Member) -> Response:
        """The response to a join when all have joined; only the leader's lists the members."""
        others = self.members.values() if member.member_id == self.leader else ()
        members = [
            {
                "member_id": other.member_id,
                "group_instance_id": other.group_instance_id,
                "metadata": other.protocols[self.protocol_name or ""],
            }
            for other in others
        ]
        return {
            "generation_id": self.generation_id,
            "protocol_type": self.protocol_type,
            "protocol_name": self.protocol_name,
            "leader": self.leader,
            "member_id": member.member_id,
            "members": members,
        }

    def sync_response(self, member: Member) -> Response:
        """The response to a sync: the member's assignment."""
        return {
            "protocol_type": self.protocol_type,
            "protocol_name": self.protocol_name,
            "assignment": member.assignment,
        }

    def description(self) -> Response:
        """The group in responses that describe or list groups."""
        protocol = (self.protocol_name or "") if self.state is State.STABLE else ""
        members = [
            {
                "member_id": member.member_id,
                "group_instance_id": member.group_instance_id,
                "client_id": member.client_id,
                "client_host": f"/{member.client_host}",
                "member_metadata": member.protocols.get(protocol, b""),
                "member_assignment": member.assignment if protocol else b"",
            }
            for member in self.members.values()
        ]
        return {
            "group_id": self.group_id,
            "group_state": self.state.value,
            "protocol_type": self.protocol_type,
            "protocol_data": protocol,
            "members": members,
        }

    # -- restarts

    def to_metadata(self) -> Any:
        """The group as a value for the metadata log."""
        members = [member.to_metadata() for member in self.members.values()]
        return {name: getattr(self, name) for name in SAVED_OF_GROUP} | {"members": members}

    @classmethod
    def from_metadata(cls, group_id: str, value: Any) -> "Group":
        """The group as it was when it was last stable, or empty."""
        members = {member["member_id"]: Member(**member) for member in value["members"]}
        state = State.STABLE if members else State.EMPTY
        return cls(
            group_id=group_id,
            state=state,
            members=members,
            **{name: value[name] for name in SAVED_OF_GROUP},
        )
