"""What `bench` and `soak` stand on: a real ClickHouse and a real Kafka with known contents, and a release build of
the exporter that watches them far more often than usual."""

import json
import subprocess
import tempfile
import time
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
GROUPS = 20
ROWS = 100_000
PARTS = ["clickhouse", "kafka", "clients"]

CONFIG = """\
kafka:
  - {{ name: main, bootstrap_servers: "{bootstrap}", interval: 1s, timeout: 5s, stale_after: 8s }}
clickhouse:
  - name: logs
    url: {url}
    user: {user}
    password: {password}
    part_log: {{ include: ['^rig[.]'], interval: 1s, timeout: 5s, stale_after: 8s }}
    tables:
      - {{ database: rig, table: playlog, key: [device_id, event_id], time: inserted_at, windows: [30d], interval: 1s,
          timeout: 5s, stale_after: 8s }}
    summaries:
      - database: rig
        table: playlog_summary
        count: total
        day: day
        raw: {{ database: rig, table: playlog, key: [device_id, event_id], day: toDate(ts) }}
        keys: exact
        min_coverage: 0
        interval: 1s
        timeout: 5s
        stale_after: 8s
"""

# Every row lies there twice, and no merge heals it: the partitions differ.
TABLES = [
    "CREATE DATABASE rig",
    "CREATE TABLE rig.playlog (device_id UInt32, event_id UInt64, ts DateTime, copy UInt8, "
    "inserted_at DateTime DEFAULT now()) ENGINE = ReplacingMergeTree PARTITION BY copy ORDER BY (device_id, event_id)",
    "CREATE TABLE rig.playlog_summary (device_id UInt32, day Date, total UInt64) "
    "ENGINE = SummingMergeTree ORDER BY (device_id, day)",
    f"INSERT INTO rig.playlog (device_id, event_id, ts, copy) SELECT number % 100, number, now(), 0 FROM numbers({ROWS})",
    f"INSERT INTO rig.playlog (device_id, event_id, ts, copy) SELECT number % 100, number, now(), 1 FROM numbers({ROWS})",
    "INSERT INTO rig.playlog_summary SELECT device_id, toDate(ts) AS day, count() FROM rig.playlog "
    "GROUP BY device_id, day",
]

class Rig:
    """Use it in a `with`: at its end, all that it started is ended. A subclass may watch something else."""

    wanted = PARTS
    flags = ()  # of the exporter

    def __enter__(self):
        subprocess.run(["cargo", "build", "--release", "--locked"], cwd=ROOT, check=True)
        self.folder = tempfile.TemporaryDirectory()
        self.exporter = None
        try:
            self.parts = self.up(*self.wanted)
            self.fill()
            self.start_exporter()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        self.stop_exporter()
        self.dev("down")
        self.folder.cleanup()

    def up(self, *names):
        return json.loads(self.dev("up", *names))

    def kill(self, *names):
        self.dev("down", "--kill", *names)

    def dev(self, script, *arguments):
        command = [ROOT / "dev" / script, "--data", self.folder.name, *arguments]
        return subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout

    def fill(self):
        """Makes what is watched."""
        for statement in TABLES:
            self.run(statement)
        self.make_groups("rig", range(GROUPS))

    def run(self, sql):
        """What ClickHouse answers."""
        house = self.parts["clickhouse"]
        headers = {"X-ClickHouse-User": house["user"], "X-ClickHouse-Key": house["password"]}
        with urllib.request.urlopen(urllib.request.Request(house["url"], sql.encode(), headers)) as answer:
            return answer.read().decode()

    def make_groups(self, topic, numbers):
        """Groups TOPIC-NUMBER, each with offset 1 committed in the six partitions of the topic."""
        clients, kafka = self.parts["clients"], self.parts["kafka"]
        command = [clients["python"], ROOT / "dev/kafka_groups.py", kafka["bootstrap"], topic, "6", "0"]
        names = "".join(f"{topic}-{number}\n" for number in numbers)
        subprocess.run(command, input=names, text=True, check=True)

    def config(self):
        return CONFIG.format(bootstrap=self.parts["kafka"]["bootstrap"], **self.parts["clickhouse"])

    def start_exporter(self):
        config = Path(self.folder.name) / "dup_exporter.yml"
        config.write_text(self.config())
        self.log = Path(self.folder.name) / "exporter.log"
        program = ROOT / "target/release/dup_exporter"
        command = [program, "--config.file", config, "--web.listen-address", "127.0.0.1:0", *self.flags]
        self.exporter = subprocess.Popen(command, stderr=self.log.open("w"))
        self.url = wait_for("the exporter listens", lambda: address(self.log.read_text()), 30)

    def stop_exporter(self):
        if self.exporter:
            self.exporter.terminate()
            self.exporter.wait(timeout=10)
            self.exporter = None

    def scrape(self):
        """The metrics page, and how many seconds it took."""
        began = time.perf_counter()
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=10) as answer:
            return answer.read().decode(), time.perf_counter() - began

    def memory(self):
        """Resident memory of the exporter and of its Kafka worker, in MB."""
        pid = self.exporter.pid
        return resident(pid), sum(resident(child) for child in children(pid))


def address(log):
    """Where the exporter says that it listens, or None."""
    for word in log.split():
        if word.startswith("address="):
            return "http://" + word.removeprefix("address=")
    return None


def wait_for(what, probe, limit):
    """What the probe gives, once it gives something; SystemExit after `limit` seconds."""
    deadline = time.monotonic() + limit
    while not (found := probe()):
        if time.monotonic() > deadline:
            raise SystemExit(f"did not come true within {limit} s: {what}")
        time.sleep(0.1)
    return found


def resident(pid):
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


def children(pid):
    lists = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children")]
    return [int(child) for child in " ".join(lists).split()]
