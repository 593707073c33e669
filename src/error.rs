//! What can go wrong in a poll: one error type, and the closed set of reasons that
//! `dup_check_failures_total` and `dup_check_unreadable` use as a label.

use serde::{Deserialize, Serialize};

/// Why a poll, or one item of it, failed. A closed set, so that alerts can be written against it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// No answer within the time limit, or the server gave up at its own.
    Timeout,
    /// The server could not be reached, or hung up.
    Connection,
    /// The TLS handshake failed.
    Tls,
    /// The server did not accept who we are.
    Auth,
    /// The server knows us but does not let us see what we asked for.
    Authorization,
    /// The Kafka worker process died, hung, or answered nonsense.
    Worker,
    /// The table or database does not exist, or is hidden from us.
    UnknownTable,
    /// A configured column does not exist.
    UnknownColumn,
    /// `system.part_log` is off, empty, or hidden from us.
    NoPartLog,
    /// A Kafka group coordinator is moving or loading.
    Coordinator,
    /// What was asked can't be judged, and no retry will help.
    Unsupported,
    /// The consumer group of a pipeline does not exist, or has no commits that we may see.
    GroupNotFound,
    /// The BullMQ queue does not exist.
    QueueNotFound,
    /// The answer was cut, or made no sense.
    Protocol,
    /// Any other error that the server reported.
    Server,
    /// The server refused a query that would cost more than our limits allow.
    Limit,
}

impl Reason {
    /// Every reason, in the order of the documentation.
    pub const ALL: [Reason; 16] = [
        Reason::Timeout,
        Reason::Connection,
        Reason::Tls,
        Reason::Auth,
        Reason::Authorization,
        Reason::Worker,
        Reason::UnknownTable,
        Reason::UnknownColumn,
        Reason::NoPartLog,
        Reason::Coordinator,
        Reason::Unsupported,
        Reason::GroupNotFound,
        Reason::QueueNotFound,
        Reason::Protocol,
        Reason::Server,
        Reason::Limit,
    ];

    /// The value of the `reason` label.
    pub const fn as_str(self) -> &'static str {
        match self {
            Reason::Timeout => "timeout",
            Reason::Connection => "connection",
            Reason::Tls => "tls",
            Reason::Auth => "auth",
            Reason::Authorization => "authorization",
            Reason::Worker => "worker",
            Reason::UnknownTable => "unknown_table",
            Reason::UnknownColumn => "unknown_column",
            Reason::NoPartLog => "no_part_log",
            Reason::Coordinator => "coordinator",
            Reason::Unsupported => "unsupported",
            Reason::GroupNotFound => "group_not_found",
            Reason::QueueNotFound => "queue_not_found",
            Reason::Protocol => "protocol",
            Reason::Server => "server",
            Reason::Limit => "limit",
        }
    }
}

/// A failed poll or item: a [`Reason`] for the label, and words for the log that say what to do.
/// The words never hold a secret; they are shown on the landing page.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[error("{message}")]
pub struct Error {
    reason: Reason,
    message: String,
}

impl Error {
    /// An error of the given reason, with words for people.
    pub fn new(reason: Reason, message: impl Into<String>) -> Self {
        Error {
            reason,
            message: message.into(),
        }
    }

    /// The value of the `reason` label.
    pub fn reason(&self) -> Reason {
        self.reason
    }
}
