#!/usr/bin/env python3
"""What a poll of the check `part_log` costs on a busy server: 1,000 tables, and a log of a million entries, of which those
of the last minute are new. Prints figures; none of them passes or fails."""

import sys
import threading

sys.dont_write_bytecode = True

from rig import Rig, resident, wait_for

TABLES = 1_000
ENTRIES = 1_000_000  # of one day
PER_MINUTE = ENTRIES // (24 * 60)
POLLS = 4
LIMIT = 60 * (POLLS + 1)  # seconds

CONFIG = """\
clickhouse:
  - {{ name: logs, url: "{url}", user: {user}, password: {password}, part_log: {{ interval: 60s }} }}
"""

# One entry in ten is a merge that removed half of what it read.
ENTRY = """INSERT INTO system.part_log (event_type, merge_reason, event_date, event_time, event_time_microseconds, database, table,
  table_uuid, part_name, rows, read_rows)
SELECT if(number % 10 = 0, 'MergeParts', 'NewPart'), if(number % 10 = 0, 'RegularMerge', 'NotAMerge'), toDate(at), at, at,
  'rig', name, uuid, concat('all_', toString({first} + number)), 100, if(number % 10 = 0, 200, 0)
FROM (SELECT number, now() - toIntervalSecond({seconds} - intDiv(number * {seconds}, {count})) AS at,
  number % {tables} AS i FROM numbers({count})) AS entries
INNER JOIN (SELECT name, uuid, toUInt64(substring(name, 2)) AS i FROM system.tables WHERE database = 'rig') AS known USING (i)"""


class Bench(Rig):
    """A ClickHouse that goes on logging, and an exporter that reads its log."""

    wanted = ["clickhouse"]

    def __enter__(self):
        self.ended = threading.Event()
        super().__enter__()
        threading.Thread(target=self.go_on_logging, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.ended.set()
        super().__exit__()

    def config(self):
        return CONFIG.format(**self.parts["clickhouse"])

    def fill(self):
        self.run("CREATE DATABASE rig")
        for number in range(TABLES):
            self.run(f"CREATE TABLE rig.t{number} (id UInt64) ENGINE = ReplacingMergeTree ORDER BY id")
        self.run("INSERT INTO rig.t0 SELECT 1")
        self.run("SYSTEM FLUSH LOGS")  # makes the log
        self.log_entries(0, 24 * 3600, ENTRIES)

    def log_entries(self, first, seconds, count):
        """Entries of the last so many seconds."""
        self.run(ENTRY.format(first=first, seconds=seconds, count=count, tables=TABLES))

    def go_on_logging(self):
        first = ENTRIES
        while not self.ended.wait(5):
            self.log_entries(first, 5, PER_MINUTE // 12)
            first += PER_MINUTE

    def poll(self, number):
        """How many seconds that poll took."""
        def polled():
            page, _ = self.scrape()
            return page if value(page, "dup_check_polls_total") >= number else None

        page = wait_for(f"poll {number}", polled, LIMIT)
        if value(page, "dup_check_up") != 1:
            raise SystemExit("the poll failed:\n" + self.log.read_text())
        return value(page, "dup_check_duration_seconds")


def value(page, name):
    """The one series of that name, or 0."""
    return next((float(line.split()[-1]) for line in page.splitlines() if line.startswith(name + "{")), 0)


def main():
    with Bench() as bench:
        print(f"part_log: {TABLES} tables, {ENTRIES} entries, {PER_MINUTE} of them new in each minute; {POLLS} polls …", flush=True)
        took = [bench.poll(number) * 1000 for number in range(1, POLLS + 1)]
        first, *others = took
        rows = sum(float(line.split()[-1]) for line in bench.scrape()[0].splitlines() if line.startswith("dup_table_written_rows_total{"))
        print(f"part_log first poll {first:.0f} ms, then median {sorted(others)[len(others) // 2]:.0f} ms, "
              f"slowest {max(others):.0f} ms (aim: under 50); {rows:.0f} rows counted; "
              f"exporter {resident(bench.exporter.pid):.1f} MB")


if __name__ == "__main__":
    main()
