//! Every broker of a real cluster is paused and killed in turn, round after round, while a Prometheus
//! looks at the exporter ten times a second: no figure may lie, whatever the brokers answer meanwhile.
//!
//! `make test` runs two short rounds. `DUP_OUTAGES=soak`, set by `make soak`, runs `ROUNDS` (10) with
//! more groups, and 20,000 that nobody wants.

use std::collections::BTreeSet;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::crowd::{BROKERS, Crowd, Size};
use crate::kafka::is_real_kafka;
use crate::program::{Program, children, resident};
use crate::support::{OwnParts, Page, get, wait_for};
use crate::watch::{Seen, Watch, Watcher, is_there};

/// Longer than a poll may take (3 s). Kafka gives a broker up after 4 s: in one round while it is
/// paused, in the next just when it returns, so that two brokers believe that they coordinate.
const PAUSES: [Duration; 2] = [Duration::from_secs(6), Duration::from_secs(4)];
/// In which all is well at the start and after an outage: seconds, but for a machine that is starved.
const RECOVERY: Duration = Duration::from_secs(180);
/// Memory at the last round, against that at the middle one.
const GROWTH: f64 = 1.10;

#[test]
fn r15_no_outage_of_a_broker_makes_a_figure_lie_or_needs_a_restart() {
    if !is_real_kafka("r15_no_outage_of_a_broker_makes_a_figure_lie_or_needs_a_restart") {
        return;
    }
    let size = Size::wanted();
    let mut own = OwnParts::start(&["kafka3", "clients"]);
    let crowd = Crowd::gather(&own, &size);
    crowd.wait_for_replicas();
    let mut exporter = Watched::start(&crowd);
    let watcher = exporter.watch(&crowd);
    let mut memory = vec![];
    let mut workers = BTreeSet::new();
    for round in 0..size.rounds {
        let mut committing = BTreeSet::new();
        for broker in BROKERS {
            for kind in [Outage::Pause(PAUSES[round % 2]), Outage::Kill] {
                let start = Instant::now();
                kind.happen(&mut own, broker);
                let back = exporter.recover(&crowd);
                crowd.wait_for_replicas();
                exporter.recover(&crowd);
                let seen = watcher.seen();
                report(round, broker, kind, start.elapsed(), back, &seen);
                workers.extend(&seen.workers);
                committing.extend(seen.committing.iter().cloned());
                if !seen.wrong.is_empty() {
                    let some = &seen.wrong[..seen.wrong.len().min(30)];
                    exporter.give_up(&format!("{} lies, such as {some:#?}", seen.wrong.len()));
                }
            }
        }
        assert_eq!(committing, crowd.with_members, "the members are alive");
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

// ---- The exporter ----

struct Watched {
    program: Program,
    url: String,
    _config: tempfile::NamedTempFile,
}

impl Watched {
    fn start(crowd: &Crowd) -> Self {
        // Figures are shown for longer than the test lasts: whatever is missing was called gone.
        let yaml = format!(
            "kafka:\n  - {{name: main, bootstrap_servers: '{}', interval: 1s, timeout: 3s, stale_after: 1h, \
             groups: {{include: ['^{}'], exclude: ['\\.tmp-']}}, max_groups: {}}}\n",
            crowd.bootstrap,
            crowd.cluster.prefix,
            crowd.wanted.len()
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

    fn watch(&mut self, crowd: &Crowd) -> Watcher {
        let good = self.page_when("there is no good look at everything", |page| {
            let told = page.all("dup_consumer_group_memberless_commits").len();
            is_well(page, crowd) && told == crowd.wanted.len()
        });
        let watch = Watch::new(&good, crowd.with_members.clone(), crowd.wanted.len());
        Watcher::start(self.url.clone(), self.program.id(), watch)
    }

    /// Scrapes until a page is as it shall be.
    fn page_when(&mut self, never: &str, as_it_shall_be: impl Fn(&Page) -> bool) -> Page {
        let start = Instant::now();
        loop {
            let page = self.page();
            if as_it_shall_be(&page) {
                return page;
            }
            if start.elapsed() > RECOVERY {
                self.give_up(&format!("{never}:\n{}", self_metrics(&page)));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn page(&self) -> Page {
        Page::parse(&get(&self.url).1)
    }

    /// Waits until everything is there again, as of a poll that began after the outage.
    fn recover(&mut self, crowd: &Crowd) -> Duration {
        let start = Instant::now();
        let polls = |page: &Page| page.get("dup_check_polls_total", &[]);
        let before = polls(&self.page());
        self.page_when("all is not well again", |page| {
            let fresh = polls(page) >= before.map(|before| before + 2.0);
            fresh && is_well(page, crowd)
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
        let worker: f64 = children(self.program.id()).into_iter().map(resident).sum();
        eprintln!(
            "round {}: exporter {exporter:.1} MB + worker {worker:.1} MB; failures so far: {}",
            round + 1,
            failures.join(", ")
        );
        exporter + worker
    }

    fn give_up(&mut self, why: &str) -> ! {
        self.program.stop("-TERM");
        let log = self.program.rest();
        panic!("{why}\n{}", log[log.len().saturating_sub(60)..].join("\n"));
    }

    fn end(mut self, workers: &BTreeSet<u32>) {
        let (status, _) = self.program.stop("-TERM");
        assert!(status.success(), "{status}");
        wait_for("no worker outlives the exporter", || {
            (!workers.iter().any(|pid| is_there(*pid))).then_some(())
        });
    }
}

fn self_metrics(page: &Page) -> String {
    let lines = page.text.lines();
    let own = lines.filter(|line| line.starts_with("dup_check") || line.starts_with("dup_source"));
    own.filter(|line| !line.ends_with(" 0"))
        .collect::<Vec<_>>()
        .join("\n")
}

/// Whether every group is there, and nothing but the groups over `max_groups` is left out.
fn is_well(page: &Page, crowd: &Crowd) -> bool {
    let shown = page.all("dup_consumer_group_members");
    let up = |name| page.get(name, &[]) == Some(1.0);
    let unreadable = page.all("dup_check_unreadable");
    let unreadable = unreadable.iter().filter(|(_, count)| **count > 0.0);
    let unreadable: Vec<_> = unreadable
        .map(|(of, count)| (&*of["reason"], *count))
        .collect();
    up("dup_check_up")
        && up("dup_source_up")
        && shown.len() == crowd.wanted.len()
        && shown
            .keys()
            .all(|labels| crowd.wanted.contains(&labels["group"]))
        && unreadable == [("limit", crowd.over as f64)]
}
