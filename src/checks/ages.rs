//! Check of the age at which a table has healed: rows per key, by how old the key's youngest copy is.
//!
//! It reads far more than the windows of a table, so it has an interval and a sample of its own, and
//! fails apart.

use std::any::Any;
use std::sync::Arc;

use serde_saphyr::Spanned;
use tokio::time::Instant;

use super::Sources;
use super::scan::{Sample as KeySample, Scan, Wish};
use super::table::{self, Tables};
use crate::config::values::Span;
use crate::config::{Defaults, Invalid, OwnTiming, Timing};
use crate::error::Error;
use crate::poll::{Check, Planned};
use crate::sample::{Family, Sample};
use crate::snapshot::Report;
use crate::sources::clickhouse::{ClickHouse, REASONS, Row};

const DEFAULT_INTERVAL: Span = Span::seconds(900);
/// Fewer keys say little of a bucket.
const MANY_KEYS: u64 = 1_000;
/// A bucket has healed when at most this share of its keys still has a copy that a merge can remove.
const HEALED: f64 = 0.001;

// ---- Configuration ----

/// The healing curve of one table.
#[derive(Debug, Clone)]
pub struct Config {
    /// Where one bucket ends and the next one begins, in ascending order; the first begins at 0, and
    /// nothing older than the last is read.
    ages: Vec<Span>,
    sample: KeySample,
    timing: Timing,
}

/// What an entry of `tables` says of ages.
pub struct RawConfig {
    pub ages: Option<Spanned<Vec<Span>>>,
    pub interval: Option<Spanned<Span>>,
    pub sample: Option<Spanned<KeySample>>,
}

impl RawConfig {
    pub fn validate(self, defaults: &Defaults, tables: &Tables) -> Result<Option<Config>, Invalid> {
        let Some(ages) = self.ages else {
            const ALONE: &str = "this stands without ages: add ages, like [10m, 1h, 1d]";
            return match (self.interval, self.sample) {
                (Some(interval), _) => Err(Invalid::new(&interval, ALONE)),
                (_, Some(sample)) => Err(Invalid::new(&sample, ALONE)),
                (None, None) => Ok(None),
            };
        };
        if matches!(tables, Tables::Matching(_)) {
            let message = "ages are for one table: give it an entry of its own, with table";
            return Err(Invalid::new(&ages, message));
        }
        let ascending = ages.value.windows(2).all(|pair| pair[0] < pair[1]);
        if ages.value.is_empty() || !ascending {
            let message = "ages must be some spans, each longer than the one before it: write them \
                           like [10m, 20m, 1h]";
            return Err(Invalid::new(&ages, message));
        }
        let own = OwnTiming { interval: self.interval, ..OwnTiming::default() };
        Ok(Some(Config {
            timing: defaults.timing(DEFAULT_INTERVAL, own)?,
            sample: self.sample.map_or(KeySample::Auto, |sample| sample.value),
            ages: ages.value,
        }))
    }
}

// ---- Families ----

const AGE: &[&str] = &["source", "database", "table", "age"];

static ROWS: Family = Family::gauge(
    "dup_age_rows",
    AGE,
    "Rows of the keys whose youngest copy is in the bucket that starts at this age in seconds, as of \
     the last poll.",
);
static KEYS: Family = Family::gauge(
    "dup_age_keys",
    AGE,
    "Distinct keys whose youngest copy is in the bucket that starts at this age in seconds, as of \
     the last poll.",
);
static FACTOR: Family = Family::gauge(
    "dup_age_factor",
    AGE,
    "Rows per key in the bucket that starts at this age in seconds, as of the last poll; absent when \
     there are no keys.",
);
static HEALED_AFTER: Family = Family::gauge(
    "dup_healed_after_seconds",
    &["source", "database", "table"],
    "Age from which on no bucket holds copies that a merge can still remove, as of the last poll; \
     absent when every bucket has healed, or the oldest has not.",
);

/// Every family of this check.
pub const FAMILIES: &[&Family] = &[&ROWS, &KEYS, &FACTOR, &HEALED_AFTER];

// ---- The question ----

/// Counts the copies of each key and dates the youngest of them, and then sums up each bucket.
fn question(scan: &Scan, ages: &[Span]) -> String {
    let clock = &scan.clock;
    let mut of_key = vec![
        "count() AS dup_rows".to_owned(),
        format!("max({}) AS dup_youngest", clock.time),
    ];
    let left = scan.count_left("1");
    of_key.extend(left.iter().map(|left| format!("{left} AS dup_left")));
    let mut of_all = Vec::new();
    for (i, (from, to)) in buckets(ages).enumerate() {
        let within = format!(
            "dup_youngest <= {now} - toIntervalSecond({}) AND dup_youngest > {now} - \
             toIntervalSecond({})",
            from.as_secs(),
            to.as_secs(),
            now = clock.now,
        );
        of_all.push(format!(
            "sum(if({within}, dup_rows, 0)) AS rows_{i}, countIf({within}) AS keys_{i}"
        ));
        of_all.extend(left.iter().map(|_| format!("sum(if({within}, dup_left, 0)) AS left_{i}")));
    }
    format!("SELECT {} FROM {}", of_all.join(", "), scan.by_key(&of_key))
}

/// Start and end of each bucket.
fn buckets(ages: &[Span]) -> impl Iterator<Item = (Span, Span)> {
    let starts = std::iter::once(Span::seconds(0)).chain(ages.iter().copied());
    starts.zip(ages.iter().copied())
}

// ---- The maths ----

/// One bucket, as far as it was read.
#[derive(Debug, Clone, Copy)]
struct Bucket {
    from: Span,
    rows: u64,
    keys: u64,
    /// Rows that stay whatever is merged; `None` when that is not known.
    left: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Verdict {
    /// It holds copies that a merge could remove.
    Sick,
    /// It holds next to none.
    Healed,
    /// It holds next to none, of too few keys to prove anything.
    Unproven,
}

impl Bucket {
    /// `None` when it is not known what a merge can remove.
    fn verdict(&self) -> Option<Verdict> {
        let healable = self.rows - self.left?;
        Some(match healable as f64 <= HEALED * self.keys as f64 {
            false => Verdict::Sick,
            true if self.keys < MANY_KEYS => Verdict::Unproven,
            true => Verdict::Healed,
        })
    }
}

/// The youngest age from which on every bucket has healed, where some younger one has not.
fn healed_after(buckets: &[Bucket]) -> Option<Span> {
    let verdicts: Option<Vec<Verdict>> = buckets.iter().map(Bucket::verdict).collect();
    let verdicts = verdicts?;
    let last = verdicts.iter().rposition(|verdict| *verdict != Verdict::Healed)?;
    let was_sick = verdicts[..=last].contains(&Verdict::Sick);
    buckets.get(last + 1).filter(|_| was_sick).map(|bucket| bucket.from)
}

// ---- The answer ----

fn read(scan: &Scan, ages: &[Span], row: &Row) -> Result<Vec<Bucket>, Error> {
    let buckets = buckets(ages).enumerate().map(|(i, (from, _))| {
        let rows = row.count(&format!("rows_{i}"))?;
        let keys = row.count(&format!("keys_{i}"))?;
        let left = scan.left(row, &format!("left_{i}"), rows, keys)?;
        Ok(Bucket { from, rows, keys, left })
    });
    buckets.collect()
}

fn samples(names: [&str; 3], scan: &Scan, buckets: &[Bucket]) -> Vec<Sample> {
    let mut samples = Vec::new();
    for bucket in buckets {
        let age = bucket.from.as_secs().to_string();
        let labels = [names[0], names[1], names[2], &age];
        samples.push(ROWS.sample(&labels, scan.scaled(bucket.rows)));
        samples.push(KEYS.sample(&labels, scan.scaled(bucket.keys)));
        if bucket.keys > 0 {
            samples.push(FACTOR.sample(&labels, bucket.rows as f64 / bucket.keys as f64));
        }
    }
    let healed_after = healed_after(buckets).map(|age| age.as_secs() as f64);
    samples.extend(healed_after.map(|age| HEALED_AFTER.sample(&names, age)));
    samples
}

// ---- The check ----

struct Ages {
    table: table::Config,
    name: String,
    config: Config,
    clickhouse: Arc<ClickHouse>,
    /// How far ahead of the server's clock rows were dated, in seconds.
    ahead: u64,
}

/// One check for each table that has ages.
pub fn plan(config: &crate::config::Config, sources: &Sources) -> Vec<Planned> {
    let plan = |table: table::Config, clickhouse: Arc<ClickHouse>| {
        let (Some(config), Tables::One(name)) = (table.ages.clone(), table.tables.clone()) else {
            return None;
        };
        Some(Planned {
            source: clickhouse.health().name.clone(),
            asks: clickhouse.health().name.clone(),
            name: format!("ages:{}.{name}", table.database),
            timing: config.timing,
            reasons: REASONS,
            check: Box::new(Ages { table, name, config, clickhouse, ahead: 0 }),
        })
    };
    sources.plan_clickhouse(config, |source| &source.tables, plan)
}

#[async_trait::async_trait]
impl Check for Ages {
    async fn poll(&mut self, deadline: Instant) -> Result<Report, Error> {
        let Ages { table, name, config, clickhouse, ahead } = self;
        let shape = clickhouse.shape(&table.database, name, deadline).await?;
        shape.must_be_readable()?;
        if !table.force {
            shape.must_hold_plain_rows()?;
        }
        let wish = Wish {
            key: &table.key,
            time: &table.time,
            spans: &config.ages,
            sample: config.sample,
            ahead: *ahead,
        };
        let scan = Scan::plan(clickhouse, &shape, &wish, deadline).await?;
        let future = scan.future(clickhouse, deadline).await?;
        *ahead = (*ahead).max(future.ahead);
        let row = clickhouse.row(&question(&scan, &config.ages), deadline).await?;
        let buckets = read(&scan, &config.ages, &row)?;
        let health = clickhouse.health();
        let samples = samples([&health.name, &table.database, name], &scan, &buckets);
        Ok(Report::of("ages", samples))
    }

    fn take_over(&mut self, before: Box<dyn Any>) {
        if let Ok(before) = before.downcast::<Ages>() {
            self.ahead = before.ahead;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bucket(minutes: u64, keys: u64, healable: u64, unhealable: u64) -> Bucket {
        Bucket {
            from: Span::seconds(minutes * 60),
            rows: keys + healable + unhealable,
            keys,
            left: Some(keys + unhealable),
        }
    }

    fn after(buckets: &[Bucket]) -> Option<u64> {
        healed_after(buckets).map(|age| age.as_secs() / 60)
    }

    #[test]
    fn a_table_has_healed_from_the_age_after_the_last_sick_bucket_on() {
        let (sick, well) = (bucket(0, 5_000, 5_000, 0), |m| bucket(m, 5_000, 5, 0));
        assert_eq!(after(&[sick, well(10), well(60)]), Some(10));
        assert_eq!(after(&[sick, well(10), bucket(20, 5_000, 6, 0), well(60)]), Some(60));
    }

    #[test]
    fn nothing_is_said_when_nothing_was_sick_or_the_oldest_still_is() {
        let well = |m| bucket(m, 5_000, 0, 0);
        assert_eq!(after(&[well(0), well(10)]), None);
        assert_eq!(after(&[well(0), bucket(10, 5_000, 5_000, 0)]), None);
        assert_eq!(after(&[]), None);
    }

    #[test]
    fn copies_that_no_merge_can_remove_do_not_keep_a_bucket_sick() {
        let sick = bucket(0, 5_000, 5_000, 0);
        assert_eq!(after(&[sick, bucket(10, 5_000, 0, 5_000)]), Some(10));
        let unknown = Bucket { left: None, ..bucket(10, 5_000, 0, 0) };
        assert_eq!(after(&[sick, unknown]), None);
    }

    #[test]
    fn a_bucket_of_few_keys_proves_nothing() {
        let sick = bucket(0, 5_000, 5_000, 0);
        assert_eq!(after(&[sick, bucket(10, 999, 0, 0)]), None);
        assert_eq!(after(&[sick, bucket(10, 1_000, 1, 0)]), Some(10));
        // Nor is it sick for that.
        assert_eq!(after(&[bucket(0, 900, 0, 0), bucket(10, 5_000, 0, 0)]), None);
        assert_eq!(after(&[bucket(0, 900, 1, 0), bucket(10, 5_000, 0, 0)]), Some(10));
    }
}
