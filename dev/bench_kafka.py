"""What a poll of consumer groups costs, from 100 groups to 10,000, each with six partitions, on one broker.

Requests are counted at the broker, by its JMX figures, over whole polls: a snapshot is taken in the rest between two.
"""

import os
import re
import socket
import statistics
import subprocess
import time

from rig import Rig, wait_for

SIZES = (100, 300, 1_000, 2_000, 3_000, 10_000)
POLLS = 4
SCRAPES = 20
PATIENCE = 120  # seconds
# A broker asks these of itself.
OF_THE_BROKER = {"BrokerHeartbeat", "Fetch", "FetchSnapshot"}
COUNT = re.compile(r"request=(\w+),version=(\d+):Count=(\d+)")

# The rest between two polls must be long enough to ask for the figures.
CONFIG = """\
max_series: 1000000
kafka:
  - {{ name: main, bootstrap_servers: "{bootstrap}", interval: 8s, timeout: 60s, stale_after: 3m, max_groups: 100000 }}
"""


class GroupsRig(Rig):
    wanted = ("kafka", "clients")
    flags = ("--log.level", "debug")  # tells of each poll, so that no scrape needs to

    def __enter__(self):
        self.made = 0
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.jmx_port = str(probe.getsockname()[1])
        os.environ["DUP_KAFKA_JMX_PORT"] = self.jmx_port
        return super().__enter__()

    def fill(self):
        self.grow(SIZES[0])

    def grow(self, groups):
        self.make_groups("bench", range(self.made, groups))
        self.made = groups

    def config(self):
        return CONFIG.format(bootstrap=self.parts["kafka"]["bootstrap"])

    def polls(self):
        return self.log.read_text().count("message=polled")

    def after_poll(self, number):
        """The page, just after this poll."""
        wait_for(f"poll {number} has ended", lambda: self.polls() >= number, PATIENCE)
        return self.scrape()[0]

    def requests(self):
        """{(kind, version): how many the broker has answered}"""
        kafka = self.parts["kafka"]
        url = f"service:jmx:rmi:///jndi/rmi://127.0.0.1:{self.jmx_port}/jmxrmi"
        command = [kafka["java"], "-XX:TieredStopAtLevel=1", "-cp", kafka["classpath"], "org.apache.kafka.tools.JmxTool",
                   "--jmx-url", url, "--object-name", "kafka.network:type=RequestMetrics,name=RequestsPerSec,*",
                   "--attributes", "Count", "--one-time", "--report-format", "properties"]
        before = self.polls()
        answer = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        if self.polls() != before:
            raise SystemExit("a poll ended while the broker's figures were read: the machine is too busy")
        found = COUNT.findall(answer.stdout)
        return {(kind, version): int(count) for kind, version, count in found if kind not in OF_THE_BROKER}


def measure(rig):
    """Polls once to warm up, then looks at some polls."""
    rig.after_poll(1)
    before = rig.requests()
    pages = [rig.after_poll(2 + number) for number in range(POLLS)]
    after = rig.requests()
    took = [float(re.search(r"^dup_check_duration_seconds\S* (\S+)", page, re.M)[1]) for page in pages]
    shown = pages[-1].count("\ndup_consumer_group_info{")
    if shown != rig.made:
        raise SystemExit(f"{shown} groups are shown, of {rig.made}")
    asked = {key: (count - before.get(key, 0)) / POLLS for key, count in after.items()}
    return took, {key: count for key, count in asked.items() if count}


def report(rig):
    took, asked = measure(rig)
    exporter, worker = rig.memory()
    scrapes = [rig.scrape() for _ in range(SCRAPES)]
    scrape = statistics.median(seconds for _, seconds in scrapes)
    median = statistics.median(took)
    print(f"{rig.made:6} groups  poll median {median:.3f} s, max {max(took):.3f} s, {median / rig.made * 1000:.3f} ms a group; "
          f"exporter {exporter:.0f} MB + worker {worker:.0f} MB; scrape {scrape * 1000:.0f} ms, "
          f"{len(scrapes[-1][0]) / 1e6:.1f} MB", flush=True)
    kinds = ", ".join(f"{kind} v{version} {count:g}" for (kind, version), count in sorted(asked.items()))
    print(f"       {sum(asked.values()):g} requests a poll: {kinds}", flush=True)


def main():
    with GroupsRig() as rig:
        for groups in SIZES:
            rig.stop_exporter()
            rig.grow(groups)
            rig.start_exporter()
            report(rig)
