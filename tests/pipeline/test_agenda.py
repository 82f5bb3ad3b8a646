"""The agenda: what is due comes when it is due, from few slices, and what is put off costs what waits nothing."""

from hypothesis import given, settings
from hypothesis import strategies as st

from purgatory.pipeline.streaming._agenda import NARROWEST, REACH, Agenda

HOUR = 3600 * NARROWEST


@settings(deadline=None)
@given(
    start=st.sampled_from([0, 1_700_000_000_000_000]),
    rounds=st.lists(st.tuples(st.lists(st.integers(0, 400 * HOUR)), st.integers(0, 100 * HOUR), st.booleans()), max_size=8),
)
def test_everything_is_taken_once_in_the_round_in_which_it_is_due(start, rounds) -> None:
    agenda, now, waiting = Agenda(chunks := {}), start, []
    for aheads, step, saves in rounds:
        for ahead in aheads:
            agenda.add((now + ahead,), now)
            waiting.append(now + ahead)
        now += step
        if saves:
            agenda.save()
            agenda = Agenda(chunks, agenda.open_slices)
        taken = agenda.take(now)
        assert sorted(taken) == sorted((at,) for at in waiting if at <= now)
        waiting = [at for at in waiting if at > now]
        if saves:
            agenda.save()
            assert agenda.next() == min(waiting, default=None)
            assert sum(len(chunk) for chunk in chunks.values()) == len(waiting)

    agenda.save()
    agenda.take(now + 1000 * HOUR)
    assert not chunks and not agenda.open_slices


def test_a_month_of_deadlines_lies_in_a_few_hundred_slices() -> None:
    agenda = Agenda({})
    for second in range(0, 30 * 24 * 3600, 7):
        agenda.add((second * NARROWEST,), 0)
    agenda.save()

    assert len(agenda.open_slices) <= 4 * REACH


def test_putting_off_reads_nothing() -> None:
    class Unreadable(dict):
        def get(self, key, default=None):
            raise AssertionError(key)

    chunks = Unreadable()
    agenda = Agenda(chunks)
    for round_ in range(3):
        agenda.add((100 * NARROWEST + round_,), 0)
        agenda.save()

    assert agenda.take(99 * NARROWEST // 64) == []
    assert len(chunks) == 3
