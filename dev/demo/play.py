"""Plays the acts: rounds, then a look at the exporter's figures, then the merges and another look."""

from __future__ import annotations

import time

from demo import exporter
from demo.acts import CONTROL, Act, Round
from demo.console import print_table, say
from demo.expectations import LOWER_BOUND, Figure, Verdict, control_figures, figures, healed_figures
from demo.exposition import Exposition, Page
from demo.pipeline import Engines, Pipeline


class Play:
    """All acts, one after the other, with the control beside them."""

    def __init__(self, engines: Engines, exposition: Exposition, one_worker: bool) -> None:
        self.engines = engines
        self.exposition = exposition
        self.one_worker = one_worker  # play act 2 wrongly, to show that the demo notices
        self.verdicts: list[Verdict] = []
        self.control = Pipeline(engines, CONTROL, CONTROL.workers)
        self.pipelines = [self.control]

    def play(self, act: Act) -> None:
        """One act, from its first message to the look after the merges."""
        workers = 1 if self.one_worker and act.name == "act2" else act.workers
        print(flush=True)
        say(f"{act.name}: {act.title}" + (" (BREAK: one of them is missing)" if workers < act.workers else ""))
        pipeline = Pipeline(self.engines, act, workers)
        self.pipelines.append(pipeline)
        for number, step in enumerate(act.rounds, 1):
            self.play_round(pipeline, number, step)
        pipeline.summariser.finish()
        self.control.summariser.finish()

        expected = figures(self.engines, act, pipeline.sent) + control_figures(self.engines, self.control.sent)
        self.judge(self.fresh_page(act), expected, act)
        say(f"{act.name}: {act.lesson}")
        pipeline.end()

        say(f"{act.name}: now the merges come")
        self.engines.warehouse.heal(act.database)
        self.judge(self.fresh_page(act), healed_figures(act, pipeline.sent), act)

    def play_round(self, pipeline: Pipeline, number: int, step: Round) -> None:
        """A round; ends when the exporter has looked, so that offsets move from look to look."""
        act = pipeline.act
        rows = pipeline.play(step)
        if step.new:
            self.control.play(Round(step.new))
        page = self.exposition.read_fresh([exporter.GROUPS, exporter.table_check(act)], time.time())
        factor, lag = live(page, self.engines, pipeline)
        say(f"  round {number}: {step.new} new events, {step.again} sent again; {rows} rows written; "
            f"the exporter sees factor {factor}, lag {lag}")

    def fresh_page(self, act: Act) -> Page:
        """The exporter's figures from polls that began after all was written and logged."""
        self.engines.warehouse.flush_logs()
        checks = [exporter.GROUPS, exporter.PART_LOG]
        for each in (act, CONTROL):
            checks += [exporter.table_check(each), exporter.summary_check(each)]
        return self.exposition.read_fresh(checks, time.time())

    def judge(self, page: Page, expected: list[Figure], act: Act) -> None:
        """Prints the exporter's figures beside what they must be."""
        verdicts = [figure.judge(page) for figure in expected]
        self.verdicts += verdicts
        say(f"{act.name}: the exporter's figures")
        print_table(
            ("of", "layer", "figure", "exporter", "must be", ""),
            [(v.figure.act, v.figure.layer, v.figure.title, v.shown, v.figure.must_be, "ok" if v.agrees else "DIFFERS")
             for v in verdicts])

    def end(self) -> None:
        """Ends every process of every pipeline."""
        for pipeline in self.pipelines:
            pipeline.end()


def live(page: Page, engines: Engines, pipeline: Pipeline) -> tuple[str, str]:
    """Factor and lag as the exporter sees them now."""
    wanted = {figure.metric: figure for figure in figures(engines, pipeline.act, pipeline.sent)}
    return wanted["dup_factor"].judge(page).shown, wanted["dup_consumer_group_lag"].judge(page).shown


def summary_table(verdicts: list[Verdict], acts: list[Act]) -> None:
    """One line for each act: what the exporter said, layer by layer."""
    columns = (
        ("state", "Kafka group", "dup_consumer_group_state"),
        ("members", "Kafka group", "dup_consumer_group_members"),
        ("memberless commits", "Kafka group", "dup_consumer_group_memberless_commits"),
        ("factor", "raw table", "dup_factor"),
        ("total / part_log rows", "summary", "dup_summary_part_log_ratio"),
        ("inflation", "summary", "dup_summary_inflation_factor"),
        ("factor after merges", "after merges", "dup_factor"),
        ("written / (written - healed)", "after merges", LOWER_BOUND),
        ("inflation after merges", "after merges", "dup_summary_inflation_factor"),
    )
    last = {(v.figure.act, v.figure.layer, v.figure.metric): v for v in verdicts}
    rows = []
    for act in acts:
        cells = [last.get((act.name, layer, metric)) for _, layer, metric in columns]
        rows.append((act.name, *(cell_text(verdict) for verdict in cells)))
    print_table(("", *(title for title, _, _ in columns)), rows)
    for act in acts:
        print(f"  {act.name}: {act.title}")
    print(flush=True)


def cell_text(verdict: Verdict | None) -> str:
    """What the exporter said, and what it had to say where that is something else."""
    if verdict is None:
        return ""
    state = verdict.figure.labels.get("state")
    if state:
        return state if verdict.agrees else f"not {state}"
    return verdict.shown if verdict.agrees else f"{verdict.shown}, not {verdict.figure.must_be}"
