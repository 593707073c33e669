//! Check of a ClickHouse table: how many rows, and how many distinct keys, do recent windows hold?
//!
//! Rows are counted as they physically lie there, never with FINAL: what no merge has removed yet is
//! what every reader without FINAL counts twice.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde::Deserialize;
use serde_saphyr::Spanned;
use tokio::time::Instant;

use super::Sources;
use crate::config::values::{Key, Name, Span};
use crate::config::{Defaults, Invalid, OwnTiming, Timing};
use crate::error::{Error, Reason};
use crate::poll::{Check, Planned};
use crate::sample::{Family, Sample};
use crate::snapshot::Report;
use crate::sources::clickhouse::{ClickHouse, REASONS, Row, Shape, base_type, sql};

const DEFAULT_INTERVAL: Span = Span::seconds(300);
const DEFAULT_WINDOWS: [Span; 2] = [Span::seconds(600), Span::seconds(3_600)];
const DAY: Span = Span::seconds(86_400);

// ---- Configuration ----

/// One table to be watched.
#[derive(Debug, Clone)]
pub struct Config {
    pub database: String,
    pub table: String,
    pub key: Key,
    /// The column that dates a row.
    pub time: String,
    pub windows: Vec<Span>,
    /// Count even where the engine says that a row is not one event.
    pub force: bool,
    pub timing: Timing,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawConfig {
    database: Name,
    table: Spanned<Name>,
    key: Key,
    time: Name,
    windows: Option<Spanned<Vec<Spanned<Span>>>>,
    #[serde(default)]
    force: bool,
    interval: Option<Spanned<Span>>,
    timeout: Option<Spanned<Span>>,
    stale_after: Option<Spanned<Span>>,
}

impl RawConfig {
    /// `seen` holds the names of the tables of the same source that were validated before.
    pub fn validate(
        self,
        defaults: &Defaults,
        seen: &mut BTreeSet<String>,
    ) -> Result<Config, Invalid> {
        let (database, table) = (self.database.0, self.table.value.0.clone());
        if !seen.insert(format!("{database}.{table}")) {
            let message = format!("table {database}.{table} stands here twice: keep one");
            return Err(Invalid::new(&self.table, message));
        }
        let own = OwnTiming {
            interval: self.interval,
            timeout: self.timeout,
            stale_after: self.stale_after,
        };
        let timing = defaults.timing(DEFAULT_INTERVAL, own)?;
        let windows = match self.windows {
            Some(windows) => validate_windows(windows, timing.interval)?,
            None => DEFAULT_WINDOWS
                .into_iter()
                .filter(|window| *window >= timing.interval)
                .collect(),
        };
        if windows.is_empty() {
            let message = format!(
                "the default windows (10m, 1h) are shorter than the interval {}: set windows",
                timing.interval
            );
            return Err(Invalid::new(&self.table, message));
        }
        Ok(Config {
            database,
            table,
            key: self.key,
            time: self.time.0,
            windows,
            force: self.force,
            timing,
        })
    }
}

fn validate_windows(
    raw: Spanned<Vec<Spanned<Span>>>,
    interval: Span,
) -> Result<Vec<Span>, Invalid> {
    if raw.value.is_empty() {
        let message = "no window is named: write some, like [10m, 1h], or leave windows out";
        return Err(Invalid::new(&raw, message));
    }
    let mut windows = Vec::new();
    for window in raw.value {
        if window.value < interval {
            let message = format!(
                "window {} is shorter than the interval {interval}, so that rows between two polls \
                 would be in none: make it longer, or set a shorter interval",
                window.value
            );
            return Err(Invalid::new(&window, message));
        }
        if windows.contains(&window.value) {
            let message = format!("window {} stands here twice: keep one", window.value);
            return Err(Invalid::new(&window, message));
        }
        windows.push(window.value);
    }
    Ok(windows)
}

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
static FUTURE_ROWS: Family = Family::gauge(
    "dup_future_rows",
    &["source", "database", "table"],
    "Rows dated after the server's now, which are in no window, as of the last poll.",
);

/// Every family of this check.
pub const FAMILIES: &[&Family] = &[
    &ROWS,
    &KEYS,
    &FACTOR,
    &DUPLICATED_KEYS,
    &NULL_KEY_ROWS,
    &FUTURE_ROWS,
];

// ---- The question ----

/// How rows are dated, by the type of the time column.
struct Clock {
    /// The time of a row.
    time: String,
    now: &'static str,
}

impl Clock {
    fn of(config: &Config, shape: &Shape) -> Result<Self, Error> {
        let column = sql::name(&config.time);
        let kind = shape.type_of(&config.time)?;
        let base = base_type(kind);
        match base {
            "DateTime" => Ok(Clock { time: column, now: "now()" }),
            "DateTime64" => Ok(Clock { time: column, now: "now64(6)" }),
            "Date" | "Date32" => match config.windows.iter().find(|window| **window < DAY) {
                // A DateTime would wrap around outside of 1970 to 2106.
                None if base == "Date32" => Ok(Clock {
                    time: format!("toDateTime64({column}, 0)"),
                    now: "now64(6)",
                }),
                None => Ok(Clock { time: format!("toDateTime({column})"), now: "now()" }),
                Some(window) => {
                    let message = format!(
                        "column {} is a {base}, which can't tell what lies in a window of {window}: \
                         use windows of whole days, or a DateTime column",
                        config.time
                    );
                    Err(Error::new(Reason::Unsupported, message))
                }
            },
            _ => {
                let message = format!(
                    "column {} is a {kind}, which dates no row: use a Date, DateTime or DateTime64 \
                     column",
                    config.time
                );
                Err(Error::new(Reason::Unsupported, message))
            }
        }
    }

    /// Whether a row lies in the half-open window that ends now.
    fn in_window(&self, window: Span) -> String {
        let Clock { time, now } = self;
        format!("{} AND {time} <= {now}", self.since(window))
    }

    fn since(&self, window: Span) -> String {
        let Clock { time, now } = self;
        format!("{time} > {now} - toIntervalSecond({})", window.as_secs())
    }

    fn in_future(&self) -> String {
        format!("{} > {}", self.time, self.now)
    }
}

/// One query for all windows: rows are counted by key and window first, and the keys then.
///
/// `uniqExact(a, b)` would be shorter, and wrong: it drops rows with a NULL.
fn question(config: &Config, shape: &Shape, from: &str) -> Result<String, Error> {
    let clock = Clock::of(config, shape)?;
    let key = shape.key_expressions(&config.key)?;
    let has_null: Vec<String> = key.iter().map(|k| format!("isNull({k})")).collect();
    let mut of_all = Vec::new();
    let mut of_key = Vec::new();
    for (i, window) in config.windows.iter().enumerate() {
        of_all.push(format!(
            "sum(dup_rows_{i}) AS rows_{i}, sum(dup_rows_{i} > 0) AS keys_{i}, \
             sum(dup_rows_{i} > 1) AS duplicated_{i}, \
             sum(if(dup_null, dup_rows_{i}, 0)) AS null_{i}"
        ));
        of_key.push(format!("countIf({}) AS dup_rows_{i}", clock.in_window(*window)));
    }
    let longest = config.windows.iter().max().copied().unwrap_or(DAY);
    Ok(format!(
        "SELECT {of_all}, sum(dup_future) AS future FROM (\
         SELECT {of_key}, countIf({in_future}) AS dup_future, {has_null} AS dup_null \
         FROM {from} WHERE {since} GROUP BY {key})",
        of_all = of_all.join(", "),
        of_key = of_key.join(", "),
        in_future = clock.in_future(),
        has_null = has_null.join(" OR "),
        since = clock.since(longest),
        key = key.join(", "),
    ))
}

// ---- The answer ----

fn samples(source: &str, config: &Config, row: &Row) -> Result<Vec<Sample>, Error> {
    let mut samples = Vec::new();
    for (i, window) in config.windows.iter().enumerate() {
        let window = window.to_string();
        let labels = [source, &config.database, &config.table, &window];
        let rows = row.count(&format!("rows_{i}"))?;
        let keys = row.count(&format!("keys_{i}"))?;
        let duplicated = row.count(&format!("duplicated_{i}"))?;
        let null = row.count(&format!("null_{i}"))?;
        let sane = duplicated <= keys && keys <= rows && null <= rows && (keys > 0) == (rows > 0);
        if !sane {
            let message = format!("{rows} rows of {keys} keys, {duplicated} of them twice, can't be");
            return Err(Error::new(Reason::Protocol, message));
        }
        samples.push(ROWS.sample(&labels, rows as f64));
        samples.push(KEYS.sample(&labels, keys as f64));
        samples.push(DUPLICATED_KEYS.sample(&labels, duplicated as f64));
        samples.push(NULL_KEY_ROWS.sample(&labels, null as f64));
        if keys > 0 {
            samples.push(FACTOR.sample(&labels, rows as f64 / keys as f64));
        }
    }
    let labels = [source, &config.database, &config.table];
    samples.push(FUTURE_ROWS.sample(&labels, row.count("future")? as f64));
    Ok(samples)
}

// ---- The check ----

struct Table {
    config: Config,
    clickhouse: Arc<ClickHouse>,
}

/// One check for each configured table.
pub fn plan(config: &crate::config::Config, sources: &Sources) -> Vec<Planned> {
    sources.plan_clickhouse(config, |source| &source.tables, |config, clickhouse| Planned {
        source: clickhouse.health().name.clone(),
        name: format!("table:{}.{}", config.database, config.table),
        timing: config.timing,
        reasons: REASONS,
        check: Box::new(Table { config, clickhouse }),
    })
}

#[async_trait::async_trait]
impl Check for Table {
    async fn poll(&mut self, deadline: Instant) -> Result<Report, Error> {
        let Table { config, clickhouse } = self;
        let shape = clickhouse
            .shape(&config.database, &config.table, deadline)
            .await?;
        shape.must_be_readable()?;
        if !config.force {
            shape.must_hold_plain_rows()?;
        }
        let question = question(config, &shape, &clickhouse.from(&shape)?)?;
        let row = clickhouse.row(&question, deadline).await?;
        let samples = samples(&clickhouse.health().name, config, &row)?;
        Ok(Report::of("table", samples))
    }
}
