//! One look at a cluster: which requests are sent, in which order, and what their answers add up
//! to. Plain code over the [`Cluster`] trait, so that its rules are tested without a broker.
//!
//! The order is brokers, groups, members and committed offsets, log ends. Committed offsets are
//! read before log ends, so that no lag is negative.

use std::collections::{BTreeSet, HashMap};
use std::ffi::CString;
use std::time::{Duration, Instant};

use super::cluster::{Answer, Cluster, Listed, Offsets, Reply, Request};
use super::failure::Failure;
use super::groups::{self, Found, Groups};
use super::sieve::Sieve;
use super::{Filter, Snapshot, State};
use crate::error::{Error, Reason};

/// Partitions in one request for log ends: librdkafka merges the answers in quadratic time.
const ENDS_AT_ONCE: usize = 1000;
/// Requests of a look never time out inside librdkafka, where that leaks and may abort the process
/// (librdkafka #4605): the look stops waiting by itself, and the process ends with it.
pub(super) const NEVER: Duration = Duration::from_secs(3600);

/// What a look found. `spent`: requests are still on their way, and would leak, hang or abort in
/// librdkafka; the process must not be asked again.
#[derive(Debug)]
pub(super) struct Outcome {
    pub spent: bool,
    pub result: Result<Snapshot, Error>,
}

/// Looks at every group that the filter lets through, within nine tenths of `limit`.
///
/// `known` are the groups of the look before. A broker that has just become a coordinator lists
/// nothing, and no error: so a group that is missing from the listing is asked for by its name,
/// and is gone only if its coordinator says so.
pub(super) fn look(
    cluster: &mut impl Cluster,
    filter: &Filter,
    known: &[String],
    limit: Duration,
) -> Outcome {
    let mut look = Look {
        cluster,
        start: Instant::now(),
        limit,
        spent: false,
    };
    let result = Sieve::new(filter).and_then(|sieve| look.run(&sieve, known));
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

impl<C: Cluster> Look<'_, C> {
    fn run(&mut self, sieve: &Sieve, known: &[String]) -> Result<Snapshot, Error> {
        let brokers = self.brokers()?;
        let mut snapshot = Snapshot {
            cluster_id: self.cluster.id(),
            ..Snapshot::default()
        };
        let mut found = Groups::new();
        let speaker = self.list(&brokers, sieve, &mut found, &mut snapshot.listing_errors)?;
        add_missing(&mut found, known, sieve, speaker);
        snapshot.groups_cut = cut(&mut found, sieve.max_groups());
        self.spent |= groups::ask(self.cluster, &mut found, self.at(75));
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

    /// The brokers to ask. A broker that hangs may be the very one that librdkafka asks for them,
    /// again and again; then those of the look before are good enough.
    fn brokers(&mut self) -> Result<Vec<i32>, Error> {
        let mut last = Failure::timed_out("no broker answered");
        for until in [15, 40, 90] {
            match self.cluster.brokers(remaining(self.at(until))) {
                Ok(brokers) if !brokers.is_empty() => return Ok(brokers),
                Ok(_) => last = Failure::timed_out("no broker is known"),
                Err(failure) => last = failure,
            }
            self.spent = true;
            // What TLS or SASL refused once, they refuse again; to repeat it may lock an account.
            if let Some(trouble) = self.cluster.trouble()
                && matches!(trouble.reason(), Reason::Auth | Reason::Tls)
            {
                return Err(trouble);
            }
            let before = self.cluster.last_brokers();
            if before.len() > 1 {
                return Ok(before);
            }
        }
        Err(self.explain(last, "brokers"))
    }

    /// A time-out says little; what happened on the connections meanwhile says more.
    fn explain(&self, failure: Failure, what: &str) -> Error {
        let vague = matches!(failure.reason(), Reason::Timeout | Reason::Connection);
        match self.cluster.trouble() {
            Some(trouble) if vague => trouble,
            _ => failure.into_error(what),
        }
    }

    /// Asks every broker for its groups. A silent one costs some time, and its own groups. Returns
    /// a broker that answered.
    fn list(
        &mut self,
        brokers: &[i32],
        sieve: &Sieve,
        found: &mut Groups,
        errors: &mut Vec<Error>,
    ) -> Result<Option<i32>, Error> {
        let mut speaker = None;
        for (broker, reply) in self.listings(brokers) {
            let failures = match reply {
                Ok(Answer::Groups(groups, failures)) => {
                    if failures.is_empty() || !groups.is_empty() {
                        speaker = Some(broker);
                    }
                    add_listed(found, broker, groups, sieve);
                    failures
                }
                Ok(_) => vec![],
                Err(failure) => vec![failure],
            };
            for failure in failures {
                errors.push(self.explain(failure, &format!("broker {broker}")));
            }
        }
        match errors.first() {
            Some(error) if speaker.is_none() => Err(error.clone()),
            _ => Ok(speaker),
        }
    }

    /// What each broker answered when it was asked for its groups.
    fn listings(&mut self, brokers: &[i32]) -> Vec<(i32, Reply)> {
        let deadline = self.at(40).max(Instant::now() + self.limit / 5);
        let deadline = deadline.min(self.at(90));
        let mut asked = HashMap::new();
        for &broker in brokers {
            let tag = self.cluster.ask(Some(broker), &Request::Groups, NEVER);
            asked.insert(tag, broker);
        }
        let mut replies = vec![];
        while !asked.is_empty()
            && let Some((tag, reply)) = self.cluster.next(remaining(deadline))
        {
            if let Some(broker) = asked.remove(&tag) {
                replies.push((broker, reply));
            }
        }
        self.spent |= !asked.is_empty();
        for broker in asked.into_values() {
            let silence = Failure::timed_out("did not list its groups in time");
            replies.push((broker, Err(silence)));
        }
        replies
    }

    /// Log ends of every partition that some group has committed. Two rounds: a leader that has
    /// moved is forgotten in the first and found in the second.
    fn log_ends(&mut self, snapshot: &Snapshot) -> Offsets {
        let mut wanted = BTreeSet::new();
        for group in snapshot.groups.values().flatten() {
            for (topic, partitions) in &group.committed {
                let partitions = partitions.keys();
                wanted.extend(partitions.map(|&partition| (topic.clone(), partition)));
            }
        }
        let mut ends = Offsets::new();
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
            // These do time out in librdkafka, a little before we stop waiting: that is how the
            // answers of the other leaders are had when one is silent.
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

/// Adds one broker's listing to what is known.
fn add_listed(found: &mut Groups, broker: i32, groups: Vec<Listed>, sieve: &Sieve) {
    for listed in groups {
        let name = listed.id.to_string_lossy().into_owned();
        if listed.state == Some(State::Dead) || !sieve.group(&name) {
            continue;
        }
        found
            .entry(name)
            .and_modify(Found::listed_twice)
            .or_insert_with(|| Found::listed(broker, listed));
    }
}

/// Adds the groups of the look before that nobody lists now. A group without a name can't be asked
/// for: the listing alone tells of it.
fn add_missing(found: &mut Groups, known: &[String], sieve: &Sieve, broker: Option<i32>) {
    for name in known
        .iter()
        .filter(|name| !name.is_empty() && sieve.group(name))
    {
        if let Ok(id) = CString::new(name.as_str()) {
            found
                .entry(name.clone())
                .or_insert_with(|| Found::missing(broker, id));
        }
    }
}

/// Keeps the first `max` groups in the order of their names; returns how many were left out.
fn cut(found: &mut Groups, max: usize) -> usize {
    let over = found.len().saturating_sub(max);
    for _ in 0..over {
        found.pop_last();
    }
    over
}

pub(super) fn remaining(until: Instant) -> Duration {
    until.saturating_duration_since(Instant::now())
}

#[cfg(test)]
mod tests;
