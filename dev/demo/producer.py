"""A producer of play-log events: screens tell which campaign they showed, and when.

    python -m demo.producer --bootstrap HOST:PORT --topic playlog

An event is {device_id, campaign_id, event_id, ts}; (device_id, event_id) is its key. Makes the topic, and then
obeys orders on its input (see actor.py): `{"do": "send", "new": N, "again": M}` sends N new events, and M of
those of the order before once more, as a screen does that missed the acknowledgement. It answers
`{"messages": N + M}` when Kafka has them all.
"""

from __future__ import annotations

import argparse
import json
import time

from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from demo.actor import serve

PARTITIONS = 6
DEVICES = 24  # a multiple of the partitions, so that each gets as many
CAMPAIGNS = 5
LIMIT = 20  # seconds, of any wait for Kafka

Event = dict[str, int]


class PlayLog:
    """The source of the events."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.topic = topic
        self.kafka = Producer({
            "bootstrap.servers": bootstrap,
            "message.send.max.retries": 0,  # a message whose acknowledgement was lost must not come twice
            "batch.num.messages": 1,  # Tansu tells the end of the log wrongly behind a batch of several
        })
        self.made = 0
        self.last: list[Event] = []
        self.errors: list[object] = []

    def send(self, order: dict) -> dict:
        """Obeys `send`."""
        again = self.last[:order["again"]]
        self.last = [self.new_event() for _ in range(order["new"])]
        for event in self.last + again:
            self.kafka.produce(self.topic, json.dumps(event), partition=event["device_id"] % PARTITIONS,
                               on_delivery=self.delivered)
        missing = self.kafka.flush(LIMIT)
        if missing or self.errors:
            raise RuntimeError(f"{missing} messages not delivered within {LIMIT} s; errors: {self.errors[:3]}")
        return {"messages": len(self.last) + len(again)}

    def new_event(self) -> Event:
        self.made += 1
        return {"device_id": self.made % DEVICES, "campaign_id": self.made % CAMPAIGNS,
                "event_id": self.made, "ts": int(time.time())}

    def delivered(self, error: object, _message: object) -> None:
        if error:
            self.errors.append(error)


def create_topic(bootstrap: str, topic: str) -> None:
    """Makes the topic and waits until a client sees its partitions."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    created = admin.create_topics([NewTopic(topic, num_partitions=PARTITIONS, replication_factor=1)])
    created[topic].result(LIMIT)
    deadline = time.monotonic() + LIMIT
    while time.monotonic() < deadline:
        try:
            if len(admin.list_topics(topic, timeout=5).topics[topic].partitions) == PARTITIONS:
                return
        except KafkaException:
            pass  # not known to the broker yet
        time.sleep(0.05)
    raise RuntimeError(f"topic {topic} not to be seen within {LIMIT} s")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--bootstrap", required=True)
    options.add_argument("--topic", required=True)
    arguments = options.parse_args()
    create_topic(arguments.bootstrap, arguments.topic)
    serve({"send": PlayLog(arguments.bootstrap, arguments.topic).send})


if __name__ == "__main__":
    main()
