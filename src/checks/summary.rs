//! Check of a summary table: does it count events, or the physical rows of a table with duplicates?
//!
//! The damage is total / distinct keys of the raw table. What it counted shows in total / rows that
//! `system.part_log` says were written: 1 = physical rows, 1 / factor = distinct keys.

mod part_log;
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
use super::part_log::log::no_part_log;
use crate::config::values::{Key, Name, Span, Text};
use crate::config::{Defaults, Invalid, OwnTiming, Timing};
use crate::error::{Error, Reason};
use crate::poll::{Check, Planned};
use crate::sample::{Family, Sample};
use crate::snapshot::Report;
use crate::sources::clickhouse::{ClickHouse, REASONS, Row, Shape, base_type, sql};

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
    /// `seen` holds the names of the summaries of the same source that were validated before.
    pub fn validate(
        self,
        defaults: &Defaults,
        seen: &mut BTreeSet<String>,
    ) -> Result<Config, Invalid> {
        let (database, table) = (self.database.0, self.table.value.0.clone());
        if !seen.insert(format!("{database}.{table}")) {
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

/// How SQL tells whether a row lies in a period.
enum Day {
    /// By an expression that gives a date.
    Date(String),
    /// By an expression that gives an instant.
    Instant(String),
}

impl Day {
    fn of_column(shape: &Shape, column: &str) -> Result<Self, Error> {
        let kind = shape.type_of(column)?;
        match base_type(kind) {
            "Date" | "Date32" => Ok(Day::Date(sql::name(column))),
            "DateTime" | "DateTime64" => Ok(Day::Instant(sql::name(column))),
            _ => {
                let message = format!(
                    "column {column} is a {kind}, which names no day: use a Date or DateTime column"
                );
                Err(Error::new(Reason::Unsupported, message))
            }
        }
    }

    fn within(&self, days: &Days) -> String {
        let Days { first, after, from_epoch, to_epoch, .. } = days;
        match self {
            Day::Date(day) => {
                format!("toDate({day}) >= toDate('{first}') AND toDate({day}) < toDate('{after}')")
            }
            Day::Instant(time) => {
                format!("{time} >= toDateTime({from_epoch}) AND {time} < toDateTime({to_epoch})")
            }
        }
    }

    /// Whether a row may lie in any of the periods.
    fn within_any(&self, periods: &[Days]) -> String {
        let hull = periods.iter().cloned().reduce(Days::hull);
        hull.map_or_else(|| "0".into(), |hull| self.within(&hull))
    }
}

/// The summary's total for each period.
fn total_question(count: &str, day: &Day, from: &str, periods: &[Days]) -> String {
    let count = sql::name(count);
    let totals = periods.iter().enumerate().map(|(i, days)| {
        let within = day.within(days);
        format!("sum(if({within}, ifNull({count}, 0), 0)) AS total_{i}")
    });
    let totals: Vec<_> = totals.collect();
    let any = day.within_any(periods);
    format!("SELECT {} FROM {from} WHERE {any}", totals.join(", "))
}

/// The distinct keys of the raw table for each period, and the oldest day that it holds of it.
fn keys_question(raw: &Raw, key: &[String], from: &str, periods: &[Days]) -> String {
    let day = Day::Date(raw.day.clone());
    let (mut of_all, mut of_key) = (Vec::new(), Vec::new());
    for (i, days) in periods.iter().enumerate() {
        let within = day.within(days);
        of_all.push(format!(
            "sum(dup_in_{i} > 0) AS keys_{i}, \
             toString(minIf(dup_day_{i}, dup_in_{i} > 0)) AS oldest_{i}"
        ));
        of_key.push(format!(
            "countIf({within}) AS dup_in_{i}, minIf(toDate({}), {within}) AS dup_day_{i}",
            raw.day
        ));
    }
    format!(
        "SELECT {} FROM (SELECT {} FROM {from} WHERE {} GROUP BY {})",
        of_all.join(", "),
        of_key.join(", "),
        day.within_any(periods),
        key.join(", ")
    )
}

// ---- The maths ----

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
    sources.plan_clickhouse(config, |source| &source.summaries, |config, clickhouse| {
        Some(Planned {
            source: clickhouse.health().name.clone(),
            asks: clickhouse.health().name.clone(),
            name: format!("summary:{}.{}", config.database, config.table),
            timing: config.timing,
            reasons: REASONS,
            check: Box::new(Summary { config, clickhouse }),
        })
    })
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
        let day = Day::of_column(&summary, &config.day)?;
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
        let totals = look.totals(&summary, &day).await?;
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
            ..Report::default()
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
    async fn totals(&self, summary: &Shape, day: &Day) -> Result<Vec<f64>, Error> {
        let from = self.clickhouse.from(summary)?;
        let question = total_question(&self.config.count, day, &from, &self.periods);
        let row = self.clickhouse.row(&question, self.deadline).await?;
        (0..self.periods.len())
            .map(|i| row.number(&format!("total_{i}")))
            .collect()
    }

    async fn part_log(&self, totals: &[f64]) -> Result<Vec<Sample>, Error> {
        let Look { config, clickhouse, raw, periods, deadline } = self;
        let written = part_log::written(clickhouse, raw, periods, *deadline).await?;
        if part_log::is_blind(&written, totals, config.min_coverage) {
            return Err(no_part_log(&format!(
                "shows no row written to {}.{}, although the summary counts some: look for a row \
                 policy, or for a raw table that is written elsewhere",
                raw.database, raw.table
            )));
        }
        Ok(self.each(totals, |labels, total, i| {
            let mut samples = vec![PART_LOG_COVERAGE.sample(labels, written[i].coverage)];
            if written[i].coverage > 0.0 {
                samples.push(PART_LOG_ROWS.sample(labels, written[i].rows as f64));
            }
            let ratio = written[i].ratio(total, config.min_coverage);
            samples.extend(ratio.map(|ratio| PART_LOG_RATIO.sample(labels, ratio)));
            samples
        }))
    }

    async fn keys(&self, key: &Key, totals: &[f64]) -> Result<Vec<Sample>, Error> {
        let from = self.clickhouse.from(&self.raw)?;
        let key = self.raw.key_expressions(key)?;
        let question = keys_question(&self.config.raw, &key, &from, &self.periods);
        let row = self.clickhouse.row(&question, self.deadline).await?;
        let mut keys = Vec::new();
        for (i, days) in self.periods.iter().enumerate() {
            let count = row.count(&format!("keys_{i}"))?;
            let held = match count {
                0 => 0.0,
                _ => days.share_held_since(date(&row, &format!("oldest_{i}"))?),
            };
            keys.push((held >= self.config.min_coverage).then_some(count));
        }
        Ok(self.each(totals, |labels, total, i| {
            keys[i].map_or_else(Vec::new, |count| key_samples(labels, count, total))
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

fn date(row: &Row, column: &str) -> Result<Date, Error> {
    let text = row.text(column)?;
    let unreadable = |_| Error::new(Reason::Protocol, format!("{column} is no date: {text}"));
    text.parse().map_err(unreadable)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inflation_is_total_per_key_and_absent_without_keys() {
        let labels = ["s", "d", "t", "today"];
        let with = key_samples(&labels, 1000, 2000.0);
        assert_eq!(with[1], INFLATION.sample(&labels, 2.0));
        assert_eq!(key_samples(&labels, 0, 5.0), [KEYS.sample(&labels, 0.0)]);
    }
}
