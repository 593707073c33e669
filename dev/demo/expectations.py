"""What each figure of the exporter must be, reckoned from what was sent and never from the exporter."""

from __future__ import annotations

from dataclasses import dataclass

from demo.acts import CONTROL, Act
from demo.exposition import Page
from demo.pipeline import Engines, Sent

KAFKA, CLICKHOUSE = "main", "logs"  # the sources of the exporter's configuration
LOWER_BOUND = "written / (written - healed)"
WINDOW, PERIOD = "10m", "today"  # both hold the whole of an act

# How far a figure may lie off. Where nothing is said, it must be equal in all digits that are shown.
THREE_DIGITS, FOUR_DIGITS = 0.0005, 0.00005
RATIO_TOLERANCE = 0.001
BOUND_TOLERANCE = 0.005  # of the factor
FACTOR_TOLERANCE = {"act3": 0.005}
INFLATION_TOLERANCE = {"act2": 0.02, "act3": 0.005}


@dataclass(frozen=True)
class Figure:
    """One series, and what its value must be."""

    act: str
    layer: str
    metric: str
    labels: dict[str, str]
    expected: float
    tolerance: float = 0.0
    digits: int = 0

    def judge(self, page: Page) -> "Verdict":
        return Verdict(self, page.value(self.metric, self.labels))

    @property
    def title(self) -> str:
        state = self.labels.get("state")
        return f'{self.metric}{{state="{state}"}}' if state else self.metric

    @property
    def must_be(self) -> str:
        text = f"{self.expected:.{self.digits}f}"
        return f"{text} ± {self.tolerance:g}" if self.tolerance > THREE_DIGITS else text


class LowerBound(Figure):
    """What the exporter's two counters make of the factor, as alerts/dup_recording.rules.yml does over six hours."""

    def judge(self, page: Page) -> "Verdict":
        written, healed = (page.value(f"dup_table_{rows}_rows_total", self.labels) for rows in ("written", "healed"))
        if written is None or healed is None or not 0 <= healed < 0.9 * written:
            return Verdict(self, None)
        return Verdict(self, written / (written - healed))


@dataclass(frozen=True)
class Verdict:
    """A figure as the exporter told it; None where it told nothing."""

    figure: Figure
    value: float | None

    @property
    def agrees(self) -> bool:
        return self.value is not None and abs(self.value - self.figure.expected) <= self.figure.tolerance

    @property
    def shown(self) -> str:
        return "absent" if self.value is None else f"{self.value:.{self.figure.digits}f}"


def figures(engines: Engines, act: Act, sent: Sent) -> list[Figure]:
    """All figures of a pipeline, layer by layer."""
    return (group_figures(engines, act, sent) + table_figures(act, sent) + part_log_figures(act, sent, "part_log", healed=0)
            + summary_figures(act, sent))


def control_figures(engines: Engines, sent: Sent) -> list[Figure]:
    """Of the control only what tells it from the acts: the same risk, and no damage."""
    shown = {"dup_consumer_group_state", "dup_consumer_group_members", "dup_consumer_group_memberless_commits",
             "dup_factor", "dup_summary_part_log_ratio", "dup_summary_inflation_factor"}
    return [figure for figure in figures(engines, CONTROL, sent) if figure.metric in shown]


def group_figures(engines: Engines, act: Act, sent: Sent) -> list[Figure]:
    group = {"source": KAFKA, "group": engines.group(act)}
    topic = {**group, "topic": engines.topic(act)}
    state = "Stable" if act.members else "Empty"

    def figure(metric: str, labels: dict[str, str], expected: int) -> Figure:
        return Figure(act.name, "Kafka group", f"dup_consumer_group_{metric}", labels, expected)

    return [
        figure("state", {**group, "state": state}, 1),
        figure("members", group, act.members),
        figure("memberless_commits", group, 0 if act.members else 1),
        figure("committed_offset", topic, sent.messages),
        # The exporter is seen to look after every round; the first commit that it sees is no move.
        figure("committed_messages_total", topic, sent.messages - sent.first_round),
        figure("lag", topic, 0),
    ]


def table_figures(act: Act, sent: Sent) -> list[Figure]:
    labels = {"source": CLICKHOUSE, "database": act.database, "table": "playlog", "window": WINDOW}
    rows = sent.messages * act.workers
    tolerance = FACTOR_TOLERANCE.get(act.name, FOUR_DIGITS)
    return [
        Figure(act.name, "raw table", "dup_rows", labels, rows),
        Figure(act.name, "raw table", "dup_keys", labels, sent.events),
        Figure(act.name, "raw table", "dup_factor", labels, rows / sent.events, tolerance, digits=4),
    ]


def part_log_figures(act: Act, sent: Sent, layer: str, healed: int) -> list[Figure]:
    """The exporter was up before the first row, so that its counters hold the whole act."""
    labels = {"source": CLICKHOUSE, "database": act.database, "table": "playlog"}
    return [
        Figure(act.name, layer, "dup_table_written_rows_total", labels, sent.messages * act.workers),
        Figure(act.name, layer, "dup_table_healed_rows_total", labels, healed),
    ]


def summary_figures(act: Act, sent: Sent, layer: str = "summary") -> list[Figure]:
    labels = {"source": CLICKHOUSE, "database": act.database, "table": "playlog_summary", "period": PERIOD}
    rows = sent.messages * act.workers
    total = sent.events if act.final else rows
    tolerance = INFLATION_TOLERANCE.get(act.name, THREE_DIGITS)
    return [
        Figure(act.name, layer, "dup_summary_total", labels, total),
        Figure(act.name, layer, "dup_summary_part_log_ratio", labels, total / rows, RATIO_TOLERANCE, digits=4),
        Figure(act.name, layer, "dup_summary_inflation_factor", labels, total / sent.events, tolerance, digits=4),
    ]


def healed_figures(act: Act, sent: Sent) -> list[Figure]:
    """After the merges: the raw table is right, and the summary as it was. What the merges removed tells the factor
    that the raw table had before, without reading it."""
    labels = {"source": CLICKHOUSE, "database": act.database, "table": "playlog"}
    window = {**labels, "window": WINDOW}
    layer = "after merges"
    rows = sent.messages * act.workers
    factor = rows / sent.events
    return [
        Figure(act.name, layer, "dup_rows", window, sent.events),
        Figure(act.name, layer, "dup_factor", window, 1, FOUR_DIGITS, digits=4),
        *part_log_figures(act, sent, layer, healed=rows - sent.events),
        LowerBound(act.name, layer, LOWER_BOUND, labels, factor, BOUND_TOLERANCE * factor, digits=4),
        summary_figures(act, sent, layer)[-1],
    ]
