"""Options, the order of things, and the exit status."""

from __future__ import annotations

import argparse
import os
import signal
from pathlib import Path

from demo.acts import ACTS, CONTROL, Act
from demo.console import elapsed, say
from demo.exporter import Exporter
from demo.exposition import Exposition
from demo.pipeline import Engines
from demo.play import Play, summary_table
from demo.stage import ROOT, Stage, wait_past_midnight
from instance import Failure

EPILOG = """\
environment:
  KEEP=1             leave ClickHouse, Kafka and the exporter up at the end
  BREAK=one-worker   play act 2 with one worker: the figures must then disagree, and the exit status be 1
  DUP_EXPORTER=FILE  a binary to use instead of building one
  DUP_REQUIRE_KAFKA=1  fail where Kafka can't be had, instead of skipping what needs it
"""

INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def main() -> int:
    """0 when every figure agrees, 1 when not or when something failed, 130 after Ctrl-C."""
    options = argparse.ArgumentParser(description="Replays the incident on a real ClickHouse and a real Kafka.",
                                      epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--data", type=Path, default=ROOT / ".dev/demo", metavar="DIR",
                         help="where all of it lives; wiped at the start (.dev/demo)")
    arguments = options.parse_args()
    for number in INTERRUPTS:
        signal.signal(number, interrupted)
    try:
        return demo(Stage(arguments.data))
    except Failure as failure:
        say(f"error: {failure}")
        return 1
    except KeyboardInterrupt:
        say("interrupted")
        return 130


def interrupted(_signal: int, _frame: object) -> None:
    """Begins to end everything, and then will not be disturbed."""
    ignore_interrupts()
    raise KeyboardInterrupt


def ignore_interrupts() -> None:
    for number in INTERRUPTS:
        signal.signal(number, signal.SIG_IGN)


def demo(stage: Stage) -> int:
    """Sets the stage, plays, and clears up."""
    breaking = os.environ.get("BREAK", "")
    if breaking not in ("", "one-worker"):
        raise Failure(f"BREAK={breaking} is not known: there is BREAK=one-worker")
    with stage.alone():
        stage.clear()
        stage.install()
        program = stage.build()
        keep = False
        try:
            engines = stage.start_engines()
            wait_past_midnight(engines.warehouse)
            exporter = Exporter(stage.box)
            agreed = play(engines, exporter, program, breaking == "one-worker")
            keep = os.environ.get("KEEP", "") not in ("", "0")
        finally:
            if not keep:
                ignore_interrupts()  # all is being ended already
                say("stopping everything")
                stage.stop()
        if keep:
            tell_what_is_up(stage, engines, exporter)
    return 0 if agreed else 1


def play(engines: Engines, exporter: Exporter, program: Path, one_worker: bool) -> bool:
    """Plays all acts that the broker allows; whether every figure agreed."""
    played, skipped = playable(engines)
    for act in (*played, CONTROL):
        engines.warehouse.create(act.database)
    engines.warehouse.flush_logs()  # makes part_log, which is absent before its first row
    exporter.start(program, engines, [*played, CONTROL])
    say(f"the exporter is up: {exporter.url}/metrics")
    stage = Play(engines, Exposition(exporter.url, exporter.check_alive), one_worker)
    try:
        for act in played:
            stage.play(act)
    finally:
        stage.end()
    return conclude(stage, played, skipped)


def playable(engines: Engines) -> tuple[list[Act], list[Act]]:
    """The acts to be played, and those to be skipped: Tansu gives members of a group no partitions."""
    skipped = [act for act in ACTS if act.members and engines.kind != "kafka"]
    for act in skipped:
        say(f"skipping {act.name} ({act.title}): it needs real members, and the broker is {engines.kind}")
    return [act for act in ACTS if act not in skipped], skipped


def conclude(stage: Play, played: list[Act], skipped: list[Act]) -> bool:
    """The table of all acts, and the judgement."""
    say("what the exporter said, act by act")
    summary_table(stage.verdicts, [*played, CONTROL])
    wrong = [verdict for verdict in stage.verdicts if not verdict.agrees]
    for verdict in wrong:
        figure = verdict.figure
        say(f"DIFFERS: {figure.act}, {figure.layer}: {figure.title} is {verdict.shown}, must be {figure.must_be}")
    names = f" ({', '.join(act.name for act in skipped)})" if skipped else ""
    say(f"{len(stage.verdicts) - len(wrong)} of {len(stage.verdicts)} figures agree; "
        f"acts played: {len(played)}, skipped: {len(skipped)}{names}; {elapsed():.0f} s in all")
    return not wrong


def tell_what_is_up(stage: Stage, engines: Engines, exporter: Exporter) -> None:
    """Where to look after KEEP=1, and how to stop it."""
    warehouse = engines.warehouse
    say("left up, as KEEP=1 asks:")
    print(f"""
  exporter    {exporter.url}/         {exporter.url}/metrics
  ClickHouse  {warehouse.url}         user {warehouse.user}, password {warehouse.password}
  Kafka       {engines.bootstrap}
  config      {stage.folder}/dup_exporter.yml
  logs        {stage.folder}/*.log

  Nothing writes any more. The merges have healed the raw tables, so look at dup_summary_inflation_factor; the factors
  of the raw tables vanish with their ten-minute window.
  stop it all with: dev/down --data {stage.folder}
""", flush=True)
