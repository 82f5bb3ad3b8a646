"""The delayed operations of groups: the conditions of Kafka's delayed join, sync and heartbeat."""

from collections.abc import Callable

from purgatory import DelayedOperation

from .groups import Group, Member


class DelayedGroupOperation(DelayedOperation[None]):
    """Waits for members of a group.

    Args:
        then: called with the group when the wait has ended, in time or not.
    """

    def __init__(self, group: Group, timeout: float, then: Callable[[Group], None]) -> None:
        super().__init__(timeout)
        self.group, self.then = group, then

    def on_complete(self) -> None:
        """The group continues."""
        self.then(self.group)


class InitialJoin(DelayedGroupOperation):
    """The first join of an empty group: waits its whole timeout, so that more members join in the
    same rebalance."""

    def try_complete(self) -> bool:
        """Always False: the number of members that will join is unknown."""
        return False


class DelayedJoin(DelayedGroupOperation):
    """Completes when all members have joined again; at the deadline the group continues without the
    missing ones."""

    def try_complete(self) -> bool:
        """All members have joined."""
        return self.group.has_all_joined and self.force_complete()


class DelayedSync(DelayedGroupOperation):
    """Completes when all members of a generation have sent their sync; at the deadline the missing
    ones are removed."""

    def try_complete(self) -> bool:
        """All have, or the generation is over."""
        return not self.group.pending_sync and self.force_complete()


class DelayedHeartbeat(DelayedOperation[None]):
    """Completes when a member sends a request, waits for a response itself, or is gone; at the
    deadline it is removed.

    A pending member has one as well.

    Args:
        then: called with the group and the member's id if the member has sent nothing.
    """

    def __init__(self, group: Group, member: Member, then: Callable[[Group, str], None]) -> None:
        super().__init__(member.session_timeout)
        self.group, self.member_id, self.then = group, member.member_id, then

    def try_complete(self) -> bool:
        """No request is expected from the member, or another operation waits for the next one."""
        return self.group.heartbeats.get(self.member_id) is not self and self.force_complete()

    def on_expiration(self) -> None:
        """The member has sent nothing in time."""
        self.then(self.group, self.member_id)
