//! Kafka clients for the tests: topics, commits and members that are not the exporter's.

use std::collections::BTreeSet;
use std::time::Duration;

use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::config::ClientConfig;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer};
use rdkafka::error::KafkaResult;
use rdkafka::metadata::MetadataPartition;
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use rdkafka::{Offset, TopicPartitionList};

use crate::kafka_wire::Wire;
use crate::support::{PATIENCE, part, unique, wait_for};

/// A broker, and a prefix that makes the names of one test its own.
pub struct Cluster {
    bootstrap: String,
    pub prefix: String,
}

impl Cluster {
    /// The broker of the test run.
    pub fn shared() -> Self {
        Cluster::at(part("kafka")["bootstrap"].as_str().expect("an address"))
    }

    pub fn at(bootstrap: &str) -> Self {
        Cluster {
            bootstrap: bootstrap.into(),
            prefix: unique("it"),
        }
    }

    /// The Kafka of the major before.
    pub fn old() -> Self {
        Cluster::at(part("kafka-39")["bootstrap"].as_str().expect("an address"))
    }

    pub fn wire(&self) -> Wire {
        Wire::connect(&self.bootstrap)
    }

    /// The name of a group or topic of this test.
    pub fn name(&self, name: &str) -> String {
        format!("{}.{name}", self.prefix)
    }

    /// A source that watches the groups of this test alone. `more` is appended, as YAML flow.
    pub fn source(&self, more: &str) -> String {
        self.source_every("1s", more)
    }

    /// The same, looked at in this interval.
    pub fn source_every(&self, interval: &str, more: &str) -> String {
        format!(
            "kafka:\n  - {{name: main, bootstrap_servers: '{}', interval: {interval}, \
             groups: {{include: ['^{}']}}{more}}}\n",
            self.bootstrap, self.prefix
        )
    }

    fn config(&self) -> ClientConfig {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", &self.bootstrap);
        config
    }

    fn admin(&self) -> AdminClient<DefaultClientContext> {
        self.config().create().expect("an admin client")
    }

    /// Creates a topic with this many partitions and messages in each.
    pub fn topic(&self, name: &str, partitions: i32, messages: usize) -> String {
        let topic = self.name(name);
        let new = NewTopic::new(&topic, partitions, TopicReplication::Fixed(1));
        let created = block_on(self.admin().create_topics([&new], &AdminOptions::new()));
        for outcome in created.expect("an answer") {
            outcome.expect("a new topic");
        }
        // The fallback tells the end of a log wrongly behind a batch of several.
        let mut config = self.config();
        config.set("batch.num.messages", "1");
        let producer: BaseProducer = config.create().expect("a producer");
        for partition in 0..partitions {
            for message in 0..messages {
                let payload = message.to_string();
                let record: BaseRecord<'_, (), String> = BaseRecord::to(&topic)
                    .partition(partition)
                    .payload(&payload);
                producer.send(record).expect("room in the queue");
            }
        }
        producer.flush(PATIENCE).expect("delivery");
        topic
    }

    /// The brokers that lead a partition of the topic, each rightfully; `None` while some replica is
    /// behind, or some partition is not led by whoever should.
    pub fn leaders(&self, topic: &str, replicas: usize) -> Option<BTreeSet<i32>> {
        let consumer = self.consumer("nobody", &[]);
        let metadata = consumer.fetch_metadata(Some(topic), PATIENCE).ok()?;
        let partitions = metadata.topics().first()?.partitions();
        let well = |p: &&MetadataPartition| {
            p.isr().len() == replicas && p.replicas().first() == Some(&p.leader())
        };
        let leaders = partitions
            .iter()
            .filter(well)
            .map(MetadataPartition::leader);
        (partitions.iter().filter(well).count() == partitions.len()).then(|| leaders.collect())
    }

    /// Deletes a topic of this test.
    pub fn delete_topic(&self, topic: &str) {
        let deleted = block_on(self.admin().delete_topics(&[topic], &AdminOptions::new()));
        for outcome in deleted.expect("an answer") {
            outcome.expect("a deleted topic");
        }
    }

    pub fn delete_group(&self, group: &str) {
        let deleted = block_on(self.admin().delete_groups(&[group], &AdminOptions::new()));
        for outcome in deleted.expect("an answer") {
            outcome.expect("a deleted group");
        }
    }

    /// Commits offsets without being a member, as a worker with assign() does.
    pub fn commit(&self, group: &str, topic: &str, offsets: &[(i32, i64)]) {
        let worker = self.worker(group);
        commit(&worker, topic, offsets).expect("a commit");
    }

    /// A worker with assign(), which is no member of its group.
    pub fn worker(&self, group: &str) -> BaseConsumer {
        self.consumer(group, &[])
    }

    /// A member of the group that has got its partitions; it leaves when it is dropped.
    pub fn member(&self, group: &str, topic: &str, more: &[(&str, &str)]) -> BaseConsumer {
        let consumer = self.subscriber(group, topic, more);
        settle(&[&consumer]);
        consumer
    }

    /// A consumer that is about to become a member.
    pub fn subscriber(&self, group: &str, topic: &str, more: &[(&str, &str)]) -> BaseConsumer {
        let consumer = self.consumer(group, more);
        consumer.subscribe(&[topic]).expect("a subscription");
        consumer
    }

    fn consumer(&self, group: &str, more: &[(&str, &str)]) -> BaseConsumer {
        let mut config = self.config();
        config
            .set("group.id", group)
            .set("enable.auto.commit", "false")
            .set("auto.offset.reset", "earliest");
        for (key, value) in more {
            config.set(*key, *value);
        }
        config.create().expect("a consumer")
    }
}

/// Commits as the assign() worker or the member that the consumer is.
pub fn commit(consumer: &BaseConsumer, topic: &str, offsets: &[(i32, i64)]) -> KafkaResult<()> {
    let mut list = TopicPartitionList::new();
    for (partition, offset) in offsets {
        list.add_partition_offset(topic, *partition, Offset::Offset(*offset))?;
    }
    consumer.commit(&list, CommitMode::Sync)
}

/// Waits until each of these members of one group has partitions.
pub fn settle(members: &[&BaseConsumer]) {
    wait_for("the members get their partitions", || {
        let have_some = members.iter().map(|member| {
            let _ = member.poll(Duration::from_millis(50));
            member.assignment().expect("an assignment").count() > 0
        });
        // Every one must be polled, so that none keeps the others waiting.
        let have_some: Vec<bool> = have_some.collect();
        have_some.iter().all(|&some| some).then_some(())
    });
}

/// Whether the broker is a real Kafka; the fallback knows no members, keeps deleted groups, and loses
/// groups with odd names. A test of such things ends when this is false, and the skip is written
/// down by name.
pub fn is_real_kafka(test: &str) -> bool {
    is_real("kafka", test)
}

/// The same for another part that is a broker.
pub fn is_real(broker: &str, test: &str) -> bool {
    if part(broker)["kind"] != "tansu" {
        return true;
    }
    assert!(
        std::env::var_os("DUP_REQUIRE_KAFKA").is_none_or(|required| required != "1"),
        "{test} needs a real Kafka, which DUP_REQUIRE_KAFKA=1 demands"
    );
    if let Some(file) = std::env::var_os("DUP_TEST_SKIPS") {
        use std::io::Write;
        let file = std::fs::OpenOptions::new()
            .append(true)
            .create(true)
            .open(file);
        writeln!(file.expect("a file for skips"), "{test}").expect("a line");
    }
    false
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Runtime::new()
        .expect("a runtime")
        .block_on(future)
}
