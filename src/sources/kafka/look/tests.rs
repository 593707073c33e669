//! The rules of a look, on a cluster that answers what each test says.

use std::collections::VecDeque;

use super::*;
use crate::sources::kafka::cluster::{Described, GroupState, Tag};
use crate::sources::kafka::failure::code;
use crate::sources::kafka::{Group, Protocol};

const LIMIT: Duration = Duration::from_secs(20);
/// For tests in which somebody stays silent.
const SHORT: Duration = Duration::from_millis(200);

/// What was asked, of whom (`*`: of the coordinator), as `broker request name`.
type Script = Box<dyn Fn(&str) -> Option<Reply>>;

struct Fake {
    brokers: Result<Vec<i32>, Failure>,
    script: Script,
    asked: Vec<String>,
    answers: VecDeque<(Tag, Reply)>,
    trouble: Option<Error>,
    broker_requests: usize,
}

impl Fake {
    /// `None`: no answer, ever.
    fn new(brokers: &[i32], script: impl Fn(&str) -> Option<Reply> + 'static) -> Self {
        Fake {
            brokers: Ok(brokers.to_vec()),
            script: Box::new(script),
            asked: vec![],
            answers: VecDeque::new(),
            trouble: None,
            broker_requests: 0,
        }
    }

    fn look(&mut self, limit: Duration) -> Outcome {
        look(self, &filter(), &[], limit)
    }

    fn good(&mut self) -> Snapshot {
        let outcome = self.look(LIMIT);
        assert!(!outcome.spent);
        outcome.result.unwrap()
    }

    fn was_asked(&self, question: &str) -> bool {
        self.asked.iter().any(|asked| asked == question)
    }
}

impl Cluster for Fake {
    fn brokers(&mut self, _: Duration) -> Result<Vec<i32>, Failure> {
        self.broker_requests += 1;
        self.brokers.clone()
    }

    fn id(&self) -> Option<String> {
        Some("fake".to_owned())
    }

    fn last_brokers(&self) -> Vec<i32> {
        vec![]
    }

    fn ask(&mut self, broker: Option<i32>, request: &Request<'_>, _: Duration) -> Tag {
        let broker = broker.map_or("*".to_owned(), |broker| broker.to_string());
        let question = match request {
            Request::Groups => format!("{broker} groups"),
            Request::Members(group) => format!("{broker} members {}", group.to_string_lossy()),
            Request::Offsets(group) => format!("{broker} offsets {}", group.to_string_lossy()),
            Request::Ends(partitions) => format!("{broker} ends {partitions:?}"),
        };
        let tag = Tag(self.asked.len());
        if let Some(reply) = (self.script)(&question) {
            self.answers.push_back((tag, reply));
        }
        self.asked.push(question);
        tag
    }

    fn next(&mut self, wait: Duration) -> Option<(Tag, Reply)> {
        let answer = self.answers.pop_front();
        if answer.is_none() {
            std::thread::sleep(wait);
        }
        answer
    }

    fn trouble(&self) -> Option<Error> {
        self.trouble.clone()
    }

    fn all_is_well(&mut self) {
        self.trouble = None;
    }
}

fn filter() -> Filter {
    Filter {
        groups_include: vec![".*".into()],
        groups_exclude: vec!["^__".into()],
        topics_include: vec![".*".into()],
        topics_exclude: vec!["^__".into()],
        max_groups: 1000,
    }
}

fn listing(groups: &[(&str, GroupState)]) -> Option<Reply> {
    let listed = |&(name, state): &(&str, GroupState)| Listed {
        id: CString::new(name).unwrap(),
        simple: true,
        state,
        protocol: Some(Protocol::Classic),
    };
    let listed = groups.iter().map(listed).collect();
    Some(Ok(Answer::Groups(listed, vec![])))
}

fn members(state: GroupState, members: u32) -> Option<Reply> {
    Some(Ok(Answer::Members(Described {
        simple: false,
        state,
        protocol: Some(Protocol::Consumer),
        members,
        assignor: "uniform".into(),
    })))
}

fn offsets(topic: &str, committed: i64) -> Option<Reply> {
    let partitions = [(0, committed)].into();
    Some(Ok(Answer::Offsets([(topic.to_owned(), partitions)].into())))
}

fn nothing() -> Option<Reply> {
    Some(Ok(Answer::Offsets(Offsets::new())))
}

fn ends(end: Result<i64, Failure>) -> Option<Reply> {
    Some(Ok(Answer::Ends(vec![("playlog".to_owned(), 0, end)])))
}

fn failed(code: i32) -> Failure {
    Failure {
        code,
        text: format!("code {code}"),
    }
}

fn group<'a>(snapshot: &'a Snapshot, name: &str) -> &'a Group {
    snapshot.groups[name].as_ref().unwrap()
}

fn reason(snapshot: &Snapshot, name: &str) -> Reason {
    snapshot.groups[name].as_ref().unwrap_err().reason()
}

#[test]
fn a_group_that_is_listed_empty_is_not_described_and_has_no_members() {
    let mut fake = Fake::new(&[1], |question| match question {
        "1 groups" => listing(&[("assign", Some(State::Empty))]),
        "1 offsets assign" => offsets("playlog", 7),
        _ => ends(Ok(9)),
    });
    let snapshot = fake.good();
    let assign = group(&snapshot, "assign");
    assert_eq!((assign.members, assign.state), (0, Some(State::Empty)));
    assert!(assign.simple);
    assert_eq!(assign.committed["playlog"][&0], 7);
    assert_eq!(assign.coordinator, Some(1));
    assert_eq!(snapshot.log_ends["playlog"][&0], 9);
    assert!(!fake.was_asked("1 members assign"));
}

#[test]
fn committed_offsets_are_read_before_log_ends_and_only_for_what_is_committed() {
    let mut fake = Fake::new(&[1], |question| match question {
        "1 groups" => listing(&[("a", Some(State::Empty)), ("b", Some(State::Empty))]),
        "1 offsets a" => offsets("playlog", 7),
        "1 offsets b" => offsets("__internal", 7),
        _ => ends(Ok(9)),
    });
    let snapshot = fake.good();
    assert_eq!(fake.asked.last().unwrap(), "* ends [(\"playlog\", 0)]");
    assert!(group(&snapshot, "b").committed.is_empty());
}

#[test]
fn a_state_without_a_name_is_alive() {
    let mut fake = Fake::new(&[1], |question| match question {
        "1 groups" => listing(&[("k", None)]),
        "1 members k" => members(None, 3),
        _ => nothing(),
    });
    let snapshot = fake.good();
    let k = group(&snapshot, "k");
    assert_eq!((k.members, k.state), (3, None));
    assert_eq!((k.protocol, &*k.assignor), (Protocol::Consumer, "uniform"));
}

#[test]
fn a_silent_broker_costs_only_its_own_groups() {
    let names: Vec<String> = (0..300).map(|number| format!("g{number:03}")).collect();
    let own = |broker: usize| -> Option<Reply> {
        let even = names.iter().skip(broker % 2).step_by(2);
        let groups: Vec<_> = even
            .map(|name| (name.as_str(), Some(State::Empty)))
            .collect();
        listing(&groups)
    };
    let (first, second) = (own(1).unwrap().unwrap(), own(2).unwrap().unwrap());
    let groups = std::cell::RefCell::new([Some(first), Some(second)]);
    let mut fake = Fake::new(&[1, 2], move |question| match question {
        "1 groups" => groups.borrow_mut()[0].take().map(Ok),
        "2 groups" => groups.borrow_mut()[1].take().map(Ok),
        _ if question.starts_with("1 offsets") => nothing(),
        _ => None,
    });
    let outcome = fake.look(SHORT);
    assert!(outcome.spent);
    let snapshot = outcome.result.unwrap();
    for (number, name) in names.iter().enumerate() {
        match number % 2 {
            1 => assert_eq!(group(&snapshot, name).members, 0),
            _ => assert_eq!(reason(&snapshot, name), Reason::Timeout),
        }
    }
}

#[test]
fn a_broker_that_does_not_list_its_groups_is_told() {
    let mut fake = Fake::new(&[1, 2], |question| match question {
        "1 groups" => listing(&[("a", Some(State::Empty))]),
        "2 groups" => None,
        _ => nothing(),
    });
    let outcome = fake.look(SHORT);
    assert!(outcome.spent);
    let snapshot = outcome.result.unwrap();
    assert!(group(&snapshot, "a").committed.is_empty());
    assert_eq!(snapshot.listing_errors.len(), 1);
    assert_eq!(snapshot.listing_errors[0].reason(), Reason::Timeout);
}

#[test]
fn a_listing_that_every_broker_refuses_is_an_error() {
    let mut fake = Fake::new(&[1, 2], |_| {
        Some(Err(failed(code::CLUSTER_AUTHORIZATION_FAILED)))
    });
    let error = fake.look(LIMIT).result.unwrap_err();
    assert_eq!(error.reason(), Reason::Authorization);
}

#[test]
fn a_broker_that_is_loading_lists_what_it_has_and_says_so() {
    let mut fake = Fake::new(&[1], |question| match question {
        "1 groups" => match listing(&[("a", Some(State::Empty))]) {
            Some(Ok(Answer::Groups(groups, _))) => Some(Ok(Answer::Groups(
                groups,
                vec![failed(code::COORDINATOR_LOAD_IN_PROGRESS)],
            ))),
            other => other,
        },
        _ => nothing(),
    });
    let snapshot = fake.good();
    assert!(snapshot.groups["a"].is_ok());
    assert_eq!(snapshot.listing_errors[0].reason(), Reason::Coordinator);
}

#[test]
fn of_two_brokers_that_list_a_group_its_coordinator_is_right() {
    let mut fake = Fake::new(&[1, 2], |question| match question {
        "1 groups" => listing(&[("a", Some(State::Empty))]),
        "2 groups" => listing(&[("a", Some(State::Stable))]),
        "* members a" => members(Some(State::Stable), 2),
        "* offsets a" => nothing(),
        _ => None,
    });
    assert_eq!(group(&fake.good(), "a").members, 2);
}

#[test]
fn a_group_that_moved_is_asked_for_once_more_of_its_coordinator() {
    let mut fake = Fake::new(&[1], |question| match question {
        "1 groups" => listing(&[("a", Some(State::Stable))]),
        "1 members a" | "1 offsets a" => Some(Err(failed(code::NOT_COORDINATOR))),
        "* members a" => members(Some(State::Stable), 2),
        _ => nothing(),
    });
    let snapshot = fake.good();
    assert_eq!(group(&snapshot, "a").members, 2);
    assert_eq!(group(&snapshot, "a").coordinator, None, "on the move");
}

#[test]
fn a_group_that_stays_on_the_move_says_why_and_fails_alone() {
    let mut fake = Fake::new(&[1], |question| match question {
        "1 groups" => listing(&[("a", Some(State::Stable)), ("b", Some(State::Empty))]),
        "1 members a" => Some(Err(failed(code::COORDINATOR_NOT_AVAILABLE))),
        "* members a" => None,
        _ => nothing(),
    });
    let outcome = fake.look(Duration::from_secs(1));
    assert!(outcome.spent);
    let snapshot = outcome.result.unwrap();
    assert_eq!(reason(&snapshot, "a"), Reason::Coordinator);
    assert!(snapshot.groups["b"].is_ok());
}

#[test]
fn a_group_that_we_may_not_see_fails_alone() {
    let mut fake = Fake::new(&[1], |question| match question {
        "1 groups" => listing(&[("a", Some(State::Empty)), ("b", Some(State::Empty))]),
        "1 offsets a" => Some(Err(failed(code::GROUP_AUTHORIZATION_FAILED))),
        _ => nothing(),
    });
    let snapshot = fake.good();
    assert_eq!(reason(&snapshot, "a"), Reason::Authorization);
    assert!(snapshot.groups["b"].is_ok());
}

#[test]
fn a_group_that_is_deleted_after_the_listing_is_left_out() {
    let mut fake = Fake::new(&[1], |question| match question {
        "1 groups" => listing(&[("a", Some(State::Stable)), ("b", Some(State::Dead))]),
        "1 members a" => members(Some(State::Dead), 0),
        _ => nothing(),
    });
    assert!(fake.good().groups.is_empty());
}

#[test]
fn a_known_group_that_nobody_lists_is_gone_only_if_its_coordinator_says_so() {
    let known = ["alive", "deleted", "loading"].map(str::to_owned);
    let mut fake = Fake::new(&[1], |question| match question {
        "1 groups" => listing(&[]),
        "1 members alive" => members(Some(State::Stable), 2),
        "1 members deleted" => members(Some(State::Dead), 0),
        "1 offsets alive" => offsets("playlog", 7),
        _ if question.starts_with("* ends") => ends(Ok(9)),
        _ => Some(Err(failed(code::COORDINATOR_LOAD_IN_PROGRESS))),
    });
    let snapshot = look(&mut fake, &filter(), &known, LIMIT).result.unwrap();
    let alive = group(&snapshot, "alive");
    assert_eq!((alive.members, alive.committed["playlog"][&0]), (2, 7));
    assert!(!snapshot.groups.contains_key("deleted"));
    assert_eq!(reason(&snapshot, "loading"), Reason::Coordinator);
}

#[test]
fn a_known_group_that_is_now_of_another_kind_is_gone() {
    let known = ["connect".to_owned()];
    let mut fake = Fake::new(&[1], |question| match question {
        "1 groups" => listing(&[]),
        "1 members connect" => Some(Err(failed(code::INVALID_ARG))),
        _ => None,
    });
    let outcome = look(&mut fake, &filter(), &known, LIMIT);
    assert!(!outcome.spent);
    assert!(outcome.result.unwrap().groups.is_empty());
}

#[test]
fn a_group_without_a_name_is_asked_for_only_while_it_is_listed() {
    let known = [String::new()];
    for (listed, expected) in [(&[][..], 0), (&[("", Some(State::Empty))], 1)] {
        let answer = listing(listed).unwrap().unwrap();
        let answer = std::cell::RefCell::new(Some(answer));
        let mut fake = Fake::new(&[1], move |question| match question {
            "1 groups" => answer.borrow_mut().take().map(Ok),
            "1 offsets " => nothing(),
            _ => Some(Err(failed(24))),
        });
        let snapshot = look(&mut fake, &filter(), &known, LIMIT).result.unwrap();
        assert_eq!(snapshot.groups.len(), expected);
    }
}

#[test]
fn filter_and_cap_come_before_anything_per_group() {
    let mut fake = Fake::new(&[1], |question| match question {
        "1 groups" => listing(&[
            ("c", Some(State::Empty)),
            ("__hidden", Some(State::Empty)),
            ("a", Some(State::Empty)),
            ("b", Some(State::Empty)),
        ]),
        _ => nothing(),
    });
    let two = Filter {
        max_groups: 2,
        ..filter()
    };
    let snapshot = look(&mut fake, &two, &[], LIMIT).result.unwrap();
    assert_eq!(snapshot.groups_cut, 1);
    assert_eq!(fake.asked, ["1 groups", "1 offsets a", "1 offsets b"]);
}

#[test]
fn a_leader_that_moved_is_asked_again_and_a_lost_one_is_missing() {
    for (second, found) in [(Ok(9), 1), (Err(failed(code::LEADER_NOT_AVAILABLE)), 0)] {
        let rounds = std::cell::Cell::new(0);
        let mut fake = Fake::new(&[1], move |question| match question {
            "1 groups" => listing(&[("a", Some(State::Empty))]),
            "1 offsets a" => offsets("playlog", 7),
            _ if rounds.replace(rounds.get() + 1) == 0 => ends(Err(failed(code::NOT_LEADER))),
            _ => ends(second.clone()),
        });
        assert_eq!(fake.good().log_ends.len(), found);
    }
}

#[test]
fn a_refused_password_is_tried_once_and_told() {
    let mut fake = Fake::new(&[], |_| None);
    fake.brokers = Err(failed(code::TRANSPORT));
    fake.trouble = Some(Error::new(Reason::Auth, "wrong password"));
    let outcome = fake.look(LIMIT);
    assert!(outcome.spent);
    assert_eq!(outcome.result.unwrap_err().reason(), Reason::Auth);
    assert_eq!(fake.broker_requests, 1);
}

#[test]
fn a_bad_expression_is_refused() {
    let bad = Filter {
        groups_include: vec!["(".into()],
        ..filter()
    };
    let mut fake = Fake::new(&[1], |_| None);
    let error = look(&mut fake, &bad, &[], LIMIT).result.unwrap_err();
    assert_eq!(error.reason(), Reason::Unsupported);
}
