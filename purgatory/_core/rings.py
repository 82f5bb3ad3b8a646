"""Ordered lists from which any link leaves in O(1), at any time: the buckets of a wheel, and the
watch lists of keys.

    first                             last
      A  <-after/before->  B  <->  C            B leaves:   A <-> C

An iteration puts a link of its own into the ring, a marker, behind the last link that it has seen:
what joins later is found, and what leaves is not, without a copy of the whole. A marker does not
count.

Allocations and calls may run finalizers, in which links leave but none join. So each method reads
and links without a call in between.
"""

from typing import Any, NoReturn

from purgatory._core.kernel import fields


@fields
class Link:
    """A place in one ring.

    Attributes:
        _link_ring: the ring; None if it is in no ring.
    """

    __slots__ = ("_link_after", "_link_before", "_link_ring")

    _link_ring: "Ring | None"
    _link_before: "Link | None"
    _link_after: "Link | None"

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError(f"cannot copy or pickle {self!r}: it is known by its identity")


@fields
class Ring:
    """An ordered list of links.

    Attributes:
        first: None if it is empty.
        last: None if it is empty.
    """

    __slots__ = ("_size", "first", "last")

    def __init__(self) -> None:
        self.first: Link | None = None
        self.last: Link | None = None
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def append(self, link: Link) -> None:
        """Adds `link`, which is in no ring, at the end."""
        link._link_ring = self
        link._link_after = None
        link._link_before = last = self.last
        if last is None:
            self.first = link
        else:
            last._link_after = link
        self.last = link
        self._size += 1

    def remove(self, link: Link) -> bool:
        """Removes `link`; False if it is not here."""
        if link._link_ring is not self:
            return False
        before, after = link._link_before, link._link_after
        link._link_ring = link._link_before = link._link_after = None
        if before is None:
            self.first = after
        else:
            before._link_after = after
        if after is None:
            self.last = before
        else:
            after._link_before = before
        self._size -= 1
        if not self._size:
            self.emptied()
        return True

    def emptied(self) -> None:
        """Called when the last link that counts has left."""

    def advance(self, marker: Link, most: int) -> list[Any]:
        """Moves `marker` behind up to `most` links, and returns them. If it is in no ring, it
        begins before the first one."""
        passed: list[Any] = []
        link = marker._link_after if marker._link_ring is self else self.first
        for _ in range(most):
            if link is None:
                break
            passed.append(link)
            link = link._link_after
        if passed:
            self.withdraw(marker)
            # Finalizers may have removed some of them.
            if not any(self._insert_behind(link, marker) for link in reversed(passed)):
                self._insert_behind(None, marker)
        return passed

    def withdraw(self, marker: Link) -> None:
        """Removes a marker, if it is here."""
        if marker._link_ring is self:
            self._size += 2  # neither counted nor the last one
            self.remove(marker)
            self._size -= 1

    def _insert_behind(self, before: "Link | None", link: Link) -> bool:
        """Adds `link` behind another one, or at the front; False if that is not here."""
        if before is not None and before._link_ring is not self:
            return False
        after = self.first if before is None else before._link_after
        link._link_ring, link._link_before, link._link_after = self, before, after
        if before is None:
            self.first = link
        else:
            before._link_after = link
        if after is None:
            self.last = link
        else:
            after._link_before = link
        return True

    def links(self, most: int | None = None) -> list[Any]:
        """The first links, in order; all without `most`. Cost: one pointer for each."""
        marker = Link()
        marker._link_ring = None
        found = self.advance(marker, self._size if most is None else most)
        while most is None and (more := self.advance(marker, self._size or 1)):
            found += more
        self.withdraw(marker)
        return found
