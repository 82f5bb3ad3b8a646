"""What waits for the members of groups: the conditions of Kafka's delayed join, sync and heartbeat."""

from typing import TYPE_CHECKING

from purgatory import DelayedOperation

from .groups import Group

if TYPE_CHECKING:
    from .coordinator import Coordinator


class OfGroup(DelayedOperation[None]):
    """What waits for somebody in a group."""

    __slots__ = ("coordinator", "group")

    def __init__(self, coordinator: "Coordinator", group: Group, timeout: float) -> None:
        super().__init__(timeout)
        self.coordinator, self.group = coordinator, group


class InitialJoin(OfGroup):
    """The first join of an empty group: waits its time, for others to join in the same rebalance."""

    __slots__ = ()

    def try_complete(self) -> bool:
        """Whoever is missing is not known yet."""
        return False

    def on_complete(self) -> None:
        """The time is up; once more if somebody has come."""
        self.coordinator.wait_for_newcomers(self.group)


class DelayedJoin(OfGroup):
    """Until all members have joined again; at the deadline the group goes on without the others."""

    __slots__ = ()

    def try_complete(self) -> bool:
        """Nobody is missing."""
        return self.group.has_all_joined and self.force_complete()

    def on_complete(self) -> None:
        """Either way."""
        self.coordinator.all_joined(self.group)


class DelayedSync(OfGroup):
    """Until all members of a generation have asked for their assignment; those who have not at the deadline are out."""

    __slots__ = ()

    def try_complete(self) -> bool:
        """All have, or the generation is over."""
        return not self.group.unsynced and self.force_complete()

    def on_expiration(self) -> None:
        """Some have not."""
        self.coordinator.not_synced(self.group)


class DelayedHeartbeat(OfGroup):
    """Until a member gives a sign of life, waits itself, or is gone; at the deadline it is out.

    It waits in the same way for an id that was promised to be joined with.
    """

    __slots__ = ("member_id",)

    def __init__(self, coordinator: "Coordinator", group: Group, member_id: str, timeout: float) -> None:
        super().__init__(coordinator, group, timeout)
        self.member_id = member_id

    def try_complete(self) -> bool:
        """The member is not waited for any more, or by another operation."""
        return self.group.awaited.get(self.member_id) is not self and self.force_complete()

    def on_expiration(self) -> None:
        """Nothing was heard."""
        self.coordinator.fell_silent(self.group, self.member_id)
