//! The middle of a look: from the names of the groups to their members and committed offsets.
//!
//! Each broker is asked for its own groups: the broker that lists a group coordinates it. So no
//! coordinator has to be looked up (which would triple the requests, hang for a group that we may
//! not see, and is where librdkafka aborts), and a broker that hangs costs only its own groups.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ffi::CString;
use std::time::{Duration, Instant};

use super::cluster::{Answer, Cluster, Described, Listed, Offsets, Reply, Request, Tag};
use super::failure::Failure;
use super::look::{NEVER, remaining};
use super::sieve::Sieve;
use super::{Group, Protocol, State};
use crate::error::Error;

/// Requests in flight to one broker. It answers one at a time; more would only fill its queue.
const WINDOW: usize = 64;
/// How long a coordinator on the move is left alone before the one retry.
const REST: Duration = Duration::from_millis(500);

/// The groups of a look, by name.
pub(super) type Groups = BTreeMap<String, Found>;

/// A group that a broker listed or an earlier look knew, and what was learnt of it since.
pub(super) struct Found {
    id: CString,
    /// Whom to ask; `None`: its coordinator, whoever that is.
    broker: Option<i32>,
    /// What the listing said; `None`: nothing, or two brokers list the group.
    listed: Option<Listed>,
    members: Option<Result<Described, Failure>>,
    offsets: Option<Result<Offsets, Failure>>,
    /// Who told the offsets.
    coordinator: Option<i32>,
}

impl Found {
    /// A group as this broker lists it.
    pub fn listed(broker: i32, listed: Listed) -> Self {
        Found {
            id: listed.id.clone(),
            broker: Some(broker),
            listed: Some(listed),
            members: None,
            offsets: None,
            coordinator: None,
        }
    }

    /// A group of an earlier look that nobody lists. Any broker will do for the first question:
    /// one that does not coordinate it says so, or that we may not see it.
    pub fn missing(broker: Option<i32>, id: CString) -> Self {
        Found {
            id,
            broker,
            listed: None,
            members: None,
            offsets: None,
            coordinator: None,
        }
    }

    /// A second broker lists the group: only its coordinator knows which of them is right.
    pub fn listed_twice(&mut self) {
        self.broker = None;
        self.listed = None;
    }

    /// A group that its coordinator calls Empty had no member at that instant; of every other
    /// one the members are asked for.
    fn is_empty(&self) -> bool {
        let state = self.listed.as_ref().and_then(|listed| listed.state);
        state == Some(State::Empty)
    }

    /// What to ask at first. Whether a group that nobody lists (or two do) has offsets is asked
    /// when it is known to be there.
    fn jobs(&self, name: &str) -> impl Iterator<Item = Job> {
        let about = match &self.listed {
            Some(_) if self.is_empty() => &[About::Offsets][..],
            Some(_) => &[About::Members, About::Offsets][..],
            None => &[About::Members][..],
        };
        about.iter().map(move |&about| Job {
            group: name.to_owned(),
            about,
            broker: self.broker,
            retried: false,
        })
    }

    /// Whether a group that nobody listed has turned out to be there.
    fn is_found_alive(&self) -> bool {
        let alive = |described: &Described| described.state != Some(State::Dead);
        let described = self.members.as_ref().and_then(|told| told.as_ref().ok());
        self.listed.is_none() && described.is_some_and(alive)
    }

    /// Takes in what this broker said (`None`: the group's coordinator).
    fn learn(&mut self, about: About, broker: Option<i32>, reply: Reply) {
        match (about, reply) {
            (About::Members, Ok(Answer::Members(described))) => self.members = Some(Ok(described)),
            (About::Members, Err(failure)) => self.members = Some(Err(failure)),
            (About::Offsets, Ok(Answer::Offsets(offsets))) => {
                self.offsets = Some(Ok(offsets));
                self.coordinator = broker;
            }
            (About::Offsets, Err(failure)) => self.offsets = Some(Err(failure)),
            (_, Ok(_)) => {}
        }
    }

    /// Members and state, as the listing or the group's coordinator told them.
    fn described(&mut self) -> Result<Described, Failure> {
        match (&self.listed, self.members.take()) {
            (Some(listed), _) if self.is_empty() => Ok(Described {
                simple: listed.simple,
                state: listed.state,
                protocol: listed.protocol,
                members: 0,
                assignor: String::new(),
            }),
            (_, members) => members.unwrap_or_else(|| Err(silence())),
        }
    }

    /// What is known of the group; `None`: its coordinator says that there is none, or none of
    /// consumers.
    pub fn settle(mut self, sieve: &Sieve) -> Option<Result<Group, Error>> {
        let described = match self.described() {
            Ok(described) => described,
            Err(failure) if failure.is_other_kind() => return None,
            Err(failure) => return Some(Err(failure.into_error("members"))),
        };
        if described.state == Some(State::Dead) {
            return None;
        }
        let mut committed = match self.offsets.unwrap_or_else(|| Err(silence())) {
            Ok(offsets) => offsets,
            Err(failure) => return Some(Err(failure.into_error("offsets"))),
        };
        committed.retain(|topic, _| sieve.topic(topic));
        let listed = self.listed.as_ref();
        let protocol = listed.and_then(|listed| listed.protocol);
        Some(Ok(Group {
            // Brokers before 3.7 do not tell, and have no other protocol.
            protocol: described.protocol.or(protocol).unwrap_or(Protocol::Classic),
            state: described.state,
            members: described.members,
            assignor: described.assignor,
            simple: listed.map_or(described.simple, |listed| listed.simple),
            committed,
            coordinator: self.coordinator,
        }))
    }
}

fn silence() -> Failure {
    Failure::timed_out("no answer in time")
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

/// What is to be asked of one broker.
#[derive(Default)]
struct Lane {
    waiting: VecDeque<Job>,
    in_flight: usize,
}

/// Asks for members (of the groups that may have some) and offsets, until `deadline`. Returns
/// whether requests are left on their way.
pub(super) fn ask(cluster: &mut impl Cluster, groups: &mut Groups, deadline: Instant) -> bool {
    let mut asking = Asking {
        cluster,
        lanes: BTreeMap::new(),
        asked: HashMap::new(),
        resting: VecDeque::new(),
    };
    for (name, group) in groups.iter() {
        let lane = asking.lanes.entry(group.broker).or_default();
        lane.waiting.extend(group.jobs(name));
    }
    asking.run(groups, deadline);
    !asking.asked.is_empty()
}

struct Asking<'a, C> {
    cluster: &'a mut C,
    lanes: BTreeMap<Option<i32>, Lane>,
    asked: HashMap<Tag, Job>,
    resting: VecDeque<(Instant, Job)>,
}

impl<C: Cluster> Asking<'_, C> {
    fn run(&mut self, groups: &mut Groups, deadline: Instant) {
        loop {
            let now = Instant::now();
            self.wake(now);
            self.fill(groups);
            if now >= deadline || (self.asked.is_empty() && self.resting.is_empty()) {
                return;
            }
            let due = self.resting.front().map_or(deadline, |(due, _)| *due);
            if let Some((tag, reply)) = self.cluster.next(remaining(due.min(deadline))) {
                self.settle(groups, tag, reply);
            }
        }
    }

    /// Jobs that have rested go to whoever coordinates their group now.
    fn wake(&mut self, now: Instant) {
        while self.resting.front().is_some_and(|(due, _)| *due <= now)
            && let Some((_, job)) = self.resting.pop_front()
        {
            self.lanes.entry(None).or_default().waiting.push_back(job);
        }
    }

    fn fill(&mut self, groups: &Groups) {
        for (broker, lane) in &mut self.lanes {
            while lane.in_flight < WINDOW
                && let Some(job) = lane.waiting.pop_front()
            {
                let Some(group) = groups.get(&job.group) else {
                    continue;
                };
                let request = match job.about {
                    About::Members => Request::Members(&group.id),
                    About::Offsets => Request::Offsets(&group.id),
                };
                self.asked
                    .insert(self.cluster.ask(*broker, &request, NEVER), job);
                lane.in_flight += 1;
            }
        }
    }

    fn settle(&mut self, groups: &mut Groups, tag: Tag, reply: Reply) {
        let Some(mut job) = self.asked.remove(&tag) else {
            return;
        };
        let Some(lane) = self.lanes.get_mut(&job.broker) else {
            return;
        };
        lane.in_flight -= 1;
        let again = matches!(&reply, Err(failure) if failure.is_passing()) && !job.retried;
        // Learnt even so: it is the better answer if there is none the second time.
        if let Some(group) = groups.get_mut(&job.group) {
            group.learn(job.about, job.broker, reply);
            if job.about == About::Members && group.is_found_alive() {
                job.about = About::Offsets;
                lane.waiting.push_back(job);
                return;
            }
        }
        if again {
            job.retried = true;
            job.broker = None;
            self.resting.push_back((Instant::now() + REST, job));
        }
    }
}
