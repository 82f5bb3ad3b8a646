"""What `simulate` tells: a table of settings, a plot of them, and a recommendation in words with its reason."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from matplotlib.figure import Figure

from purgatory.pipeline._replay import Setting

COLUMNS: Final = (
    "tick double, wheel_size long, timeout double, operations long, callbacks long, empty_callbacks long, moves long, "
    "largest_bucket long, largest_burst long, expired long, late_p50 double, late_p99 double, late_max double, "
    "cpu_seconds double, different long"
)
"""Of a table of `Outcome`."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one setting did, over all runs. Lateness is in seconds."""

    tick: float
    wheel_size: int
    timeout: float | None
    operations: int
    callbacks: int
    empty_callbacks: int
    moves: int
    largest_bucket: int
    largest_burst: int
    expired: int
    late_p50: float
    late_p99: float
    late_max: float
    cpu_seconds: float
    different: int

    @classmethod
    def of(cls, setting: Setting, results: Sequence[Any]) -> "Outcome":
        """Adds up what replays with `setting` have seen."""
        hundredths = Counter[int]()
        for result in results:
            hundredths.update(result.lateness)
        latest = max(result.latest for result in results)
        added = ("operations", "callbacks", "empty_callbacks", "moves", "expired", "cpu_seconds", "different")
        seen: dict[str, Any] = {name: sum(getattr(result, name) for result in results) for name in added}
        for name in ("largest_bucket", "largest_burst"):
            seen[name] = max(getattr(result, name) for result in results)
        for name, share in (("late_p50", 0.5), ("late_p99", 0.99)):
            seen[name] = min(latest, _quantile(hundredths, share) * setting.tick / 100)
        return cls(tick=setting.tick, wheel_size=setting.wheel_size, timeout=setting.timeout, late_max=latest, **seen)

    @property
    def work(self) -> float:
        """What the loop and the wheel do for an operation: callbacks and moves."""
        return (self.callbacks + self.moves) / self.operations

    @property
    def name(self) -> str:
        timeout = "" if self.timeout is None else f", timeout {self.timeout:g} s"
        return f"tick {self.tick:g} s, wheel size {self.wheel_size}{timeout}"


def _quantile(counts: Counter[int], share: float) -> int:
    """The least of the values that at least `share` of them do not exceed; 0 if there is none."""
    wanted, seen = share * counts.total(), 0
    for value in sorted(counts):
        seen += counts[value]
        if seen >= wanted:
            return value
    return 0


def table(outcomes: Sequence[Outcome]) -> str:
    """A line for each setting."""
    lines = [
        "   tick  wheel  timeout   callbacks    empty  moves/op  bucket  burst  late p50     p99     max  expired  µs/op",
    ]
    for each in outcomes:
        timeout = "own" if each.timeout is None else f"{each.timeout:g}"
        late = "".join(f"{seconds * 1000:8.2f}" for seconds in (each.late_p50, each.late_p99, each.late_max))
        lines.append(
            f"{each.tick:7g} {each.wheel_size:6} {timeout:>8} {each.callbacks:11,} {each.empty_callbacks:8,} "
            f"{each.moves / each.operations:9.3f} {each.largest_bucket:7,} {each.largest_burst:6,}  {late} "
            f"{each.expired / each.operations:8.2%} {each.cpu_seconds / each.operations * 1e6:6.1f}"
        )
    return "\n".join([*lines, "lateness in milliseconds; CPU per operation includes the loop that replays"])


def recommendation(outcomes: Sequence[Outcome], lateness: float) -> str:
    """Which setting to choose, and why; whether the replay is to be trusted; and what other timeouts would have done."""
    own = [each for each in outcomes if each.timeout is None]
    first = own[0]
    said = [
        f"With the timeouts of the journal, the replay ends as the journal says for all {first.operations:,} operations."
        if not any(each.different for each in own)
        else f"With the timeouts of the journal, the replay ends otherwise for {max(each.different for each in own):,} of "
        f"{first.operations:,} operations; the table 'differences' says which and why."
    ]
    precise = [each for each in own if each.late_p99 <= lateness]
    if not precise:
        best = min(own, key=lambda each: each.late_p99)
        said.append(
            f"None of the settings lets 99 % expire within {lateness * 1000:g} ms; nearest is {best.name}, "
            f"with {best.late_p99 * 1000:.2f} ms. Try a smaller tick."
        )
    else:
        best = min(precise, key=lambda each: (each.work, each.late_p99, each.wheel_size))
        worst = max(own, key=lambda each: each.work)
        said.append(
            f"Recommended: {best.name}. Of the {len(precise)} settings that let 99 % expire within {lateness * 1000:g} ms, it "
            f"gives the loop and the wheel least to do: {best.callbacks / best.operations:.3f} callbacks and "
            f"{best.moves / best.operations:.3f} moves for each operation"
            + (f", against {worst.work:.3f} of both with {worst.name}." if worst is not best else ".")
        )
    for timeout in dict.fromkeys(each.timeout for each in outcomes if each.timeout is not None):
        finest = min((each for each in outcomes if each.timeout == timeout), key=lambda each: each.late_max)
        share = finest.expired / finest.operations
        said.append(
            f"A timeout of {timeout:g} s would have ended {share:.2%} of the operations, counting those that did expire."
        )
    return "\n".join(said)


def draw(outcomes: Sequence[Outcome], out: str) -> None:
    """Draws ``settings.png`` in the folder `out`: what each setting costs, and how late it is."""
    names = [each.name for each in outcomes]
    figure = Figure(figsize=(10, 1.6 + 0.4 * len(outcomes)), layout="constrained")
    work, late = figure.subplots(1, 2, sharey=True)
    callbacks = [each.callbacks / each.operations for each in outcomes]
    work.barh(names, callbacks, color="#1f5fa8", label="callbacks of the loop")
    work.barh(names, [each.moves / each.operations for each in outcomes], left=callbacks, color="#9aa0a6", label="moves")
    work.set_title("for each operation", loc="left", fontsize=9)
    late.barh(names, [each.late_p99 * 1000 for each in outcomes], color="#e07b39", label="99 %")
    late.plot([each.late_max * 1000 for each in outcomes], names, "|", color="black", label="all")
    late.set_title("expired at most so late, in ms", loc="left", fontsize=9)
    work.invert_yaxis()
    for axes in (work, late):
        axes.legend(frameon=False, fontsize=8)
        axes.spines[["top", "right"]].set_visible(False)
    Path(out).mkdir(parents=True, exist_ok=True)
    figure.savefig(Path(out, "settings.png"), dpi=120)
