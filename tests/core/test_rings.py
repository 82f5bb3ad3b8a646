"""`Ring` against a list: links join, leave and are passed by a marker, in any order."""

import random

import pytest

from purgatory._core.rings import Link, Ring


class Counting(Ring):
    """Counts how often it was emptied."""

    times_emptied = 0

    def emptied(self) -> None:
        self.times_emptied += 1


def new_link() -> Link:
    link = Link()
    link._link_ring = None
    return link


@pytest.mark.parametrize("seed", range(100))
def test_ring_matches_list(seed: int) -> None:
    chance = random.Random(seed)
    ring, model, marker, emptied = Counting(), [], new_link(), 0
    away = [new_link() for _ in range(6)]
    for _ in range(200):
        action = chance.choice(("append", "append", "remove", "advance", "advance", "stop"))
        if action == "append" and away:
            model.append(away.pop(chance.randrange(len(away))))
            ring.append(model[-1])
        elif action == "remove" and (links := [each for each in model if each is not marker]):
            link = chance.choice(links)
            assert ring.remove(link) and not ring.remove(link)
            model.remove(link)
            away.append(link)
            emptied += not [each for each in model if each is not marker]
        elif action == "advance":
            at = model.index(marker) if marker in model else -1
            most = chance.randrange(4)
            passed = model[at + 1 : at + 1 + most]
            assert ring.advance(marker, most) == passed
            if passed:
                model = [each for each in model if each is not marker]
                model.insert(model.index(passed[-1]) + 1, marker)
        elif action == "stop":
            ring.withdraw(marker)
            model = [each for each in model if each is not marker]
        assert ring.links() == model and len(ring) == len(model) - (marker in model)
        assert ring.links(2) == model[:2]
        assert (ring.first, ring.last) == ((model[0], model[-1]) if model else (None, None))
        assert [each._link_after for each in model] == [*model[1:], None][: len(model)]
        assert [each._link_before for each in model] == [None, *model][: len(model)]
        assert {each._link_ring for each in model} <= {ring}
        assert all(each._link_ring is None for each in away)
        assert ring.times_emptied == emptied


def test_link_of_another_ring_stays_there() -> None:
    ring, other, link = Ring(), Ring(), new_link()
    other.append(link)
    assert not ring.remove(link) and other.links() == [link]
