//! Every broker of a real cluster is paused and killed in turn, round after round, while a Prometheus
//! looks at the exporter ten times a second: no figure may lie, whatever the brokers answer meanwhile.
//!
//! `make test` runs two short rounds. `DUP_OUTAGES=soak`, set by `make soak`, runs `ROUNDS` (10) with
//! more groups, and 20,000 that nobody wants.

use std::collections::BTreeSet;
use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer};

use crate::kafka::{Cluster, is_real_kafka};
use crate::program::{Program, resident};
use crate::support::{OwnParts, Page, get, wait_for};
use crate::watch::{Seen, Watch, Watcher, is_there};

const BROKERS: [&str; 3] = ["1", "2", "3"];
/// Longer than a poll may take (3 s). Kafka gives a broker up after 4 s: in even rounds while it is
/// paused, in odd ones just when it returns, so that two brokers believe that they coordinate.
const PAUSES: [Duration; 2] = [Duration::from_secs(6), Duration::from_secs(4)];
const PARTITIONS: i32 = 6;
/// More than the members read while the test runs.
const MESSAGES: usize = 5000;
const CLASSIC: usize = 8;
const MODERN: usize = 4;
/// Memory at the last round, against that at the middle one.
const GROWTH: f64 = 1.10;

struct Size {
    rounds: usize,
    groups: usize,
    /// Half of them match an exclude pattern, half are over `max_groups`.
    unwanted: usize,
}

fn size() -> Size {
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

#[test]
fn r15_no_outage_of_a_broker_makes_a_figure_lie_or_needs_a_restart() {
    if !is_real_kafka("r15_no_outage_of_a_broker_makes_a_figure_lie_or_needs_a_restart") {
        return;
    }
    let size = size();
    let mut own = OwnParts::start(&["kafka3", "clients"]);
    let stage = Stage::set(&own, &size);
    stage.wait_for_replicas();
    let mut exporter = stage.start_exporter();
    let watcher = exporter.watch(&stage);
    let mut memory = vec![];
    let mut workers = BTreeSet::new();
    for round in 0..size.rounds {
        for broker in BROKERS {
            for kind in [Outage::Pause(PAUSES[round % 2]), Outage::Kill] {
                let start = Instant::now();
                kind.happen(&mut own, broker);
                let back = exporter.recover(&stage);
                stage.wait_for_replicas();
                exporter.recover(&stage);
                let seen = watcher.seen();
                report(round, broker, kind, start.elapsed(), back, &seen);
                workers.extend(&seen.workers);
                if !seen.wrong.is_empty() {
                    exporter.give_up(&seen);
                }
            }
        }
        memory.push(exporter.memory(round));
    }
    if size.rounds > 4 {
        let (middle, last) = (memory[memory.len() / 2], memory[memory.len() - 1]);
        assert!(last <= middle * GROWTH, "memory grows: {memory:.1?} MB");
    }
    drop(watcher);
    exporter.end(&workers);
}

// ---- What happens ----

#[derive(Debug, Clone, Copy)]
enum Outage {
    Pause(Duration),
    Kill,
}

impl Outage {
    fn happen(self, own: &mut OwnParts, broker: &str) {
        match self {
            Outage::Pause(time) => {
                let pid = own.part("kafka3")["pids"][broker].to_string();
                signal("-STOP", &pid);
                std::thread::sleep(time);
                signal("-CONT", &pid);
            }
            Outage::Kill => {
                own.kill(&format!("kafka3.{broker}"));
                std::thread::sleep(PAUSES[0]);
                own.up(&["kafka3", "clients"]);
            }
        }
    }
}

fn signal(signal: &str, pid: &str) {
    let sent = Command::new("kill").args([signal, pid]).status();
    assert!(sent.expect("kill can be run").success(), "{signal} {pid}");
}

fn report(round: usize, broker: &str, kind: Outage, took: Duration, back: Duration, seen: &Seen) {
    eprintln!(
        "round {} broker {broker} {kind:?}: {took:.1?}, all is well {back:.1?} after; {} scrapes, slowest {:.0?}, workers {}",
        round + 1,
        seen.scrapes,
        seen.slowest,
        seen.workers.len()
    );
}

// ---- The cluster and its groups ----

/// The groups, whose members stay until the value is dropped.
struct Stage {
    bootstrap: String,
    cluster: Cluster,
    groups: BTreeSet<String>,
    with_members: BTreeSet<String>,
    over: usize,
    topic: String,
    _members: Vec<Member>,
}

impl Stage {
    fn set(own: &OwnParts, size: &Size) -> Self {
        let bootstrap = own.part("kafka3")["bootstrap"]
            .as_str()
            .expect("an address");
        let cluster = Cluster::at(bootstrap);
        let names = |kind: &str, count| -> BTreeSet<String> {
            (0..count)
                .map(|i| cluster.name(&format!("{kind}-{i:04}")))
                .collect()
        };
        let (classic, modern) = (names("classic", CLASSIC), names("modern", MODERN));
        let still = names("still", size.groups - CLASSIC - MODERN);
        let unwanted = |kind: &str| {
            let uuid = || format!("{:016x}-{:016x}", fastrand::u64(..), fastrand::u64(..));
            (0..size.unwanted / 2)
                .map(|_| cluster.name(&format!("{kind}-{}", uuid())))
                .collect()
        };
        let (excluded, over): (Vec<_>, Vec<_>) = (unwanted("tmp"), unwanted("uuid"));
        let silent: Vec<_> = modern.iter().map(|name| format!("!{name}")).collect();
        let topic = cluster.name("playlog");
        let all = still.iter().chain(&excluded).chain(&over).chain(&silent);
        make_groups(own, bootstrap, &topic, all);

        let member = |group: &String, more: &[(&str, &str)]| {
            let mut all = vec![("socket.timeout.ms", "3000"), ("log_level", "0")];
            all.extend(more);
            Member::keep(cluster.member(group, &topic, &all))
        };
        let patient = [("session.timeout.ms", "120000")];
        let members = classic.iter().map(|group| member(group, &patient));
        let kip_848 = [("group.protocol", "consumer")];
        let members = members
            .chain(modern.iter().map(|group| member(group, &kip_848)))
            .collect();
        let with_members: BTreeSet<_> = classic.into_iter().chain(modern).collect();
        Stage {
            groups: still
                .into_iter()
                .chain(with_members.iter().cloned())
                .collect(),
            with_members,
            over: over.len(),
            topic,
            bootstrap: bootstrap.to_owned(),
            _members: members,
            cluster,
        }
    }

    fn start_exporter(&self) -> Watched {
        // Figures are shown for longer than an outage lasts: whatever is missing was called gone.
        let yaml = format!(
            "kafka:\n  - {{name: main, bootstrap_servers: '{}', interval: 1s, timeout: 3s, stale_after: 2m, \
             groups: {{include: ['^{}'], exclude: ['\\.tmp-']}}, max_groups: {}}}\n",
            self.bootstrap,
            self.cluster.prefix,
            self.groups.len()
        );
        let config = tempfile::NamedTempFile::new().expect("a temporary file");
        std::fs::write(config.path(), yaml).expect("a writable file");
        let mut program = Program::start(config.path(), &[]);
        let url = format!("http://{}/metrics", program.address());
        Watched {
            program,
            url,
            _config: config,
        }
    }

    /// Until every broker coordinates groups again, and the next outage leaves two replicas of
    /// everything.
    fn wait_for_replicas(&self) {
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
        .arg(crate::support::root().join("dev/kafka_groups.py"))
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

/// A member that reads and commits, message by message, until the value is dropped.
struct Member {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Member {
    fn keep(consumer: BaseConsumer) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let work = move || {
            while !stopped.load(Ordering::Relaxed) {
                if let Some(Ok(message)) = consumer.poll(Duration::from_millis(100)) {
                    // One after the other, so that none overtakes a later one; in an outage it may fail.
                    let _ = consumer.commit_message(&message, CommitMode::Sync);
                }
                std::thread::sleep(Duration::from_millis(200));
            }
        };
        Member {
            stop,
            thread: Some(std::thread::spawn(work)),
        }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

// ---- The exporter ----

struct Watched {
    program: Program,
    url: String,
    _config: tempfile::NamedTempFile,
}

impl Watched {
    fn watch(&mut self, stage: &Stage) -> Watcher {
        let good = wait_for("a good look at everything", || {
            let page = self.page();
            let told = page.all("dup_consumer_group_memberless_commits").len();
            (is_well(&page, stage) && told == stage.groups.len()).then_some(page)
        });
        let watch = Watch::new(&good, stage.with_members.clone(), stage.groups.len());
        Watcher::start(self.url.clone(), self.program.id(), watch)
    }

    fn page(&self) -> Page {
        Page::parse(&get(&self.url).1)
    }

    /// Waits until everything is there again, as of a poll that began after the outage.
    fn recover(&mut self, stage: &Stage) -> Duration {
        let start = Instant::now();
        let polls = |page: &Page| page.get("dup_check_polls_total", &[]);
        let before = polls(&self.page());
        wait_for("all groups are back", || {
            let page = self.page();
            let fresh = polls(&page) >= before.map(|before| before + 2.0);
            (fresh && is_well(&page, stage)).then_some(())
        });
        start.elapsed()
    }

    /// Of exporter and worker, in MB; prints what else the round left behind.
    fn memory(&self, round: usize) -> f64 {
        let page = self.page();
        let failures = page.all("dup_check_failures_total");
        let failures = failures.iter().filter(|(_, count)| **count > 0.0);
        let failures: Vec<_> = failures
            .map(|(of, count)| format!("{} {count}", of["reason"]))
            .collect();
        let exporter = resident(self.program.id());
        let worker: f64 = crate::program::children(self.program.id())
            .into_iter()
            .map(resident)
            .sum();
        eprintln!(
            "round {}: exporter {exporter:.1} MB + worker {worker:.1} MB; failures so far: {}",
            round + 1,
            failures.join(", ")
        );
        exporter + worker
    }

    fn give_up(&mut self, seen: &Seen) -> ! {
        self.program.stop("-TERM");
        let log = self.program.rest();
        let log = log[log.len().saturating_sub(60)..].join("\n");
        let wrong = &seen.wrong[..seen.wrong.len().min(30)];
        panic!("{} lies, of them {wrong:#?}\n{log}", seen.wrong.len());
    }

    fn end(mut self, workers: &BTreeSet<u32>) {
        let (status, _) = self.program.stop("-TERM");
        assert!(status.success(), "{status}");
        wait_for("no worker outlives the exporter", || {
            (!workers.iter().any(|pid| is_there(*pid))).then_some(())
        });
    }
}

/// Whether every group is there, and nothing but the groups over `max_groups` is left out.
fn is_well(page: &Page, stage: &Stage) -> bool {
    let shown = page.all("dup_consumer_group_members");
    let up = |name| page.get(name, &[]) == Some(1.0);
    let unreadable = page.all("dup_check_unreadable");
    let unreadable = unreadable.iter().filter(|(_, count)| **count > 0.0);
    let unreadable: Vec<_> = unreadable
        .map(|(of, count)| (&*of["reason"], *count))
        .collect();
    up("dup_check_up")
        && up("dup_source_up")
        && shown.len() == stage.groups.len()
        && shown
            .keys()
            .all(|labels| stage.groups.contains(&labels["group"]))
        && unreadable == [("limit", stage.over as f64)]
}
