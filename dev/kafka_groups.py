"""Makes a topic, and consumer groups that exist by their commits alone, thousands a second.

Run by the Python of the part `clients`: kafka_groups.py BOOTSTRAP TOPIC PARTITIONS MESSAGES, with the names of the groups
on standard input, one a line. A topic that is there stays as it is; else each partition gets so many messages. Each group
has committed offset 1 in every partition. For a name that follows a `!`, nothing is committed: the group's members of the
protocol of KIP-848 may be silent for as long as Kafka allows.
"""

import sys
from itertools import islice

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType

AT_ONCE = 500  # requests on their way
LIMIT = 60  # seconds that one may take
SILENCE = "45000"  # ms


def make_topic(servers, admin, topic, partitions, messages):
    there = admin.list_topics(timeout=LIMIT)
    if topic in there.topics:
        return
    admin.create_topics([NewTopic(topic, partitions, min(3, len(there.brokers)))])[topic].result(LIMIT)
    producer = Producer(servers | {"acks": "all", "retries": 1000})
    for number in range(messages):
        for partition in range(partitions):
            producer.produce(topic, str(number), partition=partition)
        producer.poll(0)
    if left := producer.flush(LIMIT):
        raise SystemExit(f"{left} messages were not delivered to {topic}")


def commit(admin, topic, partitions, names):
    names = iter(names)
    while some := list(islice(names, AT_ONCE)):
        asked = []
        for name in some:
            offsets = [TopicPartition(topic, partition, 1) for partition in range(partitions)]
            request = [ConsumerGroupTopicPartitions(name, offsets)]
            asked += admin.alter_consumer_group_offsets(request, request_timeout=LIMIT).values()
        for answer in asked:
            for partition in answer.result(LIMIT).topic_partitions:
                if partition.error:
                    raise KafkaException(partition.error)


def let_be_silent(admin, names):
    entry = ConfigEntry("consumer.session.timeout.ms", SILENCE, incremental_operation=AlterConfigOpType.SET)
    resources = [ConfigResource(ResourceType.GROUP, name, incremental_configs=[entry]) for name in names]
    for answer in admin.incremental_alter_configs(resources).values() if resources else ():
        answer.result(LIMIT)


def main(bootstrap, topic, partitions, messages):
    servers = {"bootstrap.servers": bootstrap, "log_level": "3"}  # what matters is raised
    admin = AdminClient(servers)
    make_topic(servers, admin, topic, int(partitions), int(messages))
    names = sys.stdin.read().splitlines()
    commit(admin, topic, int(partitions), (name for name in names if not name.startswith("!")))
    let_be_silent(admin, [name[1:] for name in names if name.startswith("!")])


if __name__ == "__main__":
    main(*sys.argv[1:])
