"""An import worker: reads a batch from Kafka, inserts it into ClickHouse, and only then commits.

    CLICKHOUSE_PASSWORD=… python -m demo.worker --bootstrap HOST:PORT --topic playlog --group audit-import \\
        --mode assign|subscribe --clickhouse URL --user NAME --database audit

With `subscribe` the worker joins the group, and Kafka divides the partitions among its members. With `assign` it
takes all partitions from the group's committed offsets on, and is no member of anything.

A batch is what lies between the committed offsets and the ends of the log. The worker obeys orders on its input
(see actor.py), so that whoever drives it decides who reads and writes when: `{"do": "read"}` takes a batch in and
answers `{"messages": N}`; `{"do": "write"}` inserts it, commits, and answers `{"rows": N}`.
"""

from __future__ import annotations

import argparse
import json
import os
import time

from confluent_kafka import Consumer, Message, TopicPartition

from demo.actor import serve
from demo.warehouse import Warehouse

LIMIT = 20  # seconds, of any wait for Kafka

Offsets = dict[int, int]


class ImportWorker:
    """Reads, writes, commits; one batch at a time."""

    def __init__(self, kafka: Consumer, topic: str, mode: str, warehouse: Warehouse, database: str) -> None:
        self.kafka = kafka
        self.topic = topic
        self.mode = mode
        self.warehouse = warehouse
        self.database = database
        self.early: list[Message] = []  # came while the worker waited for its partitions
        self.rows: list[dict] = []
        self.next: Offsets = {}
        if mode == "subscribe":
            self.join()

    def join(self) -> None:
        """Joins the group and waits for partitions."""
        self.kafka.subscribe([self.topic])
        deadline = time.monotonic() + LIMIT
        while not self.kafka.assignment():
            self.take(self.early, 0.1)
            if time.monotonic() > deadline:
                raise RuntimeError(f"no partition was assigned within {LIMIT} s")

    def read(self, _order: dict) -> dict:
        """Obeys `read`."""
        self.next, ends = self.bounds()
        if self.mode == "assign":
            self.kafka.assign([TopicPartition(self.topic, p, offset) for p, offset in self.next.items()])
        messages, self.early = self.early, []
        missing = sum(ends.values()) - sum(self.next.values())
        deadline = time.monotonic() + LIMIT
        while len(messages) < missing:
            if time.monotonic() > deadline:
                raise RuntimeError(f"only {len(messages)} of {missing} messages came within {LIMIT} s")
            self.take(messages, 0.5)
        self.next = ends
        self.rows = without_copies([json.loads(message.value()) for message in messages])
        return {"messages": len(messages)}

    def bounds(self) -> tuple[Offsets, Offsets]:
        """Where the batch begins and ends in each partition."""
        if self.mode == "assign":
            numbers = self.kafka.list_topics(self.topic, timeout=LIMIT).topics[self.topic].partitions
            partitions = [TopicPartition(self.topic, number) for number in numbers]
        else:
            partitions = self.kafka.assignment()
        begins, ends = {}, {}
        for committed in self.kafka.committed(partitions, timeout=LIMIT):
            low, high = self.kafka.get_watermark_offsets(committed, timeout=LIMIT)
            begins[committed.partition] = max(committed.offset, low)  # below zero: nothing was ever committed
            ends[committed.partition] = high
        return begins, ends

    def take(self, messages: list[Message], timeout: float) -> None:
        message = self.kafka.poll(timeout)
        if message is None:
            return
        if message.error():
            raise RuntimeError(f"Kafka: {message.error()}")
        messages.append(message)

    def write(self, _order: dict) -> dict:
        """Obeys `write`: commits what is stored, and never the other way round."""
        lines = "\n".join(json.dumps(row) for row in self.rows)
        if lines:
            self.warehouse.query(
                f"INSERT INTO {self.database}.playlog (device_id, campaign_id, event_id, ts) FORMAT JSONEachRow", lines.encode())
        commits = [TopicPartition(self.topic, partition, offset) for partition, offset in self.next.items()]
        for committed in self.kafka.commit(offsets=commits, asynchronous=False):
            if committed.error:
                raise RuntimeError(f"commit: {committed.error}")
        return {"rows": len(self.rows)}


def without_copies(rows: list[dict]) -> list[dict]:
    """Drops what the batch holds twice: the only guard of this worker, and blind to every other batch and worker."""
    return list({(row["device_id"], row["event_id"]): row for row in rows}.values())


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("bootstrap", "topic", "group", "clickhouse", "user", "database"):
        options.add_argument(f"--{name}", required=True)
    options.add_argument("--mode", choices=("assign", "subscribe"), required=True)
    arguments = options.parse_args()
    kafka = Consumer({
        "bootstrap.servers": arguments.bootstrap, "group.id": arguments.group, "enable.auto.commit": False,
        "auto.offset.reset": "earliest", "fetch.wait.max.ms": 50,
    })
    warehouse = Warehouse(arguments.clickhouse, arguments.user, os.environ.get("CLICKHOUSE_PASSWORD", ""))
    try:
        worker = ImportWorker(kafka, arguments.topic, arguments.mode, warehouse, arguments.database)
        serve({"read": worker.read, "write": worker.write})
    finally:
        kafka.close()


if __name__ == "__main__":
    main()
