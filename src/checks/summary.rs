//! Check of a summary table: does it count events, or the physical rows of a table with duplicates?
//!
//! The damage is total / distinct keys of the raw table. What it counted shows in total / rows that
//! `system.part_log` says were written: 1 = physical rows, 1 / factor = distinct keys.

mod period;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::civil::Date;
use jiff::tz::TimeZone;
use serde::Deserialize;
use serde_saphyr::Spanned;
use tokio::time::Instant;

use self::period::{Days, Period};
use super::Sources;
use crate::config::values::{Key, Name, Span, Text};
use crate::config::{Defaults, Invalid, OwnTiming, Timing};
use crate::error::{Error, Reason};
use crate::poll::{Check, Planned};
use crate::sample::{Family, Sample};
use crate::snapshot::Report;
use crate::sources::clickhouse::{ClickHouse, Shape, sql};

const DEFAULT_INTERVAL: Span = Span::seconds(300);
/// Counting the keys of two months is not cheap.
const DEFAULT_INTERVAL_WITH_KEYS: Span = Span::seconds(3_600);

// ---- Configuration ----

/// One summary to be watched.
#[derive(Debug, Clone)]
pub struct Config {
    pub database: String,
    pub table: String,
    /// The column that holds the counts.
    pub count: String,
    /// The column that holds the day.
    pub day: String,
    pub raw: Raw,
    pub periods: Vec<Period>,
    /// The key to count exactly, where that is asked for.
    pub exact_keys: Option<Key>,
    /// Whose days and months; the server's when absent.
    pub timezone: Option<TimeZone>,
    /// The share of a period that must be covered for its ratios to be shown.
    pub min_coverage: f64,
    pub timing: Timing,
}

/// The table that the summary is made from.
#[derive(Debug, Clone)]
pub struct Raw {
    pub database: String,
    pub table: String,
    /// An SQL expression that gives the day of a row, taken verbatim.
    pub day: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawConfig {
    database: Name,
    table: Spanned<Name>,
    count: Name,
    day: Name,
    raw: Spanned<RawRaw>,
    periods: Option<Spanned<Vec<Period>>>,
    #[serde(default)]
    keys: Keys,
    timezone: Option<Spanned<Text>>,
    min_coverage: Option<Spanned<f64>>,
    interval: Option<Spanned<Span>>,
    timeout: Option<Spanned<Span>>,
    stale_after: Option<Spanned<Span>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawRaw {
    database: Name,
    table: Name,
    key: Option<Key>,
    day: Name,
}

#[derive(Default, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Keys {
    #[default]
    Off,
    Exact,
}

impl RawConfig {
    /// `seen` holds the summaries of the same source that were validated before.
    pub fn validate(
        self,
        defaults: &Defaults,
        seen: &mut BTreeSet<(String, String)>,
    ) -> Result<Config, Invalid> {
        let (database, table) = (self.database.0, self.table.value.0.clone());
        if !seen.insert((database.clone(), table.clone())) {
            let message = format!("summary {database}.{table} stands here twice: keep one");
            return Err(Invalid::new(&self.table, message));
        }
        let exact_keys = match (self.keys, &self.raw.value.key) {
            (Keys::Off, _) => None,
            (Keys::Exact, Some(key)) => Some(key.clone()),
            (Keys::Exact, None) => {
                let message = "keys: exact needs the key of the raw table: add key to raw";
                return Err(Invalid::new(&self.raw, message));
            }
        };
        let own = OwnTiming {
            interval: self.interval,
            timeout: self.timeout,
            stale_after: self.stale_after,
        };
        let interval = match exact_keys {
            Some(_) => DEFAULT_INTERVAL_WITH_KEYS,
            None => DEFAULT_INTERVAL,
        };
        Ok(Config {
            database,
            table,
            count: self.count.0,
            day: self.day.0,
            periods: validate_periods(self.periods)?,
            exact_keys,
            timezone: self.timezone.map_or(Ok(None), validate_timezone)?,
            min_coverage: self.min_coverage.map_or(Ok(1.0), validate_share)?,
            timing: defaults.timing(interval, own)?,
            raw: Raw {
                database: self.raw.value.database.0,
                table: self.raw.value.table.0,
                day: self.raw.value.day.0,
            },
        })
    }
}

fn validate_periods(raw: Option<Spanned<Vec<Period>>>) -> Result<Vec<Period>, Invalid> {
    let Some(raw) = raw else {
        return Ok(Period::ALL.to_vec());
    };
    let distinct: BTreeSet<_> = raw.value.iter().collect();
    if raw.value.is_empty() || distinct.len() < raw.value.len() {
        let message = "periods is empty, or names one twice: write each of today, yesterday, \
                       this_month and last_month at most once, or leave periods out for all";
        return Err(Invalid::new(&raw, message));
    }
    Ok(raw.value)
}

fn validate_timezone(raw: Spanned<Text>) -> Result<Option<TimeZone>, Invalid> {
    match &*raw.value.0 {
        "server" => Ok(None),
        name => TimeZone::get(name).map(Some).map_err(|_| {
            let message =
                format!("`{name}` is no time zone: write server, or a name like Europe/Lisbon");
            Invalid::new(&raw, message)
        }),
    }
}

fn validate_share(raw: Spanned<f64>) -> Result<f64, Invalid> {
    if (0.0..=1.0).contains(&raw.value) {
        return Ok(raw.value);
    }
    Err(Invalid::new(&raw, "min_coverage is a share: write a number from 0 to 1"))
}

// ---- Families ----

const PERIOD: &[&str] = &["source", "database", "table", "period"];

static TOTAL: Family = Family::gauge(
    "dup_summary_total",
    PERIOD,
    "Sum of the summary's count column over the days of the period, as of the last poll.",
);
static PART_LOG_ROWS: Family = Family::gauge(
    "dup_summary_part_log_rows",
    PERIOD,
    "Rows that system.part_log says were written to the raw table in the period, as of the last \
     poll.",
);
static PART_LOG_RATIO: Family = Family::gauge(
    "dup_summary_part_log_ratio",
    PERIOD,
    "Summary total per row written to the raw table, as of the last poll: 1 = it counted physical \
     rows; absent without rows or below min_coverage.",
);
static PART_LOG_COVERAGE: Family = Family::gauge(
    "dup_summary_part_log_coverage_ratio",
    PERIOD,
    "Share of the period, so far as it has elapsed, that system.part_log still remembers, as of \
     the last poll.",
);
static KEYS: Family = Family::gauge(
    "dup_summary_keys",
    PERIOD,
    "Distinct keys of the raw table for the days of the period, as of the last poll; absent where \
     the raw table no longer holds its first day, unless min_coverage allows.",
);
static INFLATION: Family = Family::gauge(
    "dup_summary_inflation_factor",
    PERIOD,
    "Summary total per distinct key of the raw table, as of the last poll: 1 = right, 2 = each \
     event was counted twice.",
);

/// Every family of this check.
pub const FAMILIES: &[&Family] = &[
    &TOTAL,
    &PART_LOG_ROWS,
    &PART_LOG_RATIO,
    &PART_LOG_COVERAGE,
    &KEYS,
    &INFLATION,
];

// ---- The questions ----

/// Whether a day lies between two, the latter excluded; `day` is an SQL expression.
fn in_days(day: &str, first: Date, after: Date) -> String {
    format!("toDate({day}) >= toDate('{first}') AND toDate({day}) < toDate('{after}')")
}

/// The smallest range that holds every period.
fn hull(day: &str, periods: &[Days]) -> String {
    let first = periods.iter().map(|days| days.first).min();
    let after = periods.iter().map(|days| days.after).max();
    match (first, after) {
        (Some(first), Some(after)) => in_days(day, first, after),
        _ => "1".into(),
    }
}

/// The summary's total for each period.
fn total_question(config: &Config, from: &str, periods: &[Days]) -> String {
    let (count, day) = (sql::name(&config.count), sql::name(&config.day));
    let totals = periods.iter().enumerate().map(|(i, days)| {
        let within = in_days(&day, days.first, days.after);
        format!("sum(if({within}, ifNull({count}, 0), 0)) AS total_{i}")
    });
    let totals: Vec<_> = totals.collect();
    let hull = hull(&day, periods);
    format!("SELECT {} FROM {from} WHERE {hull}", totals.join(", "))
}

/// The rows that new parts of the raw table held, for each period.
///
/// The event is compared by number, since its name differs between versions; rows of rejected
/// (389) or failed inserts were not stored. Where a part's profile tells, parts that were attached
/// rather than written are left out.
fn part_log_question(
    raw: &Raw,
    raw_uuids: &[String],
    log: &Shape,
    from: &str,
    periods: &[Days],
) -> String {
    let rows = periods.iter().enumerate().map(|(i, days)| {
        format!(
            "sum(if(event_time >= toDateTime({}) AND event_time < toDateTime({}), rows, 0)) \
             AS rows_{i}",
            days.from_epoch, days.to_epoch
        )
    });
    let rows: Vec<_> = rows.collect();
    let since = periods.iter().map(|days| days.from_epoch).min().unwrap_or(0);
    let mut conditions = vec![
        "toInt8(event_type) = 1".to_owned(),
        "error = 0".to_owned(),
        format!("database = {}", sql::string(&raw.database)),
        format!("table = {}", sql::string(&raw.table)),
        format!("event_date >= toDate(toDateTime({since})) - 1"),
    ];
    if !raw_uuids.is_empty() {
        // A dropped table of the same name is another table.
        let uuids: Vec<_> = raw_uuids.iter().map(|uuid| sql::string(uuid)).collect();
        conditions.push(format!("toString(table_uuid) IN ({})", uuids.join(", ")));
    }
    if log.has_column("ProfileEvents") {
        conditions.push(
            "(empty(ProfileEvents) OR mapContains(ProfileEvents, 'MergeTreeDataWriterRows'))".into(),
        );
    }
    format!(
        "SELECT {} FROM {from} WHERE {}",
        rows.join(", "),
        conditions.join(" AND ")
    )
}

/// How far back the log goes: on a cluster, as far as the host that forgets first.
fn oldest_question(from: &str) -> String {
    format!(
        "SELECT sum(dup_entries) AS entries, max(dup_oldest) AS oldest FROM (\
         SELECT hostName() AS host, count() AS dup_entries, \
         toUnixTimestamp(min(event_time)) AS dup_oldest FROM {from} GROUP BY host)"
    )
}

/// The distinct keys of the raw table for each period.
fn keys_question(raw: &Raw, key: &[String], from: &str, periods: &[Days]) -> String {
    let (mut of_all, mut of_key) = (Vec::new(), Vec::new());
    for (i, days) in periods.iter().enumerate() {
        of_all.push(format!("sum(dup_in_{i} > 0) AS keys_{i}"));
        of_key.push(format!("countIf({}) AS dup_in_{i}", in_days(&raw.day, days.first, days.after)));
    }
    format!(
        "SELECT {} FROM (SELECT {} FROM {from} WHERE {} GROUP BY {})",
        of_all.join(", "),
        of_key.join(", "),
        hull(&raw.day, periods),
        key.join(", ")
    )
}

fn oldest_day_question(raw: &Raw, from: &str) -> String {
    format!(
        "SELECT count() AS rows, toString(min(toDate({}))) AS oldest FROM {from}",
        raw.day
    )
}

// ---- The maths ----

/// What part_log says of one period.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Written {
    rows: u64,
    /// Share of the period that the log remembers.
    coverage: f64,
}

impl Written {
    /// Summary total per written row, where the log covers enough and there are rows.
    fn ratio(self, total: f64, min_coverage: f64) -> Option<f64> {
        (self.rows > 0 && self.coverage >= min_coverage).then(|| total / self.rows as f64)
    }

    /// The log claims to cover the period and yet saw nothing of what the summary counted.
    fn is_blind(self, total: f64, min_coverage: f64) -> bool {
        let claims = self.coverage > 0.0 && self.coverage >= min_coverage;
        claims && self.rows == 0 && total > 0.0
    }
}

/// Keys, and the inflation where there are any.
fn key_samples(labels: &[&str], keys: u64, total: f64) -> Vec<Sample> {
    let mut samples = vec![KEYS.sample(labels, keys as f64)];
    if keys > 0 {
        samples.push(INFLATION.sample(labels, total / keys as f64));
    }
    samples
}

// ---- The check ----

struct Summary {
    config: Config,
    clickhouse: Arc<ClickHouse>,
}

/// One check for each configured summary.
pub fn plan(config: &crate::config::Config, sources: &Sources) -> Vec<Planned> {
    let mut planned = Vec::new();
    for (source, clickhouse) in config.clickhouse.iter().zip(&sources.clickhouse) {
        for config in &source.summaries {
            planned.push(Planned {
                source: source.name.clone(),
                name: format!("summary:{}.{}", config.database, config.table),
                timing: config.timing,
                check: Box::new(Summary {
                    config: config.clone(),
                    clickhouse: clickhouse.clone(),
                }),
            });
        }
    }
    planned
}

/// What all the questions of one poll share.
struct Look<'a> {
    config: &'a Config,
    clickhouse: &'a Arc<ClickHouse>,
    raw: Shape,
    periods: Vec<Days>,
    deadline: Instant,
}

#[async_trait::async_trait]
impl Check for Summary {
    async fn poll(&mut self, deadline: Instant) -> Result<Report, Error> {
        let Summary { config, clickhouse } = self;
        let summary = clickhouse
            .shape(&config.database, &config.table, deadline)
            .await?;
        summary.must_be_readable()?;
        summary.type_of(&config.count)?;
        summary.type_of(&config.day)?;
        let raw = clickhouse
            .shape(&config.raw.database, &config.raw.table, deadline)
            .await?;
        raw.must_be_readable()?;
        let look = Look {
            periods: periods(config, clickhouse, deadline).await?,
            config,
            clickhouse,
            raw,
            deadline,
        };
        let totals = look.totals(&summary).await?;
        let mut items = BTreeMap::from([(
            "total".to_owned(),
            Ok(look.each(&totals, |labels, total, _| vec![TOTAL.sample(labels, total)])),
        )]);
        items.insert("part_log".into(), look.part_log(&totals).await);
        if let Some(key) = &config.exact_keys {
            items.insert("keys".into(), look.keys(key, &totals).await);
        }
        // Unlike one group of many, a missing part of one summary leaves its user blind.
        let failure = items.values().find_map(|item| item.as_ref().err().cloned());
        Ok(Report {
            items,
            failure,
            skipped: 0,
        })
    }
}

async fn periods(
    config: &Config,
    clickhouse: &Arc<ClickHouse>,
    deadline: Instant,
) -> Result<Vec<Days>, Error> {
    let query = "SELECT toUnixTimestamp(now()) AS now, timezone() AS zone";
    let clock = clickhouse.row(query, deadline).await?;
    let zone = match &config.timezone {
        Some(zone) => zone.clone(),
        None => {
            let name = clock.text("zone")?;
            TimeZone::get(&name).map_err(|_| {
                let message = format!(
                    "the server's time zone {name} is not known here: set timezone to an IANA name"
                );
                Error::new(Reason::Unsupported, message)
            })?
        }
    };
    let now = i64::try_from(clock.count("now")?).unwrap_or(i64::MAX);
    config.periods.iter().map(|p| p.days(now, &zone)).collect()
}

impl Look<'_> {
    async fn totals(&self, summary: &Shape) -> Result<Vec<f64>, Error> {
        let from = self.clickhouse.from(summary);
        let question = total_question(self.config, &from, &self.periods);
        let row = self.clickhouse.row(&question, self.deadline).await?;
        (0..self.periods.len())
            .map(|i| row.number(&format!("total_{i}")))
            .collect()
    }

    async fn part_log(&self, totals: &[f64]) -> Result<Vec<Sample>, Error> {
        let written = self.written().await.map_err(|error| match error.reason() {
            Reason::UnknownTable => no_part_log(
                "is unknown to the server: switch it on with a <part_log> section in config.xml, \
                 and grant SELECT on it",
            ),
            _ => error,
        })?;
        let min = self.config.min_coverage;
        let blind = totals.iter().zip(&written).any(|(t, w)| w.is_blind(*t, min));
        if blind {
            let raw = &self.config.raw;
            return Err(no_part_log(&format!(
                "shows no row written to {}.{}, although the summary counts some: look for a row \
                 policy, or for a raw table that is written elsewhere",
                raw.database, raw.table
            )));
        }
        Ok(self.each(totals, |labels, total, i| {
            let period = written[i];
            let mut samples = vec![
                PART_LOG_ROWS.sample(labels, period.rows as f64),
                PART_LOG_COVERAGE.sample(labels, period.coverage),
            ];
            if let Some(ratio) = period.ratio(total, min) {
                samples.push(PART_LOG_RATIO.sample(labels, ratio));
            }
            samples
        }))
    }

    async fn written(&self) -> Result<Vec<Written>, Error> {
        let log = self
            .clickhouse
            .shape("system", "part_log", self.deadline)
            .await?;
        let from = self.clickhouse.from_every_replica("part_log", self.deadline).await?;
        let about = self
            .clickhouse
            .row(&oldest_question(&from), self.deadline)
            .await?;
        if about.count("entries")? == 0 {
            return Err(no_part_log(
                "shows no row at all: look for a row policy, or wait for the first insert",
            ));
        }
        let oldest = i64::try_from(about.count("oldest")?).unwrap_or(i64::MAX);
        let uuids = match log.has_column("table_uuid") {
            true => self.clickhouse.uuids(&self.raw, self.deadline).await?,
            false => Vec::new(),
        };
        let raw = &self.config.raw;
        let question = part_log_question(raw, &uuids, &log, &from, &self.periods);
        let row = self.clickhouse.row(&question, self.deadline).await?;
        let written = self.periods.iter().enumerate().map(|(i, days)| {
            Ok(Written {
                rows: row.count(&format!("rows_{i}"))?,
                coverage: days.coverage(oldest),
            })
        });
        written.collect()
    }

    async fn keys(&self, key: &Key, totals: &[f64]) -> Result<Vec<Sample>, Error> {
        let raw = &self.config.raw;
        let from = self.clickhouse.from(&self.raw);
        let about = self
            .clickhouse
            .row(&oldest_day_question(raw, &from), self.deadline)
            .await?;
        let oldest: Option<Date> = match about.count("rows")? {
            0 => None,
            _ => Some(about.text("oldest")?.parse().map_err(|_| {
                Error::new(Reason::Protocol, "the oldest day of the raw table is no date")
            })?),
        };
        let key = self.raw.key_expressions(key)?;
        let question = keys_question(raw, &key, &from, &self.periods);
        let row = self.clickhouse.row(&question, self.deadline).await?;
        let counts: Vec<u64> = (0..self.periods.len())
            .map(|i| row.count(&format!("keys_{i}")))
            .collect::<Result<_, _>>()?;
        Ok(self.each(totals, |labels, total, i| {
            let held = oldest.map_or(0.0, |day| self.periods[i].share_held_since(day));
            match held >= self.config.min_coverage {
                true => key_samples(labels, counts[i], total),
                false => Vec::new(),
            }
        }))
    }

    /// The samples of every period; `of` is given labels, total and number of the period.
    fn each(&self, totals: &[f64], of: impl Fn(&[&str], f64, usize) -> Vec<Sample>) -> Vec<Sample> {
        let Config { database, table, periods, .. } = self.config;
        let source = self.clickhouse.health();
        let mut samples = Vec::new();
        for (i, (period, total)) in periods.iter().zip(totals).enumerate() {
            let labels = [&*source.name, database, table, period.as_str()];
            samples.extend(of(&labels, *total, i));
        }
        samples
    }
}

fn no_part_log(what: &str) -> Error {
    Error::new(Reason::NoPartLog, format!("system.part_log {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HALF: Written = Written { rows: 100, coverage: 0.5 };

    #[test]
    fn a_ratio_needs_rows_and_coverage() {
        assert_eq!(HALF.ratio(200.0, 0.5), Some(2.0));
        assert_eq!(HALF.ratio(200.0, 1.0), None);
        let nothing = Written { rows: 0, coverage: 1.0 };
        assert_eq!(nothing.ratio(0.0, 1.0), None);
    }

    #[test]
    fn r06_a_ratio_below_one_is_neither_clamped_nor_hidden() {
        let written = Written { rows: 300, coverage: 1.0 };
        let ratio = written.ratio(44.0, 1.0).unwrap();
        assert!((ratio - 0.147).abs() < 0.0005, "{ratio}");
        assert_eq!(written.ratio(0.0, 1.0), Some(0.0));
    }

    #[test]
    fn a_log_that_covers_the_period_and_saw_nothing_is_blind() {
        let nothing = |coverage| Written { rows: 0, coverage };
        assert!(nothing(1.0).is_blind(5.0, 1.0));
        assert!(!nothing(1.0).is_blind(0.0, 1.0), "nothing was to be seen");
        assert!(!nothing(0.0).is_blind(5.0, 0.0), "the log does not reach back");
        assert!(!HALF.is_blind(5.0, 0.0));
    }

    #[test]
    fn inflation_is_total_per_key_and_absent_without_keys() {
        let labels = ["s", "d", "t", "today"];
        let with = key_samples(&labels, 1000, 2000.0);
        assert_eq!(with[1], INFLATION.sample(&labels, 2.0));
        assert_eq!(key_samples(&labels, 0, 5.0), [KEYS.sample(&labels, 0.0)]);
    }
}
