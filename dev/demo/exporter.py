"""The exporter: its configuration for the demo, and its process."""

from __future__ import annotations

import time
import urllib.request
from pathlib import Path

from demo.acts import Act
from demo.expectations import CLICKHOUSE, KAFKA, PERIOD, WINDOW
from demo.exposition import Check
from demo.pipeline import Engines
from instance import Failure, Instance, write

NAME = "exporter"
READY_LIMIT = 30  # seconds
LOG_LINES = 15

GROUPS: Check = (KAFKA, "groups")
PART_LOG: Check = (CLICKHOUSE, "part_log")

HEAD = """\
# Written by the demo. Everything is polled far more often than a real server would like.
timeout: 10s
stale_after: 30s
kafka:
  - name: {kafka}
    bootstrap_servers: "{bootstrap}"
    interval: 1s
    groups: {{ include: ["^audit-"] }}
    memberless: {{ window: 1m }}
clickhouse:
  - name: {clickhouse}
    url: "{url}"
    user: "{user}"
    password_file: "{password_file}"
    part_log: {{ include: ["^audit_"], interval: 1s }}
"""

TABLE = """\
      - {{ database: {database}, table: playlog, key: [device_id, event_id], time: inserted_at, windows: [{window}], interval: 2s }}
"""

SUMMARY = """\
      - database: {database}
        table: playlog_summary
        count: total
        day: day
        raw: {{ database: {database}, table: playlog, key: [device_id, event_id], day: toDate(ts) }}
        periods: [{period}]
        keys: exact
        min_coverage: 0     # part_log is as young as the demo
        interval: 3s
"""


def table_check(act: Act) -> Check:
    return CLICKHOUSE, f"table:{act.database}.playlog"


def summary_check(act: Act) -> Check:
    return CLICKHOUSE, f"summary:{act.database}.playlog_summary"


def configuration(engines: Engines, acts: list[Act], password_file: Path) -> str:
    """The YAML."""
    warehouse = engines.warehouse
    text = HEAD.format(kafka=KAFKA, clickhouse=CLICKHOUSE, bootstrap=engines.bootstrap, url=warehouse.url,
                       user=warehouse.user, password_file=password_file)
    text += "    tables:\n" + "".join(TABLE.format(database=act.database, window=WINDOW) for act in acts)
    return text + "    summaries:\n" + "".join(SUMMARY.format(database=act.database, period=PERIOD) for act in acts)


class Exporter:
    """The process. It is one of the parts of the data folder, so `dev/down` ends it with the others."""

    def __init__(self, box: Instance) -> None:
        self.box = box
        self.url = f"http://127.0.0.1:{box.allot(['exporter.http'])['exporter.http']}"

    def start(self, program: Path, engines: Engines, acts: list[Act]) -> None:
        """Starts it and waits until it has polled everything once."""
        secret = self.box.folder / "password"
        secret.touch(mode=0o600)
        secret.write_text(engines.warehouse.password + "\n")
        config = self.box.folder / "dup_exporter.yml"
        write(config, configuration(engines, acts, secret))
        address = self.url.removeprefix("http://")
        self.box.start(NAME, [program, "--config.file", config, "--web.listen-address", address])
        deadline = time.monotonic() + READY_LIMIT
        while not self.is_ready():
            self.check_alive()
            if time.monotonic() > deadline:
                raise Failure(f"the exporter was not ready within {READY_LIMIT} s{self.log_end()}")
            time.sleep(0.1)

    def is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/-/ready", timeout=5):
                return True
        except OSError:  # not listening yet, or 503: some check was not polled yet
            return False

    def check_alive(self) -> None:
        """Raises when the process has ended."""
        if not self.box.pid(NAME):
            raise Failure(f"the exporter has ended{self.log_end()}")

    def log_end(self) -> str:
        log = self.box.log(NAME)
        return f"; the end of {log}:\n" + "\n".join(log.read_text(errors="replace").splitlines()[-LOG_LINES:])
