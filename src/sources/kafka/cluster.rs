//! What a look needs of a Kafka client, in plain words: the requests, their answers, and the
//! [`Cluster`] trait between the rules of a look and the client that carries them out.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString};
use std::time::Duration;

use super::failure::Failure;
use super::{Protocol, State};
use crate::error::Error;

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
/// `None`: not told, or a state that librdkafka has no name for.
pub(super) type GroupState = Option<State>;

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
    pub simple: bool,
    pub state: GroupState,
    pub protocol: Option<Protocol>,
    pub members: u32,
    pub assignor: String,
}

/// A Kafka client. Requests run at once; their answers come in any order.
pub(super) trait Cluster {
    /// The brokers that are part of the cluster now.
    fn brokers(&mut self, wait: Duration) -> Result<Vec<i32>, Failure>;
    /// What the cluster calls itself, as its brokers said when they were last asked for.
    fn id(&self) -> Option<String>;
    /// The last answer of [`Cluster::brokers`].
    fn last_brokers(&self) -> Vec<i32>;
    /// Sends a request, to the group's coordinator if no broker is named. It fails by itself
    /// after `wait`.
    fn ask(&mut self, broker: Option<i32>, request: &Request<'_>, wait: Duration) -> Tag;
    /// The next answer, if any comes within `wait`.
    fn next(&mut self, wait: Duration) -> Option<(Tag, Reply)>;
    /// The most telling thing that went wrong on a connection since [`Cluster::all_is_well`].
    fn trouble(&self) -> Option<Error>;
    fn all_is_well(&mut self);
}
