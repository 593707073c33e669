//! Kafka, asked for one thing: how every consumer group stands.
//!
//! [`GroupReader`] is that one question. Its answer, a [`Snapshot`], is plain data, so that the
//! check that judges it needs no broker in its tests. The only reader today is [`WorkerClient`],
//! which keeps librdkafka in a child process.

mod admin;
mod cluster;
mod failure;
mod groups;
mod look;
mod properties;
mod relay;
mod sieve;
mod supervisor;
pub mod worker;

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Reason};

pub(crate) use properties::{accepts, forced};
pub use supervisor::WorkerClient;

/// Why a look, or one group of it, may fail; `limit` is for groups over [`Filter::max_groups`].
pub const REASONS: &[Reason] = &[
    Reason::Timeout,
    Reason::Connection,
    Reason::Tls,
    Reason::Auth,
    Reason::Authorization,
    Reason::Worker,
    Reason::Coordinator,
    Reason::Unsupported,
    Reason::Server,
    Reason::Limit,
];

/// Which groups and topics a look is about, and how many groups at most. Regular expressions
/// of the `regex` crate, matched anywhere in the name.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Filter {
    /// A group must match one of these, …
    pub groups_include: Vec<String>,
    /// … and none of these.
    pub groups_exclude: Vec<String>,
    /// A topic must match one of these, …
    pub topics_include: Vec<String>,
    /// … and none of these.
    pub topics_exclude: Vec<String>,
    /// Groups beyond this number, in the order of their names, are left out and counted.
    pub max_groups: usize,
}

/// The answer to one look at a cluster.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    /// What the cluster calls itself; `None` when it does not say.
    pub cluster_id: Option<String>,
    /// By group id: what was read, or why this one group could not be. A group of the look before
    /// that is missing here is gone: its coordinator said so, not merely the listing.
    pub groups: BTreeMap<String, Result<Group, Error>>,
    /// High watermark (the offset that the next message will get) by topic and partition, for
    /// the partitions that some group has committed; what could not be read is missing.
    pub log_ends: BTreeMap<String, BTreeMap<i32, i64>>,
    /// Brokers that did not answer the listing, or not all of it. While there are any, groups
    /// that no look has found yet may be missing.
    pub listing_errors: Vec<Error>,
    /// Groups left out because of [`Filter::max_groups`].
    pub groups_cut: usize,
}

/// One consumer group, as the brokers tell it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Group {
    /// How its members share the partitions.
    pub protocol: Protocol,
    /// `None`: a state that librdkafka does not know. Such a group is alive.
    pub state: Option<State>,
    /// Members at the time of the look.
    pub members: u32,
    /// The partition assignor; empty when the group has none.
    pub assignor: String,
    /// No member ever joined: the group exists only by its commits.
    pub simple: bool,
    /// Committed offsets by topic and partition; partitions without a commit are missing.
    pub committed: BTreeMap<String, BTreeMap<i32, i64>>,
    /// The broker that told them; `None`: whoever coordinates the group, when that was on the move.
    pub coordinator: Option<i32>,
}

/// The rebalance protocol: the classic one, or the consumer protocol of KIP-848.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Protocol {
    /// The one that Kafka has always had.
    Classic,
    /// That of KIP-848 (`group.protocol=consumer`).
    Consumer,
}

/// The states that librdkafka tells apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum State {
    /// Members are joining.
    PreparingRebalance,
    /// Members wait for their assignment.
    CompletingRebalance,
    /// Every member has its assignment.
    Stable,
    /// Deleted. Never in a [`Snapshot`], which leaves such groups out.
    Dead,
    /// No members.
    Empty,
}

/// Answers the one question that the groups check has.
#[async_trait::async_trait]
pub trait GroupReader: Send {
    /// Looks at every group that the filter lets through, within `limit`.
    ///
    /// # Errors
    /// When nothing can be said at all: `timeout`, `connection`, `tls`, `auth`, `authorization`
    /// (the listing itself was refused), or `worker`. What concerns one group or one broker is
    /// told inside the [`Snapshot`].
    async fn look(&mut self, filter: &Filter, limit: Duration) -> Result<Snapshot, Error>;

    /// Names the groups of a look that another reader took: those that no broker lists for a while
    /// are asked for by name.
    fn remember(&mut self, _groups: Vec<String>) {}
}
