"""Consumer groups: who is in one, and how far its rebalance has come. The rules and their words are Kafka's.

Empty -> PreparingRebalance: somebody joins; all others are told to join again, and those who do not in time are out
PreparingRebalance -> CompletingRebalance: all have joined; each is told so, and the leader who the others are
CompletingRebalance -> Stable: the leader has brought the assignment, which each gets with its sync
any -> PreparingRebalance: somebody comes, leaves, or falls silent
PreparingRebalance -> Empty: the last one has left
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from .answers import Answer, Reply


class State(Enum):
    """Of a group; the values are what Kafka's tools show."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"


@dataclass(eq=False)
class Member:
    """One consumer. What bears one of kio's names goes into answers by it.

    Attributes:
        group_instance_id: the name that a static member has of its own accord.
        protocols: the ways to assign partitions that it knows, the ones it likes best first, with what it subscribes to.
        reply: answers what it waits for: its join while the group prepares a rebalance, its sync while it completes one.
    """

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    session_timeout: float
    rebalance_timeout: float
    protocols: dict[str, bytes]
    assignment: bytes = b""
    reply: Reply | None = None


def known_to_all(members: Iterable[Member]) -> set[str]:
    """The protocols that all members know."""
    return set.intersection(*(set(member.protocols) for member in members))


@dataclass(eq=False)
class Group:
    """The members of a group, and the generation that they are.

    Attributes:
        promised: ids that were given out, to be joined with (Kafka's pending members).
        unsynced: members of this generation that have not asked for their assignment yet.
        awaited: the operation that waits for the next sign of life, of each member or promised id.
        has_newcomers: somebody has come during the last wait of the first join.
        patience: how long that may still wait, in seconds.
        began: when the rebalance did, in seconds.
    """

    group_id: str
    state: State = State.EMPTY
    generation_id: int = 0
    protocol_type: str = ""
    protocol_name: str | None = None
    leader: str | None = None
    members: dict[str, Member] = field(default_factory=dict)
    promised: set[str] = field(default_factory=set)
    unsynced: set[str] = field(default_factory=set)
    awaited: dict[str, object] = field(default_factory=dict)
    has_newcomers: bool = False
    patience: float = 0.0
    began: float = 0.0

    def static(self, instance: str | None) -> Member | None:
        """The member that has this name of its own accord."""
        named = (member for member in self.members.values() if member.group_instance_id == instance)
        return next(named, None) if instance is not None else None

    def accepts(self, protocol_type: str, protocols: Iterable[str], without: str) -> bool:
        """A member, perhaps in place of another one, has a protocol that all others know, too."""
        others = [member for member in self.members.values() if member.member_id != without]
        return not others or (protocol_type == self.protocol_type and not known_to_all(others).isdisjoint(protocols))

    def add(self, member: Member) -> None:
        """One more."""
        self.members[member.member_id] = member
        self.leader = self.leader or member.member_id

    def remove(self, member: Member) -> None:
        """One less; if it was the leader, another one is."""
        del self.members[member.member_id]
        self.unsynced.discard(member.member_id)
        if self.leader == member.member_id:
            self.leader = next(iter(self.members), None)

    @property
    def has_all_joined(self) -> bool:
        """Nobody is missing."""
        return not self.promised and all(member.reply is not None for member in self.members.values())

    @property
    def rebalance_timeout(self) -> float:
        """How long all are waited for, in seconds: as long as the most patient says."""
        return max((member.rebalance_timeout for member in self.members.values()), default=0.0)

    def next_generation(self) -> None:
        """All that are left have joined."""
        self.generation_id += 1
        self.unsynced = set(self.members)
        self.state = State.COMPLETING if self.members else State.EMPTY
        self.protocol_name = self._vote() if self.members else None

    def _vote(self) -> str:
        """Each member is for the first of its protocols that all know; the one with the most votes is taken."""
        members = self.members.values()
        known = known_to_all(members)
        return Counter(next(name for name in member.protocols if name in known) for member in members).most_common(1)[0][0]

    def joined(self, member: Member) -> Answer:
        """What a member is told when all have joined; the leader alone, who they are."""
        others = self.members.values() if member.member_id == self.leader else ()
        members = [vars(other) | {"metadata": other.protocols[self.protocol_name or ""]} for other in others]
        return vars(self) | {"member_id": member.member_id, "members": members}

    def described(self) -> Answer:
        """What the group looks like to others."""
        protocol = (self.protocol_name or "") if self.state is State.STABLE else ""
        members = [
            {
                **vars(member),
                "client_host": f"/{member.client_host}",
                "member_metadata": member.protocols.get(protocol, b""),
                "member_assignment": member.assignment if protocol else b"",
            }
            for member in self.members.values()
        ]
        return vars(self) | {"group_state": self.state.value, "protocol_data": protocol, "members": members}

    # -- what survives a restart

    def saved(self) -> Any:
        """The group as JSON, and bytes."""
        members = [tuple(vars(member).values())[:-1] for member in self.members.values()]  # but for how to answer them
        return self.generation_id, self.protocol_type, self.protocol_name, self.leader, members

    @classmethod
    def restored(cls, group_id: str, saved: Any) -> "Group":
        """The group as it was when it was stable, or empty."""
        generation, protocol_type, protocol, leader, members = saved
        group = cls(group_id, State.STABLE if members else State.EMPTY, generation, protocol_type, protocol, leader)
        group.members = {who[0]: Member(*who) for who in members}
        return group
