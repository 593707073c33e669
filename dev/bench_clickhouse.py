"""What the queries of the exporter cost a ClickHouse server, against the naive query that people write by hand:
`SELECT count(), uniqExact(key) … WHERE inserted_at >= now() - …`, which drops rows with a NULL besides.

30 million rows, of which 2 million (1 million keys, twice each) lie in the last hour; two threads. The queries are the
exporter's own, run by the exporter and measured by the server's query_log. Ratios are of medians of one run.
"""

import os
import statistics
import time
from pathlib import Path

from rig import Rig, wait_for

RUNS = 5
KEYS = "key: [device_id, event_id], time: inserted_at, timeout: 60s"
TABLE = "CREATE TABLE rig.{name} (device_id UInt32, event_id UInt64, body String, inserted_at DateTime) " \
        "ENGINE = ReplacingMergeTree PARTITION BY {partition} ORDER BY (device_id, event_id) " \
        "SETTINGS max_bytes_to_merge_at_max_space_in_pool = 1"
# Before part statistics, servers read what they could not leave out by a key; 26.9 leaves parts out by itself.
OLD_WAY = "use_statistics_for_part_pruning = 0, max_threads = 2"
NAIVE = "SELECT count() AS rows, uniqExact(device_id, event_id) AS keys, rows / keys FROM rig.{table} " \
        "WHERE inserted_at >= now() - {seconds} SETTINGS " + OLD_WAY
HOUR = 3600
MANY = 1_000_000
FACTORS = {"little": 1.001, "some": 1.1, "twice": 2.0}

# What is said of it, the table, its keys in the configuration, a part of the query, the naive queries, and the aims.
CASES = [
    ("all windows and what never heals, exact", "whole", "windows: [10m, 1h]", "dup_rows_0", [HOUR],
     (0.9, 0.8, 0.3)),
    ("the same, copies in several partitions", "spread", "windows: [10m, 1h]", "dup_rows_0", [HOUR], (None,) * 3),
    ("the same, sample: 16", "whole", "windows: [10m, 1h], sample: 16", "dup_rows_0", [HOUR], (0.3, 0.2, 0.3)),
    ("four windows against four naive queries", "whole", "windows: [10m, 20m, 30m, 1h]", "dup_rows_0",
     [600, 1200, 1800, HOUR], (0.3, None, None)),
    ("ages over all rows, ages_sample: 64", "whole", "windows: [60d], sample: 4294967296, ages: [10m, 1h, 60d], "
     "ages_interval: 1s, ages_sample: 64", "dup_youngest", [HOUR], (1.5, 0.2, None)),
]


class Warehouse(Rig):
    """A ClickHouse with two big tables, of which one has copies in several partitions."""

    wanted = ["clickhouse"]
    table, keys, tables = "whole", "", None  # the one that is measured, or the entries of others

    def fill(self):
        self.run("CREATE DATABASE rig")
        for name, partition in (("whole", "tuple()"), ("spread", "event_id % 2 = 0")):
            self.run(TABLE.format(name=name, partition=partition))
        for name in ("whole", "spread"):
            for i in range(7):
                self.insert(name, i * 4_000_000, 4_000_000, "now() - 172800 - intDiv(number, 50)")
        self.make_old()
        for name in ("whole", "spread"):
            for i in range(20):
                self.insert(name, 100_000_000 + i // 2 * 100_000, 100_000, f"now() - {i * 150} - number % 150")

    def insert(self, table, first, count, when):
        self.run(f"INSERT INTO rig.{table} SELECT number % 50000, number, toString(number * 7), {when} "
                 f"FROM numbers({first}, {count}) SETTINGS optimize_on_insert = 0, max_partitions_per_insert_block = 0, "
                 f"max_insert_block_size = {count}")

    def make_old(self):
        """What was inserted so far was written two days ago, as far as the server can tell."""
        self.dev("down", "clickhouse")
        then = time.time() - 2 * 86400
        for path in Path(self.folder.name).rglob("*"):
            if "store" in path.parts:
                os.utime(path, (then, then), follow_symlinks=False)
        self.parts = self.up("clickhouse")

    def config(self):
        house = self.parts["clickhouse"]
        return ("clickhouse:\n  - name: logs\n    url: {url}\n    user: {user}\n    password: {password}\n"
                "    part_log: {{include: []}}\n    tables:\n".format(**house)
                + (self.tables or f"      - {{database: rig, table: {self.table}, {KEYS}, interval: 1s, {self.keys}}}\n"))

    def measured(self, mark):
        """(ms, bytes of memory, bytes read) of the last queries that hold the mark, the newest first."""
        self.run("SYSTEM FLUSH LOGS")
        rows = self.run("SELECT query_duration_ms, memory_usage, read_bytes FROM system.query_log WHERE type = 2 "
                        f"AND position(query, '{mark}') > 0 AND position(query, 'query_log') = 0 "
                        f"ORDER BY event_time_microseconds DESC LIMIT {RUNS}")
        return [tuple(map(float, row.split("\t"))) for row in rows.splitlines()]

    def naive(self, seconds):
        for _ in range(RUNS):
            self.run(NAIVE.format(table=self.table, seconds=seconds))
        return medians(self.measured(f"now() - {seconds} SETTINGS"))

    def ours(self, mark):
        self.run("TRUNCATE TABLE system.query_log")
        self.start_exporter()
        wait_for(f"{RUNS} polls", lambda: len(self.measured(mark)) == RUNS, 300)
        self.stop_exporter()
        return medians(self.measured(mark))


    # ---- How far a sample is off ----

    def fill_samples(self):
        """A table for each factor: a million keys, of which some lie there once more."""
        for name, factor in FACTORS.items():
            self.run(f"CREATE TABLE rig.{name} (k UInt64, inserted_at DateTime) ENGINE = MergeTree ORDER BY k")
            for keys in (MANY, round(MANY * (factor - 1))):
                self.run(f"INSERT INTO rig.{name} SELECT number, now() FROM numbers({keys})")

    def sampled(self):
        """The factors that the exporter finds in a sixteenth of the keys."""
        self.start_exporter()
        factor = {name: f'dup_factor{{source="logs",database="rig",table="{name}",window="1h"}} ' for name in FACTORS}
        page = wait_for("a factor of each", lambda: self.has_all(factor.values()), 60)
        self.stop_exporter()
        return {name: float(page.split(start)[1].split()[0]) for name, start in factor.items()}

    def has_all(self, starts):
        page, _ = self.scrape()
        return page if all(start in page for start in starts) else None


def medians(rows):
    return [statistics.median(column) for column in zip(*rows)]


def main():
    print("ClickHouse: ratios to the naive query, on 30 million rows with 2 million in the window, two threads")
    print(f"{'':44}{'time':>14}{'memory':>14}{'bytes read':>14}   (aim)")
    with Warehouse() as house:
        house.stop_exporter()  # each case has one of its own
        for words, house.table, house.keys, mark, windows, aims in CASES:
            naive = [sum(column) for column in zip(*(house.naive(seconds) for seconds in windows))]
            naive[1] /= len(windows)  # of memory, the most at once counts
            ratios = [mine / theirs for mine, theirs in zip(house.ours(mark), naive)]
            cells = [f"{ratio:.2f}" + (f" ({aim})" if aim else "") for ratio, aim in zip(ratios, aims)]
            print(f"{words:44}" + "".join(f"{cell:>14}" for cell in cells), flush=True)
        house.fill_samples()
        house.tables = "".join(f"      - {{database: rig, table: {name}, key: [k], time: inserted_at, sample: 16}}\n"
                               for name in FACTORS)
        print("true factor, and how far off are one key in 16 and uniqCombined64, on a million keys")
        for name, found in house.sampled().items():
            sketch = float(house.run(f"SELECT count() / uniqCombined64(k) FROM rig.{name}"))
            print(f"{FACTORS[name]:<8} {found - FACTORS[name]:+.5f} {sketch - FACTORS[name]:+.5f}", flush=True)
