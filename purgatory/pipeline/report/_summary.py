"""The lines that the page shows. They stay few, however large the tables are."""

from dataclasses import dataclass

from purgatory.pipeline.report._queries import Line
from purgatory.pipeline.report._window import Window


@dataclass(frozen=True, slots=True)
class Summary:
    """The rows of the queries to ``show`` of ``rows.sql`` and ``report.sql``, by the names of the
    queries; and the page's runs and time."""

    timeouts_in_order: list[Line]
    survival_in_order: list[Line]
    curves_of_runs: list[Line]
    wait_steps: list[Line]
    lateness_steps: list[Line]
    points: list[Line]
    peaks: list[Line]
    timeline: list[Line]
    hot_keys_in_order: list[Line]
    hot_times: list[Line]
    missed_keys_in_order: list[Line]
    missed_times: list[Line]
    worst_minutes: list[Line]
    account: list[Line]
    runs: list[str]
    window: Window
