//! A Prometheus that never looks away: scrapes the exporter ten times a second, and notes whatever
//! no scrape may show.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::program::children;
use crate::support::Page;

const PAUSE: Duration = Duration::from_millis(100);
/// How long a scrape may take, and how long when everybody on the machine waits for a processor.
const SLOWEST: Duration = Duration::from_secs(1);
const SLOWEST_IN_A_CROWD: Duration = Duration::from_millis(2500);
/// Processes in a queue for each processor that make a crowd.
const CROWD: f64 = 10.0;
/// Scrapes after which a second worker, or a dead one, counts: one is killed before the next starts.
const SETTLING: usize = 5;

/// What must hold, and what was seen so far.
pub struct Watch {
    /// Groups whose members stay all the time, and commit.
    with_members: BTreeSet<String>,
    /// Every line there may be about all other groups, which stand still.
    still: HashSet<String>,
    /// Groups with members and without.
    groups: usize,
    /// The last committed offsets of the groups with members.
    committed: BTreeMap<String, f64>,
    unsettled: usize,
    pub seen: Seen,
}

#[derive(Default, Clone)]
pub struct Seen {
    pub scrapes: usize,
    pub slowest: Duration,
    pub workers: BTreeSet<u32>,
    /// Groups whose committed offsets rose.
    pub committing: BTreeSet<String>,
    /// What no scrape may show.
    pub wrong: Vec<String>,
}

impl Watch {
    /// `good` is a page from before the outages, with everything on it.
    pub fn new(good: &Page, with_members: BTreeSet<String>, groups: usize) -> Self {
        let of_group = good
            .text
            .lines()
            .filter_map(|line| Some((line, group(line)?)));
        let still = of_group.filter(|(_, group)| !with_members.contains(*group));
        Watch {
            still: still.map(|(line, _)| line.to_owned()).collect(),
            with_members,
            groups,
            committed: BTreeMap::new(),
            unsettled: 0,
            seen: Seen::default(),
        }
    }

    fn wrong(&mut self, what: impl Into<String>) {
        self.seen.wrong.push(what.into());
    }

    fn take_in(&mut self, page: &str, took: Duration) {
        self.seen.scrapes += 1;
        self.seen.slowest = self.seen.slowest.max(took);
        if took > SLOWEST_IN_A_CROWD || took > SLOWEST && !is_crowded() {
            self.wrong(format!("a scrape took {took:?}"));
        }
        let mut groups = 0;
        for line in page.lines() {
            let Some(group) = group(line) else { continue };
            groups += usize::from(line.starts_with("dup_consumer_group_info{"));
            if self.with_members.contains(group) {
                self.with_member(line, group);
            } else if !self.still.contains(line) {
                self.wrong(line);
            }
        }
        if groups != self.groups {
            self.wrong(format!("{groups} groups, of {}", self.groups));
        }
    }

    /// A line about a group that has one member and commits ever newer offsets.
    fn with_member(&mut self, line: &str, group: &str) {
        let value: f64 = line
            .rsplit(' ')
            .next()
            .and_then(|v| v.parse().ok())
            .expect("a number");
        let family = line.split('{').next().unwrap_or_default();
        let right = match family.trim_start_matches("dup_consumer_group_") {
            "members" => value == 1.0,
            "state" => value == 0.0 || !(line.contains("\"Empty\"") || line.contains("\"Dead\"")),
            "info" => line.contains("simple=\"0\""),
            "memberless_commits" | "rewinds_total" | "rewound_messages_total" => value == 0.0,
            "committed_offset" => {
                let before = self.committed.insert(group.to_owned(), value);
                if before.is_some_and(|before| value > before) {
                    self.seen.committing.insert(group.to_owned());
                }
                // A new coordinator may tell an older commit for a moment. That must not count as a rewind.
                value > 0.0
            }
            _ => true,
        };
        if !right {
            self.wrong(line);
        }
    }

    fn look_at_processes(&mut self, exporter: u32) {
        let workers = children(exporter);
        let dead = workers.iter().filter(|pid| is_zombie(**pid)).count();
        self.seen.workers.extend(&workers);
        let settled = is_there(exporter) && workers.len() <= 1 && dead == 0;
        self.unsettled = if settled { 0 } else { self.unsettled + 1 };
        if self.unsettled == SETTLING {
            self.wrong(format!(
                "exporter {exporter} with workers {workers:?}, of them dead: {dead}"
            ));
        }
    }
}

/// Whether far more is to be done than this machine can do at once.
fn is_crowded() -> bool {
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let last_minute = load
        .split(' ')
        .next()
        .and_then(|load| load.parse::<f64>().ok());
    let processors = std::thread::available_parallelism().map_or(1, usize::from) as f64;
    last_minute.is_some_and(|waiting| waiting > CROWD * processors)
}

/// The group that a line is about.
fn group(line: &str) -> Option<&str> {
    let (_, rest) = line
        .strip_prefix("dup_consumer_group_")?
        .split_once("group=\"")?;
    rest.split('"').next()
}

pub fn is_there(pid: u32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists() && !is_zombie(pid)
}

fn is_zombie(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')')
        .next()
        .is_some_and(|rest| rest.starts_with(" Z"))
}

/// A watch that a thread keeps until the value is dropped.
pub struct Watcher {
    watch: Arc<Mutex<Watch>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Watcher {
    pub fn start(url: String, exporter: u32, watch: Watch) -> Self {
        let watch = Arc::new(Mutex::new(watch));
        let stop = Arc::new(AtomicBool::new(false));
        let (shared, stopped) = (watch.clone(), stop.clone());
        let scrape = move || {
            while !stopped.load(Ordering::Relaxed) {
                let start = Instant::now();
                let page = scrape(&url);
                let took = start.elapsed();
                let mut watch = shared.lock().expect("a whole watch");
                match page {
                    Ok(page) => watch.take_in(&page, took),
                    Err(error) => watch.wrong(format!("a scrape failed: {error}")),
                }
                watch.look_at_processes(exporter);
                drop(watch);
                std::thread::sleep(PAUSE);
            }
        };
        Watcher {
            watch,
            stop,
            thread: Some(std::thread::spawn(scrape)),
        }
    }

    /// What was seen since the last call.
    pub fn seen(&self) -> Seen {
        let mut watch = self.watch.lock().expect("a whole watch");
        std::mem::take(&mut watch.seen)
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn scrape(url: &str) -> Result<String, ureq::Error> {
    let limit = Some(Duration::from_secs(10));
    let mut answer = ureq::get(url)
        .config()
        .timeout_global(limit)
        .build()
        .call()?;
    answer
        .body_mut()
        .with_config()
        .limit(1 << 30)
        .read_to_string()
}
