//! Check of ClickHouse tables: how many rows, and how many distinct keys, do recent windows hold?
//!
//! Rows are counted as they physically lie there, never with FINAL: what no merge has removed yet is
//! what every reader without FINAL counts twice.

mod config;
mod matching;

use std::any::Any;
use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::time::{Instant, timeout_at};
use tracing::warn;

pub use self::config::{Config, RawConfig, Tables};
use self::matching::Matching;
pub use self::matching::tell_apart;
use super::Sources;
use super::scan::{Scan, Wish};
use crate::config::values::Span;
use crate::error::{Error, Reason};
use crate::poll::{Check, Planned};
use crate::sample::{Family, Sample};
use crate::snapshot::Report;
use crate::sources::clickhouse::{ClickHouse, REASONS, Row, Shape};

// ---- Families ----

const WINDOW: &[&str] = &["source", "database", "table", "window"];

static ROWS: Family = Family::gauge(
    "dup_rows",
    WINDOW,
    "Physical rows dated in the window that ends at the server's now, as of the last poll.",
);
static KEYS: Family = Family::gauge(
    "dup_keys",
    WINDOW,
    "Distinct keys of the rows in the window, as of the last poll.",
);
static FACTOR: Family = Family::gauge(
    "dup_factor",
    WINDOW,
    "Rows per distinct key in the window, as of the last poll: 1 = no duplicates, 2 = each row \
     twice; absent when there are no keys.",
);
static DUPLICATED_KEYS: Family = Family::gauge(
    "dup_duplicated_keys",
    WINDOW,
    "Distinct keys with more than one row in the window, as of the last poll.",
);
static NULL_KEY_ROWS: Family = Family::gauge(
    "dup_null_key_rows",
    WINDOW,
    "Rows in the window whose key has a NULL in it, as of the last poll; NULL counts as a value \
     like any other.",
);
static UNHEALABLE_ROWS: Family = Family::gauge(
    "dup_unhealable_rows",
    WINDOW,
    "Rows in the window beyond one per key that no merge can remove, as of the last poll: in other \
     partitions or shards, sorted differently, or in an engine that never replaces.",
);
static SAMPLE_RATIO: Family = Family::gauge(
    "dup_sample_keys_ratio",
    &["source", "database", "table"],
    "Share of the keys that the last poll of the table read, with all their copies; 1 = exact.",
);
static FUTURE_ROWS: Family = Family::gauge(
    "dup_future_rows",
    &["source", "database", "table"],
    "Rows dated after the server's now, which are in no window, in the parts that the last poll \
     read.",
);

/// Every family of this check.
pub const FAMILIES: &[&Family] = &[
    &ROWS,
    &KEYS,
    &FACTOR,
    &DUPLICATED_KEYS,
    &NULL_KEY_ROWS,
    &UNHEALABLE_ROWS,
    &SAMPLE_RATIO,
    &FUTURE_ROWS,
];

// ---- The question ----

/// One query for all windows: rows are counted by key and window first, and the keys then.
///
/// `uniqExact(a, b)` would be shorter, and wrong: it drops rows with a NULL.
fn question(scan: &Scan, windows: &[Span]) -> String {
    let mut of_all = Vec::new();
    let mut of_key = vec![format!("{} AS dup_null", scan.has_null())];
    for (i, window) in windows.iter().enumerate() {
        let within = scan.clock.in_window(*window);
        of_all.push(format!(
            "sum(dup_rows_{i}) AS rows_{i}, sum(dup_rows_{i} > 0) AS keys_{i}, \
             sum(dup_rows_{i} > 1) AS duplicated_{i}, \
             sum(if(dup_null, dup_rows_{i}, 0)) AS null_{i}"
        ));
        of_key.push(format!("countIf({within}) AS dup_rows_{i}"));
        if let Some(left) = scan.count_left(&within) {
            of_all.push(format!("sum(dup_left_{i}) AS left_{i}"));
            of_key.push(format!("{left} AS dup_left_{i}"));
        }
    }
    format!("SELECT {} FROM {}", of_all.join(", "), scan.by_key(&of_key))
}

// ---- The answer ----

fn samples(
    names: [&str; 3],
    windows: &[Span],
    scan: &Scan,
    row: &Row,
) -> Result<Vec<Sample>, Error> {
    let [source, database, table] = names;
    let mut samples = vec![SAMPLE_RATIO.sample(&names, 1.0 / scan.sample as f64)];
    for (i, window) in windows.iter().enumerate() {
        let window = window.to_string();
        let labels = [source, database, table, &window];
        let rows = row.count(&format!("rows_{i}"))?;
        let keys = row.count(&format!("keys_{i}"))?;
        let duplicated = row.count(&format!("duplicated_{i}"))?;
        let null = row.count(&format!("null_{i}"))?;
        if duplicated > keys || null > rows {
            let message = format!("{rows} rows of {keys} keys, {duplicated} of them twice, can't be");
            return Err(Error::new(Reason::Protocol, message));
        }
        let left = scan.left(row, &format!("left_{i}"), rows, keys)?;
        samples.push(ROWS.sample(&labels, scan.scaled(rows)));
        samples.push(KEYS.sample(&labels, scan.scaled(keys)));
        samples.push(DUPLICATED_KEYS.sample(&labels, scan.scaled(duplicated)));
        samples.push(NULL_KEY_ROWS.sample(&labels, scan.scaled(null)));
        let unhealable = left.map(|left| scan.scaled(left - keys));
        samples.extend(unhealable.map(|rows| UNHEALABLE_ROWS.sample(&labels, rows)));
        if keys > 0 {
            samples.push(FACTOR.sample(&labels, rows as f64 / keys as f64));
        }
    }
    Ok(samples)
}

// ---- The check ----

struct Table {
    config: Config,
    clickhouse: Arc<ClickHouse>,
    /// By table.
    memory: BTreeMap<String, Memory>,
}

/// What earlier polls learnt of a table.
#[derive(Default)]
struct Memory {
    /// How far ahead of the server's clock rows were dated, in seconds.
    ahead: u64,
    /// The user was told that updates look like duplicates.
    warned: bool,
    asked: Option<Instant>,
}

/// One check for each entry of the configuration.
pub fn plan(config: &crate::config::Config, sources: &Sources) -> Vec<Planned> {
    let plan = |config: Config, clickhouse: Arc<ClickHouse>| {
        let (name, timing) = match &config.tables {
            Tables::One(table) => (format!("table:{}.{table}", config.database), config.timing),
            Tables::Matching(matching) => (
                format!("tables:{}/{}", config.database, matching.pattern.0),
                matching::timing_of_all(config.timing),
            ),
        };
        let memory = BTreeMap::new();
        Some(Planned {
            source: clickhouse.health().name.clone(),
            asks: clickhouse.health().name.clone(),
            name,
            timing,
            reasons: REASONS,
            check: Box::new(Table { config, clickhouse, memory }),
        })
    };
    sources.plan_clickhouse(config, |source| &source.tables, plan)
}

impl Table {
    /// Looks at one table.
    async fn look(&mut self, table: &str, deadline: Instant) -> Result<Vec<Sample>, Error> {
        let Table { config, clickhouse, memory } = self;
        let memory = memory.entry(table.to_owned()).or_default();
        memory.asked = Some(Instant::now());
        let shape = clickhouse.shape(&config.database, table, deadline).await?;
        shape.must_be_readable()?;
        if !config.force {
            shape.must_hold_plain_rows()?;
        }
        memory.warn_of_versions(config, &shape);
        let wish = Wish {
            key: &config.key,
            time: &config.time,
            spans: &config.windows,
            sample: config.sample,
            ahead: memory.ahead,
        };
        let scan = Scan::plan(clickhouse, &shape, &wish, deadline).await?;
        let future = scan.future(clickhouse, deadline).await?;
        memory.ahead = memory.ahead.max(future.ahead);
        let row = clickhouse.row(&question(&scan, &config.windows), deadline).await?;
        let health = clickhouse.health();
        let names = [&*health.name, &*config.database, table];
        let mut samples = samples(names, &config.windows, &scan, &row)?;
        samples.push(FUTURE_ROWS.sample(&names, future.rows as f64));
        Ok(samples)
    }

    /// Looks at every table that matches, for as long as the poll may take; those that were not
    /// looked at for longest come first.
    async fn look_at_all(
        &mut self,
        matching: &Matching,
        deadline: Instant,
    ) -> Result<Report, Error> {
        let found = matching.find(&self.clickhouse, &self.config.database, deadline).await?;
        self.memory.retain(|table, _| found.tables.contains(table));
        let mut tables: Vec<_> = found.tables.into_iter().collect();
        tables.sort_by_key(|table| self.memory.get(table).and_then(|memory| memory.asked));
        let mut report = Report { skipped: found.skipped, ..Report::default() };
        let last_start = Instant::now() + matching::starts_within(self.config.timing);
        for table in tables {
            let now = Instant::now();
            let until = now + self.config.timing.timeout.0;
            let has_its_turn = report.items.is_empty() || now <= last_start;
            let looked = match &report.failure {
                Some(error) => Err(error.clone()),
                None if !has_its_turn => Err(out_of_time()),
                None => timeout_at(until, self.look(&table, until))
                    .await
                    .unwrap_or_else(|_| Err(out_of_time())),
            };
            let failure = looked.as_ref().err().filter(|e| is_of_the_source(e.reason()));
            report.failure = failure.cloned().or(report.failure);
            report.items.insert(table, looked);
        }
        Ok(report)
    }
}

fn out_of_time() -> Error {
    Error::new(Reason::Timeout, "no answer in time, or no time left for it in this poll")
}

/// Whether a failure is the whole source's, so that no other table need be tried.
fn is_of_the_source(reason: Reason) -> bool {
    matches!(reason, Reason::Connection | Reason::Tls | Reason::Auth)
}

impl Memory {
    fn warn_of_versions(&mut self, config: &Config, shape: &Shape) {
        let Some(version) = &shape.version else { return };
        let key = shape.key_expressions(&config.key).unwrap_or_default();
        let is_version = |column: &String| column.trim_matches('`') == version;
        if key.iter().any(is_version) || std::mem::replace(&mut self.warned, true) {
            return;
        }
        let table = format!("{}.{}", shape.database, shape.table);
        warn!(
            table,
            version,
            "a row with another version of the same key counts as a duplicate here: if updates are \
             meant, put the version column into key"
        );
    }
}

#[async_trait::async_trait]
impl Check for Table {
    async fn poll(&mut self, deadline: Instant) -> Result<Report, Error> {
        match self.config.tables.clone() {
            Tables::One(table) => Ok(Report::of("table", self.look(&table, deadline).await?)),
            Tables::Matching(matching) => self.look_at_all(&matching, deadline).await,
        }
    }

    fn take_over(&mut self, before: Box<dyn Any>) {
        if let Ok(before) = before.downcast::<Table>() {
            self.memory = before.memory;
        }
    }
}
