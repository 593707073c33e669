//! The maths of consumer groups, given looks by hand.

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
        coordinator: Some(1),
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
fn r13_a_group_whose_commits_we_may_not_see_has_no_verdict() {
    let mut trial = Trial::new();
    let hidden = || Group { committed: BTreeMap::new(), ..empty(0) };
    trial.look(0, &[("g", hidden())]).look(60, &[("g", hidden())]);
    assert_eq!(trial.memberless(), None);
    assert_eq!(trial.value("g", &MEMBERS), Some(0.0));
    let member = || Group { committed: BTreeMap::new(), ..group(State::Stable, 1, &[]) };
    trial.look(120, &[("g", member())]).look(180, &[("g", member())]);
    assert_eq!(trial.memberless(), Some(0.0), "who has members commits by them");
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
fn a_group_of_a_broker_that_did_not_answer_is_unread_and_the_poll_has_failed() {
    let mut trial = Trial::new();
    trial.look(0, &[("a", empty(1)), ("b", empty(1))]);
    let error = Error::new(Reason::Connection, "broker 2 is down");
    let mut partial = full_logs();
    partial.groups.insert("a".into(), Err(error.clone()));
    partial.groups.insert("b".into(), Ok(empty(1)));
    partial.listing_errors.push(error.clone());
    trial.see(60, partial);
    assert_eq!(trial.report.items["a"], Err(error.clone()));
    assert_eq!(trial.value("b", &MEMBERS), Some(0.0));
    assert_eq!(trial.report.failure, Some(error));
}

#[test]
fn a_topic_that_vanishes_hides_no_move_of_another() {
    let mut trial = Trial::new();
    let with = |topics: &[(&str, i64)]| {
        let topics = topics.iter().map(|&(topic, offset)| (topic.into(), [(0, offset)].into()));
        Group { committed: topics.collect(), ..empty(0) }
    };
    trial.look(0, &[("g", with(&[("t", 0), ("u", 0)]))]);
    trial.look(60, &[("g", with(&[("t", 1000), ("u", 0)]))]);
    trial.look(1000, &[("g", with(&[("t", 1000), ("u", 0)]))]);
    trial.look(1060, &[("g", with(&[("u", 10)]))]);
    assert_eq!(trial.memberless(), Some(1.0));
}

#[test]
fn any_committed_offset_can_be_reckoned_with() {
    let mut trial = Trial::new();
    let most = [(0, i64::MAX), (1, i64::MAX)];
    trial.look(0, &[("g", group(State::Empty, 0, &[(0, 0), (1, 0)]))]);
    trial.look(60, &[("g", group(State::Empty, 0, &most))]);
    assert_eq!(trial.value("g", &COMMITTED_OFFSET), Some(i64::MAX as f64 * 2.0));
    assert_eq!(trial.value("g", &COMMITTED_MESSAGES), Some(u64::MAX as f64));
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
fn what_a_new_coordinator_does_not_know_yet_is_no_rewind() {
    let mut trial = Trial::new();
    let told = |broker, offset| [("g", Group { coordinator: broker, ..empty(offset) })];
    let (old, new, unknown) = (Some(1), Some(2), None);
    let looks = [(old, 46), (new, 45), (new, 55), (old, 46), (unknown, 46), (new, 55)];
    for (second, (broker, offset)) in (0..).zip(looks) {
        trial.look(second, &told(broker, offset));
        assert_eq!(trial.value("g", &REWINDS), Some(0.0), "{second}");
    }
    assert_eq!(trial.value("g", &COMMITTED_MESSAGES), Some(9.0));
    assert_eq!(trial.value("g", &REWOUND_MESSAGES), Some(0.0));
}

#[test]
fn a_rewind_while_the_coordinator_moves_is_counted_once_it_has_settled() {
    let mut trial = Trial::new();
    let told = |broker, offset| [("g", Group { coordinator: Some(broker), ..empty(offset) })];
    trial.look(0, &told(1, 1000)).look(60, &told(2, 400));
    assert_eq!(trial.value("g", &REWINDS), Some(0.0));
    trial.look(120, &told(2, 400));
    assert_eq!(trial.value("g", &REWINDS), Some(1.0));
    assert_eq!(trial.value("g", &REWOUND_MESSAGES), Some(600.0));
}

#[test]
fn a_topic_that_was_made_anew_is_no_rewind() {
    let mut moves = Moves::default();
    assert_eq!(moves.step(Some(1000), 5, LogEnd::At(8)), 5);
    assert_eq!(moves, Moves::default());
    assert_eq!(moves.step(Some(1000), 5, LogEnd::Unknown), 1000, "judged once the end is known");
    assert_eq!(moves, Moves::default());
}

fn log_end(end: i64) -> Snapshot {
    Snapshot {
        log_ends: BTreeMap::from([("t".to_owned(), BTreeMap::from([(0, end)]))]),
        ..Snapshot::default()
    }
}

#[test]
fn a_topic_that_was_made_anew_and_filled_again_is_no_rewind() {
    let mut trial = Trial::new();
    let groups = |offset| BTreeMap::from([("g".to_owned(), Ok(empty(offset)))]);
    trial.see(0, Snapshot { groups: groups(1000), ..log_end(5000) });
    // The new log is longer than the old commit, but shorter than the old log.
    trial.see(60, Snapshot { groups: groups(5), ..log_end(2000) });
    assert_eq!(trial.value("g", &REWINDS), Some(0.0));
    trial.see(120, Snapshot { groups: groups(2), ..log_end(2100) });
    assert_eq!(trial.value("g", &REWINDS), Some(1.0));
    assert_eq!(trial.value("g", &REWOUND_MESSAGES), Some(3.0));
}

#[test]
fn another_cluster_under_the_same_address_is_seen_for_the_first_time() {
    let mut trial = Trial::new();
    let look = |cluster: Option<&str>, offset| Snapshot {
        cluster_id: cluster.map(str::to_owned),
        groups: BTreeMap::from([("g".to_owned(), Ok(empty(offset)))]),
        ..full_logs()
    };
    trial.see(0, look(Some("a"), 1000)).see(60, look(None, 1100));
    assert_eq!(trial.value("g", &COMMITTED_MESSAGES), Some(100.0));
    trial.see(120, look(Some("b"), 400));
    assert_eq!(trial.value("g", &REWINDS), Some(0.0));
    assert_eq!(trial.value("g", &COMMITTED_MESSAGES), Some(0.0));
    assert_eq!(trial.memberless(), None);
}

#[test]
fn a_check_goes_on_from_what_the_one_before_it_learnt() {
    let mut trial = Trial::new();
    trial.look(0, &[("g", empty(1000))]).look(60, &[("g", empty(1100))]);
    let next = Trial { start: trial.start, ..Trial::new() };
    let before = std::mem::replace(&mut trial, next);
    trial.check.take_over(Box::new(before.check));
    trial.look(120, &[("g", empty(1150))]);
    assert_eq!(trial.value("g", &COMMITTED_MESSAGES), Some(150.0));
    assert_eq!(trial.memberless(), Some(1.0));
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
