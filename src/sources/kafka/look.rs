//! One look at a cluster: which requests are sent, in which order, to whom, and what their
//! answers add up to. Plain code over the [`Cluster`] trait, so that its rules are tested without
//! a broker.
//!
//! Order matters twice. Committed offsets are read before log ends, so that no lag is negative.
//! And each broker is asked for its own groups: the broker that lists a group coordinates it, so
//! that no coordinator has to be looked up (which would hang for a group that we may not see, and
//! is where librdkafka aborts), and a broker that hangs costs only its own groups.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::ffi::{CStr, CString};
use std::time::{Duration, Instant};

use super::failure::Failure;
use super::sieve::Sieve;
use super::{Filter, Group, Protocol, Snapshot, State};
use crate::error::{Error, Reason};

/// Requests in flight to one broker. It answers one at a time; more would only fill its queue.
const WINDOW: usize = 64;
/// How long a coordinator on the move is left alone before the one retry.
const REST: Duration = Duration::from_millis(500);
/// Partitions in one request for log ends: librdkafka merges the answers in quadratic time.
const ENDS_AT_ONCE: usize = 1000;
/// Coordinator requests never time out inside librdkafka, where that may abort the process
/// (librdkafka #4605): the look stops waiting by itself, and the process ends with it.
const NEVER: Duration = Duration::from_secs(3600);

/// A request as it was sent, to tell its answer by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Tag(pub usize);

#[derive(Debug)]
pub(super) enum Request<'a> {
    /// The groups that a broker coordinates.
    Groups,
    /// Members and state of one group.
    Members(&'a CStr),
    /// Everything that one group has committed.
    Offsets(&'a CStr),
    /// Where the logs of these partitions end.
    Ends(&'a [(String, i32)]),
}

#[derive(Debug)]
pub(super) enum Answer {
    /// With what the broker said went wrong (a part of its groups may still be loading).
    Groups(Vec<Listed>, Vec<Failure>),
    Members(Described),
    Offsets(Offsets),
    Ends(Vec<(String, i32, Result<i64, Failure>)>),
}

pub(super) type Reply = Result<Answer, Failure>;
pub(super) type Offsets = BTreeMap<String, BTreeMap<i32, i64>>;

/// One line of a listing.
#[derive(Debug, Clone)]
pub(super) struct Listed {
    pub id: CString,
    pub simple: bool,
    pub state: GroupState,
    pub protocol: Option<Protocol>,
}

#[derive(Debug, Clone)]
pub(super) struct Described {
    pub state: GroupState,
    pub protocol: Option<Protocol>,
    pub members: u32,
    pub assignor: String,
}

/// `None`: not told, or a state that librdkafka has no name for.
pub(super) type GroupState = Option<State>;

/// What a look needs of a Kafka client. Requests run at once; answers come in any order.
pub(super) trait Cluster {
    /// The brokers that are part of the cluster now.
    fn brokers(&mut self, wait: Duration) -> Result<Vec<i32>, Failure>;
    /// Sends a request, to the group's coordinator if no broker is named.
    fn ask(&mut self, broker: Option<i32>, request: &Request<'_>, wait: Duration) -> Tag;
    /// The next answer, if any comes within `wait`.
    fn next(&mut self, wait: Duration) -> Option<(Tag, Reply)>;
    /// The most telling thing that went wrong on a connection since [`Cluster::all_is_well`].
    fn trouble(&self) -> Option<Error>;
    fn all_is_well(&mut self);
}

/// What a look found. `spent`: requests are still on their way, and would leak, hang or abort in
/// librdkafka; the process must not be asked again.
#[derive(Debug)]
pub(super) struct Outcome {
    pub spent: bool,
    pub result: Result<Snapshot, Error>,
}

/// Looks at every group that the filter lets through, within nine tenths of `limit`.
pub(super) fn look(cluster: &mut impl Cluster, filter: &Filter, limit: Duration) -> Outcome {
    let mut look = Look {
        cluster,
        start: Instant::now(),
        limit,
        spent: false,
    };
    let result = Sieve::new(filter).and_then(|sieve| look.run(&sieve));
    Outcome {
        spent: look.spent,
        result,
    }
}

struct Look<'a, C> {
    cluster: &'a mut C,
    start: Instant,
    limit: Duration,
    spent: bool,
}

/// A group that the listing showed, and what was learnt of it since.
struct Found {
    id: CString,
    /// `None`: two brokers list it, so only a look-up tells which of them is right.
    broker: Option<i32>,
    simple: bool,
    state: GroupState,
    protocol: Protocol,
    members: Option<Result<Described, Failure>>,
    offsets: Option<Result<Offsets, Failure>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum About {
    Members,
    Offsets,
}

struct Job {
    group: String,
    about: About,
    broker: Option<i32>,
    retried: bool,
}

#[derive(Default)]
struct Lane {
    waiting: VecDeque<Job>,
    in_flight: usize,
}

impl<C: Cluster> Look<'_, C> {
    fn run(&mut self, sieve: &Sieve) -> Result<Snapshot, Error> {
        let brokers = self.brokers()?;
        let mut snapshot = Snapshot::default();
        let mut found = self.listing(&brokers, sieve, &mut snapshot)?;
        self.ask_groups(&mut found);
        for (name, group) in found {
            if let Some(result) = group.settle(sieve) {
                snapshot.groups.insert(name, result);
            }
        }
        snapshot.log_ends = self.log_ends(&snapshot);
        if snapshot.listing_errors.is_empty() {
            self.cluster.all_is_well();
        }
        Ok(snapshot)
    }

    /// The instant at which this share of the limit is used up.
    fn at(&self, percent: u32) -> Instant {
        self.start + self.limit * percent / 100
    }

    /// Asks up to three times, since a broker that hangs may be the one that is asked.
    fn brokers(&mut self) -> Result<Vec<i32>, Error> {
        let mut last = Failure::timed_out("no broker answered");
        for until in [15, 40, 90] {
            match self.cluster.brokers(remaining(self.at(until))) {
                Ok(brokers) if !brokers.is_empty() => return Ok(brokers),
                Ok(_) => last = Failure::timed_out("no broker is known"),
                Err(failure) => last = failure,
            }
            // A request may be left on its way; and what TLS or SASL refused once, they refuse
            // again: repeating it may lock the account.
            self.spent = true;
            if let Some(trouble) = self.cluster.trouble()
                && matches!(trouble.reason(), Reason::Auth | Reason::Tls)
            {
                return Err(trouble);
            }
        }
        Err(self.explain(last, "brokers"))
    }

    /// A time-out says little; what happened on the connections meanwhile says more.
    fn explain(&self, failure: Failure, what: &str) -> Error {
        let silent = matches!(failure.reason(), Reason::Timeout | Reason::Connection);
        match self.cluster.trouble() {
            Some(trouble) if silent => trouble,
            _ => failure.into_error(what),
        }
    }

    fn listing(
        &mut self,
        brokers: &[i32],
        sieve: &Sieve,
        snapshot: &mut Snapshot,
    ) -> Result<BTreeMap<String, Found>, Error> {
        let deadline = self.at(40).max(Instant::now() + self.limit / 5);
        let mut asked = HashMap::new();
        for &broker in brokers {
            asked.insert(
                self.cluster.ask(Some(broker), &Request::Groups, NEVER),
                broker,
            );
        }
        let mut found = BTreeMap::new();
        let mut answered = false;
        while !asked.is_empty()
            && let Some((tag, reply)) = self.cluster.next(remaining(deadline.min(self.at(90))))
        {
            let Some(broker) = asked.remove(&tag) else {
                continue;
            };
            let failures = match reply {
                Ok(Answer::Groups(groups, failures)) => {
                    answered |= failures.is_empty() || !groups.is_empty();
                    add(&mut found, broker, groups, sieve);
                    failures
                }
                Ok(_) => vec![],
                Err(failure) => vec![failure],
            };
            for failure in failures {
                let error = self.explain(failure, &format!("broker {broker}"));
                snapshot.listing_errors.push(error);
            }
        }
        for broker in asked.into_values() {
            self.spent = true;
            let silence = Failure::timed_out("did not list its groups in time");
            let error = self.explain(silence, &format!("broker {broker}"));
            snapshot.listing_errors.push(error);
        }
        match snapshot.listing_errors.first() {
            Some(error) if !answered => Err(error.clone()),
            _ => {
                snapshot.groups_cut = cut(&mut found, sieve.max_groups());
                Ok(found)
            }
        }
    }

    /// Members (of the groups that may have some) and offsets, each broker in its own lane.
    fn ask_groups(&mut self, found: &mut BTreeMap<String, Found>) {
        let deadline = self.at(75);
        let mut lanes: BTreeMap<Option<i32>, Lane> = BTreeMap::new();
        for (name, group) in found.iter() {
            let lane = lanes.entry(group.broker).or_default();
            lane.waiting.extend(group.jobs(name));
        }
        let mut asked: HashMap<Tag, Job> = HashMap::new();
        let mut resting: VecDeque<(Instant, Job)> = VecDeque::new();
        loop {
            let now = Instant::now();
            while resting.front().is_some_and(|(due, _)| *due <= now) {
                if let Some((_, job)) = resting.pop_front() {
                    lanes.entry(None).or_default().waiting.push_back(job);
                }
            }
            self.fill(&mut lanes, &mut asked, found);
            if now >= deadline || (asked.is_empty() && resting.is_empty()) {
                break;
            }
            let wake = resting
                .front()
                .map_or(deadline, |(due, _)| deadline.min(*due));
            let Some((tag, reply)) = self.cluster.next(remaining(wake)) else {
                continue;
            };
            let Some(mut job) = asked.remove(&tag) else {
                continue;
            };
            if let Some(lane) = lanes.get_mut(&job.broker) {
                lane.in_flight -= 1;
            }
            match reply {
                Err(failure) if failure.is_passing() && !job.retried => {
                    job.retried = true;
                    job.broker = None;
                    resting.push_back((now + REST, job));
                }
                reply => {
                    if let Some(group) = found.get_mut(&job.group) {
                        group.learn(job.about, reply);
                    }
                }
            }
        }
        self.spent |= !asked.is_empty();
    }

    fn fill(
        &mut self,
        lanes: &mut BTreeMap<Option<i32>, Lane>,
        asked: &mut HashMap<Tag, Job>,
        found: &BTreeMap<String, Found>,
    ) {
        for (broker, lane) in lanes {
            while lane.in_flight < WINDOW
                && let Some(job) = lane.waiting.pop_front()
            {
                let Some(group) = found.get(&job.group) else {
                    continue;
                };
                let request = match job.about {
                    About::Members => Request::Members(&group.id),
                    About::Offsets => Request::Offsets(&group.id),
                };
                asked.insert(self.cluster.ask(*broker, &request, NEVER), job);
                lane.in_flight += 1;
            }
        }
    }

    /// Log ends of every partition that some group has committed. Two rounds: a leader that has
    /// moved is forgotten in the first and found in the second.
    fn log_ends(&mut self, snapshot: &Snapshot) -> Offsets {
        let mut ends = Offsets::new();
        let mut wanted: BTreeSet<(String, i32)> = BTreeSet::new();
        for group in snapshot.groups.values().flatten() {
            for (topic, partitions) in &group.committed {
                wanted.extend(
                    partitions
                        .keys()
                        .map(|&partition| (topic.clone(), partition)),
                );
            }
        }
        for _ in 0..2 {
            wanted = self.ends_once(wanted, &mut ends);
            if wanted.is_empty() {
                break;
            }
        }
        ends
    }

    /// Returns the partitions whose leader has moved.
    fn ends_once(
        &mut self,
        wanted: BTreeSet<(String, i32)>,
        ends: &mut Offsets,
    ) -> BTreeSet<(String, i32)> {
        let deadline = self.at(90);
        let wanted: Vec<_> = wanted.into_iter().collect();
        let mut moved = BTreeSet::new();
        let mut asked = BTreeSet::new();
        for part in wanted.chunks(ENDS_AT_ONCE) {
            // These requests do time out in librdkafka, a little earlier than we stop waiting:
            // that is how the answers of the other brokers are had when one is silent.
            let wait = remaining(deadline) * 9 / 10;
            asked.insert(self.cluster.ask(None, &Request::Ends(part), wait).0);
        }
        while !asked.is_empty()
            && let Some((tag, reply)) = self.cluster.next(remaining(deadline))
        {
            if !asked.remove(&tag.0) {
                continue;
            }
            let Ok(Answer::Ends(partitions)) = reply else {
                continue;
            };
            for (topic, partition, end) in partitions {
                match end {
                    Ok(end) => {
                        ends.entry(topic).or_default().insert(partition, end);
                    }
                    Err(failure) if failure.is_moved_leader() => {
                        moved.insert((topic, partition));
                    }
                    Err(failure) => self.spent |= failure.reason() == Reason::Timeout,
                }
            }
        }
        self.spent |= !asked.is_empty();
        moved
    }
}

impl Found {
    fn new(broker: i32, listed: Listed) -> Self {
        Found {
            id: listed.id,
            broker: Some(broker),
            simple: listed.simple,
            state: listed.state,
            // Brokers before 3.7 do not tell, and have no other protocol.
            protocol: listed.protocol.unwrap_or(Protocol::Classic),
            members: None,
            offsets: None,
        }
    }

    /// A group that its coordinator calls Empty had no member at that instant; every other one is
    /// asked, and so is one of which two brokers claim to be the coordinator.
    fn is_empty(&self) -> bool {
        self.broker.is_some() && self.state == Some(State::Empty)
    }

    fn jobs(&self, name: &str) -> impl Iterator<Item = Job> {
        let about = if self.is_empty() {
            &[About::Offsets][..]
        } else {
            &[About::Members, About::Offsets][..]
        };
        about.iter().map(move |&about| Job {
            group: name.to_owned(),
            about,
            broker: self.broker,
            retried: false,
        })
    }

    fn learn(&mut self, about: About, reply: Reply) {
        match (about, reply) {
            (About::Members, Ok(Answer::Members(described))) => self.members = Some(Ok(described)),
            (About::Members, Err(failure)) => self.members = Some(Err(failure)),
            (About::Offsets, Ok(Answer::Offsets(offsets))) => self.offsets = Some(Ok(offsets)),
            (About::Offsets, Err(failure)) => self.offsets = Some(Err(failure)),
            (_, Ok(_)) => {}
        }
    }

    /// `None`: the group was deleted since it was listed.
    fn settle(self, sieve: &Sieve) -> Option<Result<Group, Error>> {
        let silence = || Failure::timed_out("no answer in time");
        let described = if self.is_empty() {
            Described {
                state: self.state,
                protocol: Some(self.protocol),
                members: 0,
                assignor: String::new(),
            }
        } else {
            match self.members.unwrap_or_else(|| Err(silence())) {
                Ok(described) => described,
                Err(failure) => return Some(Err(failure.into_error("members"))),
            }
        };
        if described.state == Some(State::Dead) {
            return None;
        }
        let mut committed = match self.offsets.unwrap_or_else(|| Err(silence())) {
            Ok(offsets) => offsets,
            Err(failure) => return Some(Err(failure.into_error("offsets"))),
        };
        committed.retain(|topic, _| sieve.topic(topic));
        Some(Ok(Group {
            protocol: described.protocol.unwrap_or(self.protocol),
            state: described.state,
            members: described.members,
            assignor: described.assignor,
            simple: self.simple,
            committed,
        }))
    }
}

/// Adds one broker's listing to what is known.
fn add(found: &mut BTreeMap<String, Found>, broker: i32, groups: Vec<Listed>, sieve: &Sieve) {
    for listed in groups {
        let name = listed.id.to_string_lossy().into_owned();
        if listed.state == Some(State::Dead) || !sieve.group(&name) {
            continue;
        }
        found
            .entry(name)
            .and_modify(|first| first.broker = first.broker.filter(|&one| one == broker))
            .or_insert_with(|| Found::new(broker, listed));
    }
}

/// Keeps the first `max` groups in the order of their names; returns how many were left out.
fn cut(found: &mut BTreeMap<String, Found>, max: usize) -> usize {
    let over = found.len().saturating_sub(max);
    for _ in 0..over {
        found.pop_last();
    }
    over
}

fn remaining(until: Instant) -> Duration {
    until.saturating_duration_since(Instant::now())
}
