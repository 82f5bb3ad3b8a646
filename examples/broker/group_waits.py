"""What waits for the members of groups: the conditions of Kafka's delayed join, sync and heartbeat."""

from typing import Protocol

from purgatory import DelayedOperation

from .groups import Group, State


class Coordinates(Protocol):
    """What these operations need of the coordinator."""

    def all_joined(self, group: Group) -> None:
        """Everybody has joined, or their time is up."""

    def wait_longer(self, group: Group, left: float) -> None:
        """More members may come."""

    def not_synced(self, group: Group) -> None:
        """Some members did not ask for their assignment in time."""

    def fell_silent(self, group: Group, member_id: str) -> None:
        """A member has given no sign of life in time."""


class DelayedJoin(DelayedOperation[None]):
    """Until all members have joined again; at the deadline the group goes on without the others."""

    __slots__ = ("coordinator", "group")

    def __init__(self, coordinator: Coordinates, group: Group, timeout: float) -> None:
        super().__init__(timeout)
        self.coordinator, self.group = coordinator, group

    def try_complete(self) -> bool:
        """Nobody is missing."""
        return self.group.has_all_joined and self.force_complete()

    def on_complete(self) -> None:
        """Either way."""
        self.coordinator.all_joined(self.group)


class InitialJoin(DelayedJoin):
    """The first join of an empty group: waits its time, for others to join in the same rebalance; and again if some have.

    Args:
        left: seconds that it may wait after this wait.
    """

    __slots__ = ("left",)

    def __init__(self, coordinator: Coordinates, group: Group, timeout: float, left: float) -> None:
        super().__init__(coordinator, group, timeout)
        self.left = left

    def try_complete(self) -> bool:
        """Whoever is missing is not known yet."""
        return False

    def on_complete(self) -> None:
        """The time is up."""
        if self.group.has_newcomers and self.left > 0:
            self.coordinator.wait_longer(self.group, self.left)
        else:
            super().on_complete()


class DelayedSync(DelayedOperation[None]):
    """Until all members of a generation have asked for their assignment; those who have not at the deadline are out."""

    __slots__ = ("coordinator", "generation", "group")

    def __init__(self, coordinator: Coordinates, group: Group, timeout: float) -> None:
        super().__init__(timeout)
        self.coordinator, self.group, self.generation = coordinator, group, group.generation

    def try_complete(self) -> bool:
        """All have, or the generation is over."""
        group = self.group
        is_over = group.generation != self.generation or group.state in (State.EMPTY, State.PREPARING)
        return (is_over or not group.unsynced) and self.force_complete()

    def on_expiration(self) -> None:
        """Some have not."""
        self.coordinator.not_synced(self.group)


class DelayedHeartbeat(DelayedOperation[None]):
    """Until a member gives a sign of life, waits itself, or is gone; at the deadline it is out.

    It waits in the same way for an id that was given out to be joined with.
    """

    __slots__ = ("coordinator", "group", "heard", "member_id")

    def __init__(self, coordinator: Coordinates, group: Group, member_id: str, timeout: float) -> None:
        super().__init__(timeout)
        self.coordinator, self.group, self.member_id = coordinator, group, member_id
        member = group.members.get(member_id)
        self.heard = -1 if member is None else member.heard

    def try_complete(self) -> bool:
        """Nothing more is to be waited for."""
        member = self.group.members.get(self.member_id)
        if member is None:
            return self.member_id not in self.group.promised and self.force_complete()
        return (member.heard != self.heard or member.is_waiting) and self.force_complete()

    def on_expiration(self) -> None:
        """Nothing was heard."""
        self.coordinator.fell_silent(self.group, self.member_id)
