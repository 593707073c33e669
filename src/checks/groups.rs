//! Check of a cluster's consumer groups: who reads, how far, whether offsets went back, and whether
//! somebody commits without being a member.
//!
//! A group that has no members and yet moves its offsets has consumers outside the group: with
//! assign() nobody divides the partitions, so two such workers read everything twice.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use serde_saphyr::Spanned;
use tokio::time::Instant;

use super::Sources;
use crate::config::values::{Names, Pattern, Span};
use crate::config::{Invalid, Timing};
use crate::error::{Error, Reason};
use crate::poll::{Check, Planned};
use crate::sample::{Family, Sample};
use crate::self_metrics::SourceHealth;
use crate::snapshot::Report;
use crate::sources::kafka::{Filter, Group, GroupReader, Protocol, Snapshot, State, WorkerClient};

const DEFAULT_MAX_GROUPS: usize = 5_000;
const DEFAULT_WINDOW: Span = Span::seconds(900);

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

type Offsets = BTreeMap<String, BTreeMap<i32, i64>>;

/// What earlier looks at one group left behind.
#[derive(Default)]
struct History {
    looks: VecDeque<Look>,
    /// The newest known commit of each partition.
    committed: Offsets,
    moves: BTreeMap<String, Moves>,
}

/// One look, as far as commits without members are concerned.
struct Look {
    at: Instant,
    memberless: bool,
    /// Whether a committed offset moved forward since the look before.
    advanced: bool,
}

/// How far the commits of one topic moved since the exporter first saw them.
#[derive(Debug, Default, Clone, Copy, PartialEq)]
struct Moves {
    forward: u64,
    rewinds: u64,
    rewound: u64,
}

impl History {
    /// Takes in a look at `now`, and forgets what lies `window` and more behind it.
    fn take_in(&mut self, group: &Group, log_ends: &Offsets, now: Instant, window: Duration) {
        let forward_before = self.forward();
        let mut committed = Offsets::new();
        self.moves.retain(|topic, _| group.committed.contains_key(topic));
        for (topic, partitions) in &group.committed {
            let moves = self.moves.entry(topic.clone()).or_default();
            let before = self.committed.get(topic);
            let ends = log_ends.get(topic);
            let partitions = partitions.iter().map(|(partition, &offset)| {
                let before = before.and_then(|p| p.get(partition)).copied();
                let end = ends.and_then(|p| p.get(partition)).copied();
                (*partition, moves.step(before, offset, end))
            });
            committed.insert(topic.clone(), partitions.collect());
        }
        self.committed = committed;
        self.looks.retain(|look| now.duration_since(look.at) < window);
        self.looks.push_back(Look {
            at: now,
            memberless: group.state == Some(State::Empty) && group.members == 0,
            advanced: self.forward() > forward_before,
        });
    }

    fn forward(&self) -> u64 {
        self.moves.values().map(|moves| moves.forward).sum()
    }

    /// Whether somebody commits without being a member; `None` while one look can't tell.
    ///
    /// A move counts only when both looks around it lie in the window: before the first one there
    /// may have been members.
    fn memberless_commits(&self) -> Option<bool> {
        if self.looks.iter().any(|look| !look.memberless) {
            return Some(false);
        }
        match self.looks.len() {
            0 | 1 => None,
            _ => Some(self.looks.iter().skip(1).any(|look| look.advanced)),
        }
    }
}

impl Moves {
    /// Counts one partition's step and returns the offset to compare the next one with.
    ///
    /// A first commit is no move. A commit behind an earlier one is a rewind, unless the log ends
    /// before the earlier one: then the topic was deleted and made anew. While the log's end is
    /// not known, a step back is judged at a later look.
    fn step(&mut self, before: Option<i64>, offset: i64, log_end: Option<i64>) -> i64 {
        let Some(before) = before else {
            return offset;
        };
        if offset >= before {
            self.forward += offset.abs_diff(before);
            return offset;
        }
        match log_end {
            None => before,
            Some(end) if end < before => offset,
            Some(_) => {
                self.rewinds += 1;
                self.rewound += before.abs_diff(offset);
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
    if !config.ignore.iter().any(|pattern| pattern.is_match(name))
        && let Some(memberless) = history.memberless_commits()
    {
        samples.push(MEMBERLESS_COMMITS.sample(&labels, f64::from(u8::from(memberless))));
    }
    for (topic, committed) in &group.committed {
        let labels = [source, name, topic];
        let sum: i64 = committed.values().sum();
        samples.push(COMMITTED_OFFSET.sample(&labels, sum as f64));
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
    histories: BTreeMap<String, History>,
}

/// One check for each Kafka source.
pub fn plan(config: &crate::config::Config, sources: &Sources) -> Vec<Planned> {
    let plan = |(source, health): (&crate::config::KafkaSource, &Arc<SourceHealth>)| {
        let program = config.worker_program.clone();
        let reader = WorkerClient::new(&source.name, program, source.properties.clone());
        Planned {
            source: source.name.clone(),
            name: "groups".into(),
            timing: source.timing,
            check: Box::new(Groups::new(&source.groups, health.clone(), Box::new(reader))),
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
            histories: BTreeMap::new(),
        }
    }

    /// Judges a look at the whole cluster that was taken at `now`.
    fn judge(&mut self, snapshot: Snapshot, now: Instant) -> Report {
        let Snapshot { groups, log_ends, listing_errors, groups_cut } = snapshot;
        let mut report = Report {
            skipped: groups_cut,
            failure: listing_errors.into_iter().next(),
            ..Report::default()
        };
        if let Some(error) = &report.failure {
            // Who is not listed may be on a broker that did not answer.
            for name in self.histories.keys().filter(|name| !groups.contains_key(*name)) {
                report.items.insert(name.clone(), Err(error.clone()));
            }
        } else {
            self.histories.retain(|name, _| groups.contains_key(name));
        }
        for (name, group) in groups {
            let outcome = match group {
                Ok(_) if name.is_empty() => Err(Error::new(
                    Reason::Unsupported,
                    "a group has the empty name, which can't be a label: exclude it by ^$",
                )),
                Ok(group) => Ok(self.judge_group(&name, &group, &log_ends, now)),
                Err(error) => Err(error),
            };
            report.items.insert(name, outcome);
        }
        report
    }

    fn judge_group(
        &mut self,
        name: &str,
        group: &Group,
        log_ends: &Offsets,
        now: Instant,
    ) -> Vec<Sample> {
        let history = self.histories.entry(name.to_owned()).or_default();
        history.take_in(group, log_ends, now, self.config.window.0);
        samples(&self.health.name, name, group, history, log_ends, &self.config)
    }
}

#[async_trait::async_trait]
impl Check for Groups {
    async fn poll(&mut self, deadline: Instant) -> Result<Report, Error> {
        let limit = deadline.saturating_duration_since(Instant::now());
        let look = self.reader.look(&self.filter, limit).await;
        self.health.contact(look.is_ok());
        Ok(self.judge(look?, Instant::now()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::values::pattern;

    /// A check with a window of 15 minutes, that is given its looks by hand.
    struct Trial {
        check: Groups,
        start: Instant,
        report: Report,
    }

    struct NoReader;

    #[async_trait::async_trait]
    impl GroupReader for NoReader {
        async fn look(&mut self, _: &Filter, _: Duration) -> Result<Snapshot, Error> {
            Err(Error::new(Reason::Connection, "a trial has no broker"))
        }
    }

    impl Trial {
        fn new() -> Self {
            Trial::ignoring(&[])
        }

        fn ignoring(ignore: &[&str]) -> Self {
            let config = Config {
                groups: Names::default(),
                topics: Names::default(),
                window: DEFAULT_WINDOW,
                ignore: ignore.iter().map(|p| pattern(p).unwrap()).collect(),
                expected_members: BTreeMap::from([(pattern("^audit-import$").unwrap(), 2)]),
                max_groups: 10,
            };
            Trial {
                check: Groups::new(&config, SourceHealth::new("main"), Box::new(NoReader)),
                start: Instant::now(),
                report: Report::default(),
            }
        }

        /// A look at `seconds` after the start.
        fn look(&mut self, seconds: u64, groups: &[(&str, Group)]) -> &mut Self {
            let groups = groups.iter().map(|(n, g)| (n.to_string(), Ok(g.clone())));
            self.see(seconds, Snapshot { groups: groups.collect(), ..full_logs() })
        }

        fn see(&mut self, seconds: u64, snapshot: Snapshot) -> &mut Self {
            let now = self.start + Duration::from_secs(seconds);
            self.report = self.check.judge(snapshot, now);
            self
        }

        /// The value of a series without a state, if there is one.
        fn value(&self, group: &str, family: &'static Family) -> Option<f64> {
            let samples = self.report.items.get(group)?.as_ref().ok()?;
            let found = samples.iter().find(|s| std::ptr::eq(s.family, family));
            found.map(|sample| sample.value)
        }

        fn memberless(&self) -> Option<f64> {
            self.value("g", &MEMBERLESS_COMMITS)
        }
    }

    fn full_logs() -> Snapshot {
        let ends = (0..6).map(|p| (p, 10_000_000)).collect();
        Snapshot {
            log_ends: BTreeMap::from([("t".to_owned(), ends)]),
            ..Snapshot::default()
        }
    }

    fn group(state: State, members: u32, offsets: &[(i32, i64)]) -> Group {
        Group {
            protocol: Protocol::Classic,
            state: Some(state),
            members,
            assignor: String::new(),
            simple: members == 0,
            committed: BTreeMap::from([("t".to_owned(), offsets.iter().copied().collect())]),
        }
    }

    fn empty(offset: i64) -> Group {
        group(State::Empty, 0, &[(0, offset)])
    }

    #[test]
    fn r09_an_empty_group_that_moves_has_consumers_outside_of_it() {
        let mut trial = Trial::new();
        trial.look(0, &[("g", empty(100))]).look(60, &[("g", empty(160))]);
        assert_eq!(trial.memberless(), Some(1.0));
        assert_eq!(trial.value("g", &MEMBERS), Some(0.0));
        let samples = trial.report.items["g"].as_ref().unwrap();
        let states: Vec<_> = samples
            .iter()
            .filter(|s| std::ptr::eq(s.family, &STATE))
            .map(|s| (&*s.labels[2], s.value))
            .collect();
        assert_eq!(
            states,
            [
                ("PreparingRebalance", 0.0),
                ("CompletingRebalance", 0.0),
                ("Stable", 0.0),
                ("Dead", 0.0),
                ("Empty", 1.0)
            ]
        );
    }

    #[test]
    fn r09_the_verdict_ends_once_offsets_stand_still_for_the_whole_window() {
        let mut trial = Trial::new();
        trial.look(0, &[("g", empty(100))]).look(60, &[("g", empty(160))]);
        trial.look(899, &[("g", empty(160))]);
        assert_eq!(trial.memberless(), Some(1.0), "both looks around the move are in the window");
        trial.look(900, &[("g", empty(160))]);
        assert_eq!(trial.memberless(), Some(0.0));
    }

    #[test]
    fn r10_a_first_sight_is_no_verdict_and_no_advance() {
        let mut trial = Trial::new();
        trial.look(0, &[]);
        assert_eq!(trial.memberless(), None);
        trial.look(60, &[("g", empty(9_000_000))]);
        assert_eq!(trial.memberless(), None);
        assert_eq!(trial.value("g", &COMMITTED_MESSAGES), Some(0.0));
        trial.look(120, &[("g", empty(9_000_500))]);
        assert_eq!(trial.memberless(), Some(1.0));
        assert_eq!(trial.value("g", &COMMITTED_MESSAGES), Some(500.0));
    }

    #[test]
    fn r11_a_slow_committer_does_not_flap() {
        let mut trial = Trial::new();
        let mut verdicts = Vec::new();
        for look in 0..200 {
            let commits = look * 15 / 600;
            trial.look(look as u64 * 15, &[("g", empty(50_000 * commits))]);
            verdicts.push(trial.memberless());
        }
        let first = verdicts.iter().position(|v| *v == Some(1.0)).unwrap();
        assert_eq!(first, 40, "the first commit after the first sight, at 600 s");
        assert!(verdicts[first..].iter().all(|v| *v == Some(1.0)));
    }

    #[test]
    fn r11_an_ignored_group_has_no_verdict_and_all_the_rest() {
        let mut trial = Trial::ignoring(&["^g$"]);
        trial.look(0, &[("g", empty(1))]).look(60, &[("g", empty(2))]);
        assert_eq!(trial.memberless(), None);
        assert_eq!(trial.value("g", &MEMBERS), Some(0.0));
        assert_eq!(trial.value("g", &COMMITTED_OFFSET), Some(2.0));
    }

    #[test]
    fn what_members_committed_before_they_left_is_no_commit_without_members() {
        let mut trial = Trial::new();
        let stable = group(State::Stable, 1, &[(0, 100)]);
        trial.look(0, &[("g", stable)]).look(60, &[("g", empty(200))]);
        trial.look(120, &[("g", empty(200))]);
        assert_eq!(trial.memberless(), Some(0.0));
        trial.look(930, &[("g", empty(200))]);
        assert_eq!(trial.memberless(), Some(0.0), "the look with a member has left the window");
    }

    #[test]
    fn a_state_that_is_not_known_is_alive() {
        let mut trial = Trial::new();
        let unknown = |offset| Group { state: None, ..empty(offset) };
        trial.look(0, &[("g", unknown(1))]).look(60, &[("g", unknown(2))]);
        assert_eq!(trial.memberless(), Some(0.0));
        assert_eq!(trial.value("g", &STATE), None);
        assert_eq!(trial.value("g", &MEMBERS), Some(0.0));
    }

    #[test]
    fn r12_a_partition_without_a_commit_is_in_no_sum_and_its_first_commit_is_no_advance() {
        let mut trial = Trial::new();
        trial.look(0, &[("g", group(State::Empty, 0, &[(2, 4388)]))]);
        assert_eq!(trial.value("g", &COMMITTED_OFFSET), Some(4388.0));
        trial.look(60, &[("g", group(State::Empty, 0, &[(0, 4388), (2, 4388)]))]);
        assert_eq!(trial.value("g", &COMMITTED_MESSAGES), Some(0.0));
        assert_eq!(trial.memberless(), Some(0.0));
    }

    #[test]
    fn r13_what_could_not_be_described_has_no_members_rather_than_none() {
        let mut trial = Trial::new();
        let error = |reason| Err(Error::new(reason, "no answer"));
        let mut snapshot = full_logs();
        for i in 0..10 {
            let outcome = match i {
                0..2 => error(Reason::Coordinator),
                2..5 => error(Reason::Authorization),
                _ => Ok(group(State::Stable, 3, &[(0, 1)])),
            };
            snapshot.groups.insert(i.to_string(), outcome);
        }
        trial.see(0, snapshot);
        let reasons: Vec<_> = trial.report.errors().map(|(_, e)| e.reason()).collect();
        let (moving, hidden) = (Reason::Coordinator, Reason::Authorization);
        assert_eq!(reasons, [moving, moving, hidden, hidden, hidden]);
        assert!(trial.report.failure.is_none());
        assert_eq!(trial.value("0", &MEMBERS), None);
        assert_eq!(trial.value("9", &MEMBERS), Some(3.0));
    }

    #[test]
    fn r14_a_deleted_group_goes_and_an_empty_one_stays() {
        let mut trial = Trial::new();
        let three = group(State::Stable, 3, &[(0, 1)]);
        trial.look(0, &[("a", three.clone()), ("b", three)]);
        trial.look(60, &[("b", empty(1))]);
        assert!(!trial.report.items.contains_key("a"));
        assert_eq!(trial.value("b", &MEMBERS), Some(0.0));
        assert_eq!(trial.value("b", &COMMITTED_OFFSET), Some(1.0));
    }

    #[test]
    fn a_group_is_not_gone_while_a_broker_did_not_answer() {
        let mut trial = Trial::new();
        trial.look(0, &[("a", empty(1)), ("b", empty(1))]);
        let error = Error::new(Reason::Connection, "broker 2 is down");
        let groups = BTreeMap::from([("b".to_owned(), Ok(empty(1)))]);
        let partial = Snapshot { groups, listing_errors: vec![error.clone()], ..full_logs() };
        trial.see(60, partial);
        assert_eq!(trial.report.items["a"], Err(error.clone()));
        assert_eq!(trial.report.failure, Some(error));
    }

    #[test]
    fn a_rewind_is_counted_with_its_size_and_is_no_forward_movement() {
        let mut trial = Trial::new();
        trial.look(0, &[("g", empty(1000))]).look(60, &[("g", empty(400))]);
        assert_eq!(trial.value("g", &REWINDS), Some(1.0));
        assert_eq!(trial.value("g", &REWOUND_MESSAGES), Some(600.0));
        assert_eq!(trial.value("g", &COMMITTED_MESSAGES), Some(0.0));
        trial.look(120, &[("g", empty(1100))]);
        assert_eq!(trial.value("g", &COMMITTED_MESSAGES), Some(700.0));
        assert_eq!(trial.value("g", &REWINDS), Some(1.0));
    }

    #[test]
    fn a_topic_that_was_made_anew_is_no_rewind() {
        let mut moves = Moves::default();
        assert_eq!(moves.step(Some(1000), 5, Some(8)), 5);
        assert_eq!(moves, Moves::default());
        assert_eq!(moves.step(Some(1000), 5, None), 1000, "judged once the end is known");
        assert_eq!(moves, Moves::default());
    }

    #[test]
    fn lag_is_absent_when_an_end_is_not_known_and_never_negative() {
        let committed = BTreeMap::from([(0, 10), (1, 20)]);
        let ends = BTreeMap::from([(0, 15), (1, 19)]);
        assert_eq!(lag(&committed, Some(&ends)), Some(5));
        assert_eq!(lag(&committed, Some(&BTreeMap::from([(0, 15)]))), None);
        assert_eq!(lag(&committed, None), None);
    }

    #[test]
    fn r19_the_empty_name_is_skipped_and_counted() {
        let mut trial = Trial::new();
        trial.look(0, &[("", empty(1)), ("g", empty(1))]);
        let (name, error) = trial.report.errors().next().unwrap();
        assert_eq!((name, error.reason()), ("", Reason::Unsupported));
        assert_eq!(trial.value("g", &MEMBERS), Some(0.0));
    }

    #[test]
    fn expected_members_are_those_of_the_configuration() {
        let mut trial = Trial::new();
        trial.look(0, &[("audit-import", empty(1)), ("g", empty(1))]);
        assert_eq!(trial.value("audit-import", &EXPECTED_MEMBERS), Some(2.0));
        assert_eq!(trial.value("g", &EXPECTED_MEMBERS), None);
    }
}
