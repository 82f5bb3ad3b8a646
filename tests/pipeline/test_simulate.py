"""The program `simulate`: a replay in Spark's tasks equals one in this process, and the text
matches the figures."""

from collections import Counter

import pytest

from purgatory.pipeline._command_line import main
from purgatory.pipeline.simulate._replay import Replay, Setting
from purgatory.pipeline.simulate._trials import Trial, recommendation


@pytest.mark.parametrize(
    ("option", "complaint"),
    [
        ("--tick=0", "expected positive numbers"),
        ("--tick=a,b", "list of numbers"),
        ("--wheel-size=1", "at least 2"),
    ],
)
def test_a_setting_out_of_its_bounds_is_refused(
    option: str, complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["simulate", "journal", "--out", "out", option])

    assert complaint in capsys.readouterr().err


def trial(tick: float, late: float, *, callbacks: int = 100, different: int = 0) -> Trial:
    lateness = Counter({round(late / tick * 100): 30})
    return Trial(
        Setting(tick, 512, None),
        Replay(
            1000,
            callbacks,
            moves=50,
            expired=30,
            late_max=late,
            lateness=lateness,
            different=different,
        ),
    )


def test_cheapest_precise_enough_setting_is_recommended() -> None:
    trials = [
        trial(0.001, 0.001, callbacks=400),
        trial(0.01, 0.009, callbacks=90),
        trial(0.1, 0.09, callbacks=9),
    ]

    said = recommendation(trials, 0.01)

    assert (
        "Recommended: tick 0.01 s, wheel size 512. Of the 2 settings that let 99 % expire "
        "within 10 ms" in said
    )
    assert (
        "0.090 callbacks and 0.050 moves for each operation, against 0.450 of both with tick "
        "0.001 s" in said
    )


def test_imprecise_or_diverging_replay_is_reported() -> None:
    said = recommendation([trial(0.1, 0.09, different=7), trial(0.2, 0.19)], 0.01)

    assert "ends otherwise for 7 of 1,000 operations" in said
    assert "nearest is tick 0.1 s, wheel size 512, with 90.00 ms" in said


def test_wheels_are_added_up_and_maxima_kept() -> None:
    first = Replay(
        10,
        3,
        moves=2,
        largest_bucket=5,
        largest_burst=1,
        expired=3,
        late_max=0.004,
        lateness=Counter({1: 2, 40: 1}),
    )
    second = Replay(
        20,
        4,
        moves=1,
        largest_bucket=2,
        largest_burst=7,
        expired=1,
        late_max=0.009,
        lateness=Counter({90: 1}),
    )

    both = Trial.of(Setting(0.01, 20, 1.0), [first, second])

    assert (both.seen.operations, both.seen.callbacks, both.seen.moves, both.seen.expired) == (
        30,
        7,
        3,
        4,
    )
    assert (both.seen.largest_bucket, both.seen.largest_burst, both.seen.late_max) == (5, 7, 0.009)
    assert (both.late(0.5), both.late(0.75), both.late(0.99)) == pytest.approx(
        (0.0001, 0.004, 0.009)
    )
    named = dict(
        zip([column.split()[0] for column in Trial.columns().split(", ")], both.row(), strict=True)
    )
    assert (named["timeout"], named["largest_burst"], named["late_p99"]) == (
        1.0,
        7,
        pytest.approx(0.009),
    )
