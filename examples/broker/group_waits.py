"""What waits for the members of groups: the conditions of Kafka's delayed join, sync and heartbeat."""

from collections.abc import Callable

from purgatory import DelayedOperation

from .groups import Group, Member


class OfGroup(DelayedOperation[None]):
    """What waits for members of a group.

    Args:
        then: told the group when the wait has ended, in time or not.
    """

    def __init__(self, group: Group, timeout: float, then: Callable[[Group], None]) -> None:
        super().__init__(timeout)
        self.group, self.then = group, then

    def on_complete(self) -> None:
        """The group goes on."""
        self.then(self.group)


class InitialJoin(OfGroup):
    """The first join of an empty group: waits its time, for others to join in the same rebalance."""

    def try_complete(self) -> bool:
        """Whoever is missing is not known yet."""
        return False


class DelayedJoin(OfGroup):
    """Until all members have joined again; at the deadline the group goes on without the others."""

    def try_complete(self) -> bool:
        """Nobody is missing."""
        return self.group.has_all_joined and self.force_complete()


class DelayedSync(OfGroup):
    """Until all members of a generation have asked for their assignment; those who have not at the deadline are out."""

    def try_complete(self) -> bool:
        """All have, or the generation is over."""
        return not self.group.unsynced and self.force_complete()


class DelayedHeartbeat(DelayedOperation[None]):
    """Until a member gives a sign of life, waits itself, or is gone; at the deadline it is out.

    It waits in the same way for an id that was promised to be joined with.

    Args:
        then: told the group and the member's id when nothing was heard.
    """

    def __init__(self, group: Group, member: Member, then: Callable[[Group, str], None]) -> None:
        super().__init__(member.session_timeout)
        self.group, self.member_id, self.then = group, member.member_id, then

    def try_complete(self) -> bool:
        """The member is not waited for any more, or by another operation."""
        return self.group.awaited.get(self.member_id) is not self and self.force_complete()

    def on_expiration(self) -> None:
        """Nothing was heard."""
        self.then(self.group, self.member_id)
