"""Compares the settings: a table, a plot, and a recommendation with its reason."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from io import BytesIO
from typing import Any, Final, get_type_hints

from matplotlib.figure import Figure

from purgatory.pipeline.simulate._replay import Replay, Setting

SPARK_TYPES: Final = {int: "bigint", float: "double", float | None: "double", str: "string"}
COUNTED: Final = tuple(
    each.name for each in fields(Replay) if get_type_hints(Replay)[each.name] in SPARK_TYPES
)
"""The fields of `Replay` that are one number."""
PERCENTILES: Final = {"late_p50": 0.5, "late_p99": 0.99}


def columns_of(row: type, names: Iterable[str] | None = None) -> str:
    """The fields of a class of rows as columns of Spark, with their types.

    Args:
        names: only these fields; by default all.
    """
    types = get_type_hints(row)
    return ", ".join(f"{name} {SPARK_TYPES[types[name]]}" for name in names or types)


@dataclass(frozen=True, slots=True)
class Trial:
    """A setting, and the results of all wheels with it."""

    setting: Setting
    seen: Replay

    @classmethod
    def of(cls, setting: Setting, replays: Iterable[Replay]) -> "Trial":
        """Merges the results of each wheel."""
        merged = Replay()
        for seen in replays:
            merged.merge(seen)
        return cls(setting, merged)

    @staticmethod
    def columns() -> str:
        """The columns of `row`, with their types."""
        percentiles = ", ".join(f"{name} double" for name in PERCENTILES)
        return f"{columns_of(Setting)}, {columns_of(Replay, COUNTED)}, {percentiles}"

    def row(self) -> tuple[Any, ...]:
        """A row of the table ``settings``: the setting, all that is one number, and percentiles of
        the lateness."""
        return (
            *self.setting,
            *(getattr(self.seen, name) for name in COUNTED),
            *map(self.late, PERCENTILES.values()),
        )

    def late(self, share: float) -> float:
        """A quantile of the lateness of expiries, in seconds."""
        return min(
            self.seen.late_max, _quantile(self.seen.lateness, share) * self.setting.tick / 100
        )

    def per_operation(self, count: float) -> float:
        """A count of `seen`, divided by the operations."""
        return count / self.seen.operations

    @property
    def work(self) -> float:
        """Callbacks and moves for each operation."""
        return self.per_operation(self.seen.callbacks + self.seen.moves)

    @property
    def name(self) -> str:
        """The setting in words."""
        timeout = "" if self.setting.timeout is None else f", timeout {self.setting.timeout:g} s"
        return f"tick {self.setting.tick:g} s, wheel size {self.setting.wheel_size}{timeout}"


def _quantile(counts: Counter[int], share: float) -> int:
    """The lowest value that is not exceeded in `share` of all cases; 0 if there are none."""
    wanted, seen = share * counts.total(), 0
    for value in sorted(counts):
        seen += counts[value]
        if seen >= wanted:
            return value
    return 0


def table(trials: Sequence[Trial]) -> str:
    """A line for each setting."""
    lines = [
        "   tick  wheel  timeout   callbacks    empty  moves/op  bucket  burst  late p50     "
        "p99     max  expired  µs/op",
    ]
    for each in trials:
        (tick, wheel_size, timeout), seen = each.setting, each.seen
        late = "".join(
            f"{seconds * 1000:8.2f}"
            for seconds in (*map(each.late, PERCENTILES.values()), seen.late_max)
        )
        lines.append(
            f"{tick:7g} {wheel_size:6} {'own' if timeout is None else f'{timeout:g}':>8} "
            f"{seen.callbacks:11,} {seen.empty_callbacks:8,} {each.per_operation(seen.moves):9.3f} "
            f"{seen.largest_bucket:7,} {seen.largest_burst:6,}  {late} "
            f"{each.per_operation(seen.expired):8.2%} "
            f"{each.per_operation(seen.cpu_seconds) * 1e6:6.1f}"
        )
    return "\n".join(
        [*lines, "lateness in milliseconds; CPU per operation includes the loop that replays"]
    )


def recommendation(trials: Sequence[Trial], lateness: float) -> str:
    """Describes whether the replay agrees with the journal, which setting to choose and why, and
    the effect of other timeouts."""
    own = [trial for trial in trials if trial.setting.timeout is None]
    sentences = [_trust(own), _choice(own, lateness)]
    for timeout in dict.fromkeys(
        trial.setting.timeout for trial in trials if trial.setting.timeout is not None
    ):
        finest = min(
            (trial for trial in trials if trial.setting.timeout == timeout),
            key=lambda trial: trial.seen.late_max,
        )
        sentences.append(
            f"A timeout of {timeout:g} s would have ended "
            f"{finest.per_operation(finest.seen.expired):.2%} of the operations, "
            "including the operations that did expire."
        )
    return "\n".join(sentences)


def _trust(own: Sequence[Trial]) -> str:
    operations, different = own[0].seen.operations, max(trial.seen.different for trial in own)
    if not different:
        return (
            "With the timeouts of the journal, the replay ends as the journal recorded for all "
            f"{operations:,} operations."
        )
    return (
        f"With the timeouts of the journal, the replay ends otherwise for {different:,} of "
        f"{operations:,} operations; "
        "the table 'differences' names them, with the reasons."
    )


def _choice(own: Sequence[Trial], lateness: float) -> str:
    precise = [trial for trial in own if trial.late(0.99) <= lateness]
    if not precise:
        best = min(own, key=lambda trial: trial.late(0.99))
        return (
            f"None of the settings lets 99 % expire within {lateness * 1000:g} ms; nearest is "
            f"{best.name}, "
            f"with {best.late(0.99) * 1000:.2f} ms. Try a smaller tick."
        )
    best = min(precise, key=lambda trial: (trial.work, trial.late(0.99), trial.setting.wheel_size))
    worst = max(own, key=lambda trial: trial.work)
    return (
        f"Recommended: {best.name}. Of the {len(precise)} settings that let 99 % expire within "
        f"{lateness * 1000:g} ms, it "
        "gives the loop and the wheel least to do: "
        f"{best.per_operation(best.seen.callbacks):.3f} callbacks and "
        f"{best.per_operation(best.seen.moves):.3f} moves for each operation"
        + (f", against {worst.work:.3f} of both with {worst.name}." if worst is not best else ".")
    )


def draw(trials: Sequence[Trial]) -> bytes:
    """A plot as PNG: what each setting costs, and how late it is."""
    names = [trial.name for trial in trials]
    figure = Figure(figsize=(10, 1.6 + 0.4 * len(trials)), layout="constrained")
    work, late = figure.subplots(1, 2, sharey=True)
    callbacks = [trial.per_operation(trial.seen.callbacks) for trial in trials]
    work.barh(names, callbacks, color="#1f5fa8", label="callbacks of the loop")
    moves = [trial.per_operation(trial.seen.moves) for trial in trials]
    work.barh(names, moves, left=callbacks, color="#9aa0a6", label="moves")
    work.set_title("for each operation", loc="left", fontsize=9)
    late.barh(names, [trial.late(0.99) * 1000 for trial in trials], color="#e07b39", label="99 %")
    late.plot(
        [trial.seen.late_max * 1000 for trial in trials], names, "|", color="black", label="all"
    )
    late.set_title("expired at most so late, in ms", loc="left", fontsize=9)
    work.invert_yaxis()
    for axes in (work, late):
        axes.legend(frameon=False, fontsize=8)
        axes.spines[["top", "right"]].set_visible(False)
    content = BytesIO()
    figure.savefig(content, dpi=120)
    return content.getvalue()
