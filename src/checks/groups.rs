//! Check of a cluster's consumer groups: who reads, how far, whether offsets went back, and whether
//! somebody commits without being a member.
//!
//! A group that has no members and yet moves its offsets has consumers outside the group: with
//! assign() nobody divides the partitions, so two such workers read everything twice.

use std::any::Any;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use serde_saphyr::Spanned;
use tokio::time::Instant;

use super::Sources;
use crate::config::values::{Names, Pattern, Span};
use crate::config::{Invalid, Timing};
use crate::error::{Error, Reason};
use crate::history::{Offsets, Ring};
use crate::poll::{Check, Planned};
use crate::sample::{Family, Sample};
use crate::self_metrics::SourceHealth;
use crate::snapshot::Report;
use crate::sources::kafka::{
    Filter, Group, GroupReader, Protocol, REASONS, Snapshot, State, WorkerClient,
};

const DEFAULT_MAX_GROUPS: usize = 5_000;
const DEFAULT_WINDOW: Span = Span::seconds(900);
/// How long a new coordinator's answers may lag behind those of the one before. It tells only what
/// its replicas have confirmed, which a dead one among them delays by `replica.lag.time.max.ms`; and
/// one that was cut off tells old commits until it learns that there is another.
const SETTLING: Duration = Duration::from_secs(30);

// ---- Configuration ----

/// Which groups are watched, and how they are judged.
#[derive(Debug, Clone)]
pub struct Config {
    pub groups: Names,
    pub topics: Names,
    /// How far back looks count when commits without members are judged.
    pub window: Span,
    /// Groups that commit without members by design.
    pub ignore: Vec<Pattern>,
    pub expected_members: BTreeMap<Pattern, u32>,
    pub max_groups: usize,
}

/// The part of a Kafka source that is about groups.
pub struct RawConfig {
    pub groups: Option<Names>,
    pub topics: Option<Names>,
    pub memberless: Option<RawMemberless>,
    pub expected_members: BTreeMap<Pattern, u32>,
    pub max_groups: Option<usize>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawMemberless {
    window: Option<Spanned<Span>>,
    #[serde(default)]
    ignore: Vec<Pattern>,
}

impl RawConfig {
    pub fn validate(self, timing: &Timing) -> Result<Config, Invalid> {
        let memberless = self.memberless.unwrap_or_default();
        let two_looks = Span(timing.interval.0 * 2);
        if let Some(window) = memberless.window.as_ref().filter(|w| w.value < two_looks) {
            let message = format!(
                "the window {} holds less than two looks: make it at least {two_looks}",
                window.value
            );
            return Err(Invalid::new(window, message));
        }
        Ok(Config {
            groups: self.groups.unwrap_or_default(),
            topics: self.topics.unwrap_or_default(),
            window: memberless
                .window
                .map_or(DEFAULT_WINDOW.max(two_looks), |window| window.value),
            ignore: memberless.ignore,
            expected_members: self.expected_members,
            max_groups: self.max_groups.unwrap_or(DEFAULT_MAX_GROUPS),
        })
    }
}

// ---- Families ----

const GROUP: &[&str] = &["source", "group"];
const TOPIC: &[&str] = &["source", "group", "topic"];

static MEMBERS: Family = Family::gauge(
    "dup_consumer_group_members",
    GROUP,
    "Members of the group, as of the last poll.",
);
static EXPECTED_MEMBERS: Family = Family::gauge(
    "dup_consumer_group_expected_members",
    GROUP,
    "Members that the configuration expects the group to have.",
);
static STATE: Family = Family::gauge(
    "dup_consumer_group_state",
    &["source", "group", "state"],
    "1 for the state of the group as of the last poll, 0 for the others; absent when the state is \
     not known.",
);
static INFO: Family = Family::gauge(
    "dup_consumer_group_info",
    &["source", "group", "protocol", "assignor", "simple"],
    "Always 1; simple is 1 when no member ever joined the group, so that its commits come from \
     assign().",
);
static COMMITTED_OFFSET: Family = Family::gauge(
    "dup_consumer_group_committed_offset",
    TOPIC,
    "Sum of the committed offsets of the partitions that have one, as of the last poll.",
);
static LAG: Family = Family::gauge(
    "dup_consumer_group_lag",
    TOPIC,
    "Messages between the committed offsets and the ends of the logs, as of the last poll.",
);
static COMMITTED_MESSAGES: Family = Family::counter(
    "dup_consumer_group_committed_messages_total",
    TOPIC,
    "Messages by which committed offsets moved forward from poll to poll; after a rewind the same \
     messages count again.",
);
static REWINDS: Family = Family::counter(
    "dup_consumer_group_rewinds_total",
    TOPIC,
    "Times that the committed offset of a partition was found behind an earlier one.",
);
static REWOUND_MESSAGES: Family = Family::counter(
    "dup_consumer_group_rewound_messages_total",
    TOPIC,
    "Messages by which committed offsets went back from poll to poll.",
);
static MEMBERLESS_COMMITS: Family = Family::gauge(
    "dup_consumer_group_memberless_commits",
    GROUP,
    "1 when several looks within memberless.window all found the group without members and yet \
     committed offsets moved forward between them, 0 when not; absent when not known.",
);

/// Every family of this check.
pub const FAMILIES: &[&Family] = &[
    &MEMBERS,
    &EXPECTED_MEMBERS,
    &STATE,
    &INFO,
    &COMMITTED_OFFSET,
    &LAG,
    &COMMITTED_MESSAGES,
    &REWINDS,
    &REWOUND_MESSAGES,
    &MEMBERLESS_COMMITS,
];

// ---- The maths ----

/// What earlier looks at a cluster left behind.
#[derive(Default)]
struct Memory {
    cluster_id: Option<String>,
    groups: BTreeMap<String, History>,
    /// Those of the last look.
    log_ends: Offsets,
}

impl Memory {
    /// The memory to judge a look at this cluster with: none of another cluster that has come to
    /// answer under the same address, whose offsets mean nothing here.
    fn of(&mut self, cluster_id: Option<String>) -> &mut Self {
        if self.cluster_id.is_some() && cluster_id.is_some() && self.cluster_id != cluster_id {
            *self = Memory::default();
        }
        self.cluster_id = cluster_id.or(self.cluster_id.take());
        self
    }
}

/// What earlier looks at one group left behind.
#[derive(Default)]
struct History {
    looks: Looks,
    /// The newest known commit of each partition.
    committed: Offsets,
    moves: BTreeMap<String, Moves>,
    coordinator: Coordinator,
}

/// Who answers for the group.
#[derive(Default)]
struct Coordinator {
    /// The broker of the last look; the inner `None`: not known.
    last: Option<Option<i32>>,
    moved: Option<Instant>,
}

/// Where the logs ended at this look and at the one before.
struct LogEnds<'a> {
    now: &'a Offsets,
    before: &'a Offsets,
}

/// What a log's end says of commits to it.
#[derive(Debug, Clone, Copy, PartialEq)]
enum LogEnd {
    Unknown,
    /// The log ends here, and did not go back.
    At(i64),
    /// The log ends before where it ended: its topic was deleted and made anew.
    MadeAnew,
}

impl LogEnds<'_> {
    fn of(&self, topic: &str, partition: i32) -> LogEnd {
        let find = |ends: &Offsets| ends.get(topic)?.get(&partition).copied();
        match (find(self.before), find(self.now)) {
            (_, None) => LogEnd::Unknown,
            (Some(before), Some(now)) if now < before => LogEnd::MadeAnew,
            (_, Some(now)) => LogEnd::At(now),
        }
    }
}

/// When the group was looked at, as far as commits without members are concerned.
#[derive(Default, Clone, Copy)]
struct Looks {
    last: Option<Instant>,
    before: Option<Instant>,
    /// The last one that found the group other than empty.
    with_members: Option<Instant>,
    /// The one after which offsets were last seen to have moved forward.
    before_move: Option<Instant>,
}

/// How far the commits of one topic moved since the exporter first saw them.
#[derive(Debug, Default, Clone, Copy, PartialEq)]
struct Moves {
    forward: u64,
    rewinds: u64,
    rewound: u64,
}

impl History {
    /// Takes in a look at `now`. A step back is not judged while the coordinator settles.
    fn take_in(&mut self, group: &Group, log_ends: &LogEnds<'_>, now: Instant) {
        let mut committed = Offsets::new();
        self.moves.retain(|topic, _| group.committed.contains_key(topic));
        let forward_before = self.forward();
        let settled = self.coordinator.is_settled(group.coordinator, now);
        for (topic, partitions) in &group.committed {
            let moves = self.moves.entry(topic.clone()).or_default();
            let before = self.committed.get(topic);
            let partitions = partitions.iter().map(|(&partition, &offset)| {
                let before = before.and_then(|p| p.get(&partition)).copied();
                let end = match settled {
                    true => log_ends.of(topic, partition),
                    false => LogEnd::Unknown,
                };
                (partition, moves.step(before, offset, end))
            });
            committed.insert(topic.clone(), partitions.collect());
        }
        self.committed = committed;
        let memberless = group.state == Some(State::Empty) && group.members == 0;
        self.looks.add(now, memberless, self.forward() > forward_before);
    }

    fn forward(&self) -> u64 {
        self.moves.values().fold(0, |sum, moves| sum.saturating_add(moves.forward))
    }
}

impl Coordinator {
    /// Takes in who answered at `now`; whether that was the same broker for long enough.
    fn is_settled(&mut self, broker: Option<i32>, now: Instant) -> bool {
        let before = self.last.replace(broker);
        if before.is_some_and(|before| before != broker) {
            self.moved = Some(now);
        }
        self.moved.is_none_or(|moved| now.duration_since(moved) >= SETTLING)
    }
}

impl Looks {
    fn add(&mut self, now: Instant, memberless: bool, advanced: bool) {
        self.before = self.last.replace(now);
        if !memberless {
            self.with_members = Some(now);
        }
        if advanced {
            self.before_move = self.before;
        }
    }

    /// Whether somebody commits without being a member; `None` while one look can't tell.
    ///
    /// A move counts only when both looks around it lie in the window that ends with the last
    /// look: before the first one there may have been members.
    fn memberless_commits(&self, window: Duration) -> Option<bool> {
        let last = self.last?;
        let in_window = |at: Instant| last.duration_since(at) < window;
        if self.with_members.is_some_and(in_window) {
            return Some(false);
        }
        self.before.filter(|&before| in_window(before))?;
        Some(self.before_move.is_some_and(in_window))
    }
}

impl Moves {
    /// Counts one partition's step and returns the offset to compare the next one with.
    ///
    /// A first commit is no move. A commit behind an earlier one is a rewind, unless the topic was
    /// deleted and made anew, which a log shows that ends before that commit, or before where it
    /// ended. While the log's end is not known (or not given), a step back is judged at a later look.
    fn step(&mut self, before: Option<i64>, offset: i64, log_end: LogEnd) -> i64 {
        let Some(before) = before else {
            return offset;
        };
        if offset >= before {
            self.forward = self.forward.saturating_add(offset.abs_diff(before));
            return offset;
        }
        match log_end {
            LogEnd::Unknown => before,
            LogEnd::MadeAnew => offset,
            LogEnd::At(end) if end < before => offset,
            LogEnd::At(_) => {
                self.rewinds += 1;
                self.rewound = self.rewound.saturating_add(before.abs_diff(offset));
                offset
            }
        }
    }
}

/// Messages behind; `None` when the end of some partition is not known.
fn lag(committed: &BTreeMap<i32, i64>, ends: Option<&BTreeMap<i32, i64>>) -> Option<u64> {
    let behind = committed.iter().map(|(partition, &offset)| {
        let end = *ends?.get(partition)?;
        Some(u64::try_from(end.saturating_sub(offset)).unwrap_or(0))
    });
    behind.sum()
}

// ---- The answer ----

const STATES: [(State, &str); 5] = [
    (State::PreparingRebalance, "PreparingRebalance"),
    (State::CompletingRebalance, "CompletingRebalance"),
    (State::Stable, "Stable"),
    (State::Dead, "Dead"),
    (State::Empty, "Empty"),
];

fn samples(
    source: &str,
    name: &str,
    group: &Group,
    history: &History,
    log_ends: &Offsets,
    config: &Config,
) -> Vec<Sample> {
    let labels = [source, name];
    let protocol = match group.protocol {
        Protocol::Classic => "classic",
        Protocol::Consumer => "consumer",
    };
    let simple = if group.simple { "1" } else { "0" };
    let info = [source, name, protocol, &group.assignor, simple];
    let mut samples = vec![
        MEMBERS.sample(&labels, group.members.into()),
        INFO.sample(&info, 1.0),
    ];
    if let Some(current) = group.state {
        samples.extend(STATES.map(|(state, word)| {
            STATE.sample(&[source, name, word], f64::from(u8::from(state == current)))
        }));
    }
    let expected = config.expected_members.iter().find(|(p, _)| p.is_match(name));
    if let Some((_, &members)) = expected {
        samples.push(EXPECTED_MEMBERS.sample(&labels, members.into()));
    }
    // Kafka leaves out, without a word, commits on topics that we may not describe: a group that
    // shows neither members nor commits may move for all we know.
    let blind = group.members == 0 && group.committed.is_empty();
    let memberless = history.looks.memberless_commits(config.window.0);
    if !config.ignore.iter().any(|pattern| pattern.is_match(name))
        && let Some(memberless) = memberless.filter(|&moves| moves || !blind)
    {
        samples.push(MEMBERLESS_COMMITS.sample(&labels, f64::from(u8::from(memberless))));
    }
    for (topic, committed) in &group.committed {
        let labels = [source, name, topic];
        // Kafka takes any offset that is committed, so that the sum may not fit an i64.
        let sum: f64 = committed.values().map(|&offset| offset as f64).sum();
        samples.push(COMMITTED_OFFSET.sample(&labels, sum));
        if let Some(lag) = lag(committed, log_ends.get(topic)) {
            samples.push(LAG.sample(&labels, lag as f64));
        }
        let moves = history.moves.get(topic).copied().unwrap_or_default();
        samples.push(COMMITTED_MESSAGES.sample(&labels, moves.forward as f64));
        samples.push(REWINDS.sample(&labels, moves.rewinds as f64));
        samples.push(REWOUND_MESSAGES.sample(&labels, moves.rewound as f64));
    }
    samples
}

// ---- The check ----

struct Groups {
    config: Config,
    health: Arc<SourceHealth>,
    filter: Filter,
    reader: Box<dyn GroupReader>,
    memory: Memory,
    /// Of the pipelines that read from this cluster.
    rings: Vec<Arc<Ring>>,
}

/// One check for each Kafka source.
pub fn plan(config: &crate::config::Config, sources: &Sources) -> Vec<Planned> {
    let plan = |(source, health): (&crate::config::KafkaSource, &Arc<SourceHealth>)| {
        let program = config.worker_program.clone();
        let reader = WorkerClient::new(&source.name, program, source.properties.clone());
        Planned {
            source: source.name.clone(),
            asks: source.name.clone(),
            name: "groups".into(),
            timing: source.timing,
            reasons: REASONS,
            check: Box::new(Groups {
                rings: sources.history.of_source(&source.name),
                ..Groups::new(&source.groups, health.clone(), Box::new(reader))
            }),
        }
    };
    config.kafka.iter().zip(&sources.kafka).map(plan).collect()
}

impl Groups {
    fn new(config: &Config, health: Arc<SourceHealth>, reader: Box<dyn GroupReader>) -> Self {
        let texts = |patterns: &[Pattern]| patterns.iter().map(|p| p.0.to_string()).collect();
        let filter = Filter {
            groups_include: texts(&config.groups.include),
            groups_exclude: texts(&config.groups.exclude),
            topics_include: texts(&config.topics.include),
            topics_exclude: texts(&config.topics.exclude),
            max_groups: config.max_groups,
        };
        Groups {
            config: config.clone(),
            health,
            filter,
            reader,
            memory: Memory::default(),
            rings: Vec::new(),
        }
    }

    /// Judges a look at the whole cluster that was taken at `now`.
    fn judge(&mut self, snapshot: Snapshot, now: Instant) -> Report {
        let Snapshot {
            cluster_id,
            groups,
            log_ends,
            listing_errors,
            groups_cut,
        } = snapshot;
        let memory = self.memory.of(cluster_id);
        let mut report = Report {
            skipped: groups_cut,
            failure: listing_errors.into_iter().next(),
            ..Report::default()
        };
        // What is not in the snapshot is known to be gone; what could not be asked is an error in it.
        memory.groups.retain(|name, _| groups.contains_key(name));
        for ring in &self.rings {
            match groups.get(&ring.layer.group) {
                Some(Ok(group)) => ring.add(Some(&group.committed), &log_ends, now),
                Some(Err(_)) => {}
                None if report.failure.is_none() && groups_cut == 0 => ring.add(None, &log_ends, now),
                None => {}
            }
        }
        let ends_before = std::mem::replace(&mut memory.log_ends, log_ends);
        let log_ends = LogEnds { now: &memory.log_ends, before: &ends_before };
        for (name, group) in groups {
            let outcome = match group {
                Ok(_) if name.is_empty() => Err(Error::new(
                    Reason::Unsupported,
                    "a group has the empty name, which can't be a label: exclude it by ^$",
                )),
                Ok(group) => {
                    let history = memory.groups.entry(name.clone()).or_default();
                    history.take_in(&group, &log_ends, now);
                    let source = &self.health.name;
                    Ok(samples(source, &name, &group, history, log_ends.now, &self.config))
                }
                Err(error) => Err(error),
            };
            report.items.insert(name, outcome);
        }
        report
    }
}

#[async_trait::async_trait]
impl Check for Groups {
    async fn poll(&mut self, deadline: Instant) -> Result<Report, Error> {
        // The reader gives up a little before the poller does, so that its words are heard.
        let limit = deadline.saturating_duration_since(Instant::now()) * 19 / 20;
        let look = self.reader.look(&self.filter, limit).await;
        self.health.contact(look.is_ok());
        Ok(self.judge(look?, Instant::now()))
    }

    fn take_over(&mut self, before: Box<dyn Any>) {
        if let Ok(before) = before.downcast::<Groups>() {
            self.memory = before.memory;
            self.reader.remember(self.memory.groups.keys().cloned().collect());
        }
    }
}

#[cfg(test)]
mod tests;
