"""ClickHouse over HTTP: a small client, and the tables of a pipeline."""

from __future__ import annotations

import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass

from instance import Failure

TIMEOUT = 30  # seconds

# A row is written at once, by the insert that brings it; and the server must answer when it is written.
SETTINGS = {"async_insert": "0", "wait_end_of_query": "1"}

TABLES = (
    """CREATE TABLE {database}.playlog (
        device_id UInt32, campaign_id UInt32, event_id UInt64, ts DateTime, inserted_at DateTime DEFAULT now()
    ) ENGINE = ReplacingMergeTree ORDER BY (device_id, event_id)""",
    """CREATE TABLE {database}.playlog_summary (
        device_id UInt32, campaign_id UInt32, day Date, total UInt64
    ) ENGINE = SummingMergeTree(total) ORDER BY (device_id, campaign_id, day)""",
)


@dataclass(frozen=True)
class Warehouse:
    """A server and who we are there."""

    url: str
    user: str
    password: str

    def query(self, sql: str, data: bytes = b"") -> str:
        """The answer to one query; `data` are the rows of an INSERT."""
        headers = {"X-ClickHouse-User": self.user, "X-ClickHouse-Key": self.password}
        body = sql.encode() + b"\n" + data
        request = urllib.request.Request(f"{self.url}/?{urllib.parse.urlencode(SETTINGS)}", body, headers)
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
                return answer.read().decode().strip()
        except urllib.error.HTTPError as error:
            raise Failure(f"ClickHouse refused {sql[:120]!r}: {error.read().decode('utf-8', 'replace').strip()}") from None
        except OSError as error:
            raise Failure(f"ClickHouse did not answer {sql[:120]!r}: {error}") from None

    def now(self) -> int:
        """The server's clock, in Unix seconds."""
        return int(self.query("SELECT toUnixTimestamp(now())"))

    def seconds_to_midnight(self) -> int:
        """Until the server's day ends."""
        return int(self.query("SELECT toUnixTimestamp(toStartOfDay(now()) + INTERVAL 1 DAY) - toUnixTimestamp(now())"))

    def create(self, database: str) -> None:
        """Makes the two tables. Merges of the raw table are stopped: they would heal it while the act is played."""
        self.query(f"CREATE DATABASE {database}")
        for table in TABLES:
            self.query(table.format(database=database))
        self.query(f"SYSTEM STOP MERGES {database}.playlog")

    def heal(self, database: str) -> None:
        """Lets the merges of the raw table come, all of them now."""
        self.query(f"SYSTEM START MERGES {database}.playlog")
        self.query(f"OPTIMIZE TABLE {database}.playlog FINAL")

    def flush_logs(self) -> None:
        """Makes part_log tell all that it knows."""
        self.query("SYSTEM FLUSH LOGS")
