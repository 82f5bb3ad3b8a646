"""Consumer groups: who is in one, and how far its rebalance has come. The rules and their words are Kafka's.

Empty -> PreparingRebalance: somebody joins; all others are told to join again, and those who do not in time are out
PreparingRebalance -> CompletingRebalance: all have joined; each is told so, and the leader who the others are
CompletingRebalance -> Stable: the leader has brought the assignment, which each gets with its sync
any -> PreparingRebalance: somebody comes, leaves, or falls silent
PreparingRebalance -> Empty: the last one has left
"""

import time
from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import Iterable
from enum import Enum
from typing import Any

from kio.schema.errors import ErrorCode

from .codec import Answer
from .waits import Reply


class State(Enum):
    """Of a group; the values are what Kafka's tools show."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"


class Member:
    """One consumer.

    Attributes:
        instance: the name that a static member has of its own accord.
        protocols: the ways to assign partitions that it knows, the ones it likes best first, with what it subscribes to.
        join, sync: how to answer its request, while one waits.
        heard: how many signs of life have come.
        is_new: it has joined no generation yet.
    """

    def __init__(self, id_: str, instance: str | None, client: str, host: str) -> None:
        self.id, self.instance, self.client, self.host = id_, instance, client, host
        self.session_timeout = self.rebalance_timeout = 0.0
        self.protocols: dict[str, bytes] = {}
        self.assignment = b""
        self.join: Reply | None = None
        self.sync: Reply | None = None
        self.is_new = True
        self.heard = 0

    @property
    def is_waiting(self) -> bool:
        """Nothing is expected of it: it waits for us."""
        return not self.is_new and (self.join is not None or self.sync is not None)


class Group:
    """The members of a group, and the generation that they are.

    Attributes:
        promised: ids that were given out, to be joined with (Kafka's pending members).
        unsynced: members of this generation that have not asked for their assignment yet.
        began: when the rebalance that is going on began, in seconds.
    """

    def __init__(self, id_: str) -> None:
        self.id = id_
        self.state = State.EMPTY
        self.generation = 0
        self.protocol_type = ""
        self.protocol: str | None = None
        self.leader: str | None = None
        self.members: dict[str, Member] = {}
        self.promised: set[str] = set()
        self.unsynced: set[str] = set()
        self.has_newcomers = False
        self.began = 0.0

    def static(self, instance: str) -> Member | None:
        """The member that has this name."""
        return next((member for member in self.members.values() if member.instance == instance), None)

    def accepts(self, protocol_type: str, names: Iterable[str], without: str = "") -> bool:
        """A member, perhaps in place of another one, has a protocol that all others know, too."""
        others = [member for member in self.members.values() if member.id != without]
        if not others:
            return True
        return protocol_type == self.protocol_type and any(all(name in other.protocols for other in others) for name in names)

    def add(self, member: Member) -> None:
        """One more."""
        self.members[member.id] = member
        if self.leader is None:
            self.leader = member.id

    def remove(self, member: Member) -> None:
        """One less; if it was the leader, another one is."""
        del self.members[member.id]
        self.unsynced.discard(member.id)
        if self.leader == member.id:
            self.leader = next(iter(self.members), None)

    @property
    def has_all_joined(self) -> bool:
        """Nobody is missing."""
        return not self.promised and all(member.join is not None for member in self.members.values())

    @property
    def rebalance_timeout(self) -> float:
        """How long all are waited for, in seconds: as long as the most patient says."""
        return max((member.rebalance_timeout for member in self.members.values()), default=0.0)

    def begin_rebalance(self) -> None:
        """All are to join again."""
        if self.state is not State.PREPARING:
            self.state, self.began = State.PREPARING, time.monotonic()

    def next_generation(self) -> None:
        """All that are left have joined."""
        self.generation += 1
        self.unsynced.clear()
        if self.members:
            self.state, self.protocol = State.COMPLETING, self._vote()
        else:
            self.state, self.protocol = State.EMPTY, None

    def _vote(self) -> str:
        """Each member is for the first of its protocols that all know; the one with the most votes is taken."""
        members = list(self.members.values())
        return Counter(
            next(name for name in member.protocols if all(name in other.protocols for other in members)) for member in members
        ).most_common(1)[0][0]

    def joined(self, member: Member) -> Answer:
        """What a member is told when all have joined; the leader alone, who they are."""
        is_leader = member.id == self.leader
        members = [
            {"member_id": other.id, "group_instance_id": other.instance, "metadata": other.protocols[self.protocol or ""]}
            for other in (self.members.values() if is_leader else ())
        ]
        return {
            "generation_id": self.generation,
            "protocol_type": self.protocol_type,
            "protocol_name": self.protocol,
            "leader": self.leader,
            "member_id": member.id,
            "members": members,
        }

    def synced(self, member: Member) -> Answer:
        """What a member is told when the leader has brought the assignment."""
        return {"protocol_type": self.protocol_type, "protocol_name": self.protocol, "assignment": member.assignment}

    def described(self) -> Answer:
        """What the group looks like to others."""
        is_stable = self.state is State.STABLE
        return {
            "group_id": self.id,
            "group_state": self.state.value,
            "protocol_type": self.protocol_type,
            "protocol_data": (self.protocol or "") if is_stable else "",
            "members": [
                {
                    "member_id": member.id,
                    "group_instance_id": member.instance,
                    "client_id": member.client,
                    "client_host": member.host,
                    "member_metadata": member.protocols.get(self.protocol or "", b"") if is_stable else b"",
                    "member_assignment": member.assignment if is_stable else b"",
                }
                for member in self.members.values()
            ],
        }

    # -- what survives a restart

    def saved(self) -> Any:
        """The group as JSON."""
        return {
            "generation": self.generation,
            "type": self.protocol_type,
            "protocol": self.protocol,
            "leader": self.leader,
            "members": [
                (
                    *(member.id, member.instance, member.client, member.host),
                    *(member.session_timeout, member.rebalance_timeout),
                    {name: _text(data) for name, data in member.protocols.items()},
                    _text(member.assignment),
                )
                for member in self.members.values()
            ],
        }

    @classmethod
    def restored(cls, id_: str, saved: Any) -> "Group":
        """The group as it was when it was stable, or empty."""
        group = cls(id_)
        group.generation, group.protocol_type = saved["generation"], saved["type"]
        group.protocol, group.leader = saved["protocol"], saved["leader"]
        for name, instance, client, host, session, rebalance, protocols, assignment in saved["members"]:
            member = Member(name, instance, client, host)
            member.session_timeout, member.rebalance_timeout = session, rebalance
            member.protocols = {protocol: b64decode(data) for protocol, data in protocols.items()}
            member.assignment = b64decode(assignment)
            member.is_new = False
            group.members[name] = member
        if group.members:
            group.state = State.STABLE
        return group


def _text(data: bytes) -> str:
    return b64encode(data).decode()


def failed_join(error: ErrorCode, member_id: str = "") -> Answer:
    """The answer to a join that was refused."""
    return {"error_code": error, "generation_id": -1, "protocol_name": "", "leader": "", "member_id": member_id}
