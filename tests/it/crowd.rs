//! A cluster of three brokers with many consumer groups: most of them stand still, some have members
//! that read and commit all the time, and some nobody wants to see.

use std::collections::BTreeSet;
use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer};

use crate::kafka::Cluster;
use crate::support::{OwnParts, root, wait_for};

pub const BROKERS: [&str; 3] = ["1", "2", "3"];
const PARTITIONS: i32 = 6;
/// More than the members read while the test runs.
const MESSAGES: usize = 5000;
const CLASSIC: usize = 8;
const MODERN: usize = 4;

/// How long the test is.
pub struct Size {
    pub rounds: usize,
    pub groups: usize,
    /// Half of them match an exclude pattern, half are over `max_groups`.
    pub unwanted: usize,
}

impl Size {
    pub fn wanted() -> Self {
        if std::env::var_os("DUP_OUTAGES").is_none_or(|size| size != "soak") {
            return Size {
                rounds: 2,
                groups: 200,
                unwanted: 100,
            };
        }
        let rounds = std::env::var("ROUNDS").map_or(10, |rounds| rounds.parse().expect("a number"));
        Size {
            rounds,
            groups: 500,
            unwanted: 20_000,
        }
    }
}

/// The groups, whose members stay until the value is dropped.
pub struct Crowd {
    pub bootstrap: String,
    pub cluster: Cluster,
    /// The groups that the exporter shall show.
    pub wanted: BTreeSet<String>,
    /// Those of them that have a member, which commits.
    pub with_members: BTreeSet<String>,
    /// How many it shall leave out by `max_groups`.
    pub over: usize,
    topic: String,
    _members: Vec<Member>,
}

impl Crowd {
    pub fn gather(own: &OwnParts, size: &Size) -> Self {
        let bootstrap = own.part("kafka3")["bootstrap"]
            .as_str()
            .expect("an address");
        let cluster = Cluster::at(bootstrap);
        let topic = cluster.name("playlog");
        let names = |kind: &str, count| -> BTreeSet<String> {
            (0..count)
                .map(|i| cluster.name(&format!("{kind}-{i:04}")))
                .collect()
        };
        let (classic, modern) = (names("classic", CLASSIC), names("modern", MODERN));
        let still = names("still", size.groups - CLASSIC - MODERN);
        let uuids = |kind: &str| -> Vec<String> {
            let uuid = || {
                format!(
                    "{kind}-{:016x}-{:016x}",
                    fastrand::u64(..),
                    fastrand::u64(..)
                )
            };
            (0..size.unwanted / 2)
                .map(|_| cluster.name(&uuid()))
                .collect()
        };
        let (excluded, over) = (uuids("tmp"), uuids("uuid"));
        let silent: Vec<_> = modern.iter().map(|name| format!("!{name}")).collect();
        let all = still.iter().chain(&excluded).chain(&over).chain(&silent);
        make_groups(own, bootstrap, &topic, all);
        let with_members = &classic | &modern;
        Crowd {
            wanted: &still | &with_members,
            with_members,
            over: over.len(),
            bootstrap: bootstrap.to_owned(),
            _members: members(&cluster, &topic, &classic, &modern),
            topic,
            cluster,
        }
    }

    /// Until every broker coordinates groups again, and the next outage leaves two replicas of
    /// everything.
    pub fn wait_for_replicas(&self) {
        for topic in [&*self.topic, "__consumer_offsets"] {
            let leaders = wait_for("all replicas are in sync", || {
                self.cluster.leaders(topic, BROKERS.len())
            });
            assert_eq!(leaders.len(), BROKERS.len(), "{leaders:?} lead {topic}");
        }
    }
}

fn make_groups<'a>(
    own: &OwnParts,
    bootstrap: &str,
    topic: &str,
    names: impl Iterator<Item = &'a String>,
) {
    let python = own.part("clients")["python"].as_str().expect("a path");
    let mut script = Command::new(python)
        .arg(root().join("dev/kafka_groups.py"))
        .args([
            bootstrap,
            topic,
            &PARTITIONS.to_string(),
            &MESSAGES.to_string(),
        ])
        .stdin(Stdio::piped())
        .spawn()
        .expect("python can be run");
    let names = names.fold(String::new(), |all, name| all + name + "\n");
    let mut stdin = script.stdin.take().expect("a pipe");
    stdin.write_all(names.as_bytes()).expect("a reader");
    drop(stdin);
    assert!(script.wait().expect("a child of ours").success());
}

/// Their coordinator may miss them for longer than an outage; its answers, they do not await as long.
fn members(
    cluster: &Cluster,
    topic: &str,
    classic: &BTreeSet<String>,
    modern: &BTreeSet<String>,
) -> Vec<Member> {
    let member = |group: &String, how: (&str, &str)| {
        let all = [("socket.timeout.ms", "3000"), ("log_level", "0"), how];
        Member::keep(cluster.member(group, topic, &all))
    };
    let classic = classic
        .iter()
        .map(|it| member(it, ("session.timeout.ms", "120000")));
    let modern = modern
        .iter()
        .map(|it| member(it, ("group.protocol", "consumer")));
    classic.chain(modern).collect()
}

/// A member that reads and commits, message by message, until the value is dropped. Its end is not
/// waited for: after outages librdkafka may hang in closing a consumer, and the brokers end with the
/// test.
struct Member(Arc<AtomicBool>);

impl Member {
    fn keep(consumer: BaseConsumer) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                if let Some(Ok(message)) = consumer.poll(Duration::from_millis(100)) {
                    // One after the other, so that none overtakes a later one; in an outage it may fail.
                    let _ = consumer.commit_message(&message, CommitMode::Sync);
                }
                std::thread::sleep(Duration::from_millis(200));
            }
        });
        Member(stop)
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
