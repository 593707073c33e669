//! What `system.part_log` is: whether it is there, and which of its rows tell of an insert.

use std::sync::Arc;

use tokio::time::Instant;

use crate::error::{Error, Reason};
use crate::sources::clickhouse::{ClickHouse, Shape};

/// Looks the log up.
///
/// # Errors
/// `no_part_log` when the server knows none; and those of a query.
pub async fn find(clickhouse: &Arc<ClickHouse>, deadline: Instant) -> Result<Shape, Error> {
    let log = clickhouse.shape("system", "part_log", deadline).await;
    log.map_err(|error| match error.reason() {
        Reason::UnknownTable => no_part_log(
            "is unknown to the server: switch it on with a <part_log> section in config.xml, and \
             grant SELECT on it",
        ),
        _ => error,
    })
}

/// What is known here may be unknown to another server of the cluster; the server's words name it.
pub fn missing_somewhere(error: Error) -> Error {
    let words = error.to_string();
    let is_missing = error.reason() == Reason::UnknownTable
        || words.contains("There is no table system.part_log on server");
    match is_missing {
        true => no_part_log(&format!(
            "is unknown to a server of the cluster, or not there before its first insert: {words}"
        )),
        false => error,
    }
}

/// The log shows no row.
pub fn is_empty() -> Error {
    no_part_log("shows no row at all: look for a row policy, or wait for the first insert")
}

/// The log is missing, or does not show what it should.
pub fn no_part_log(what: &str) -> Error {
    Error::new(Reason::NoPartLog, format!("system.part_log {what}"))
}

/// SQL: whether the rows of a new part were inserted into the table, as far as the log can tell.
///
/// Where a part's profile is logged, those that were attached rather than written show. A patch
/// part is what a lightweight UPDATE or DELETE leaves: its rows are in the table already.
pub fn is_insert(log: &Shape) -> &'static str {
    match log.has_column("ProfileEvents") {
        true => {
            "((empty(ProfileEvents) OR mapContains(ProfileEvents, 'MergeTreeDataWriterRows')) \
             AND NOT startsWith(part_name, 'patch-'))"
        }
        false => "1",
    }
}
