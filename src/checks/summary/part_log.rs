//! What `system.part_log` says was written to a table: rows by period, and how far the log reaches
//! back.

use std::sync::Arc;

use tokio::time::Instant;

use super::period::Days;
use crate::checks::part_log::log;
use crate::error::Error;
use crate::sources::clickhouse::{ClickHouse, Shape, sql};

/// What the log says of one period.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Written {
    pub rows: u64,
    /// Share of the period, so far as it has elapsed, that the log remembers.
    pub coverage: f64,
}

impl Written {
    /// Summary total per written row, where the log covers enough and there are rows.
    pub fn ratio(self, total: f64, min_coverage: f64) -> Option<f64> {
        (self.rows > 0 && self.coverage >= min_coverage).then(|| total / self.rows as f64)
    }
}

/// Whether the log shows no row at all in any period that it covers, although the summary counted
/// some there. One such period alone may be a backfill of old days.
pub fn is_blind(written: &[Written], totals: &[f64], min_coverage: f64) -> bool {
    let covered = |w: &Written| w.coverage > 0.0 && w.coverage >= min_coverage;
    let pairs = written.iter().zip(totals).filter(|(w, _)| covered(w));
    let (mut rows, mut counted) = (false, false);
    for (written, total) in pairs {
        rows |= written.rows > 0;
        counted |= *total > 0.0;
    }
    counted && !rows
}

/// Asks the log, on every replica of the cluster where one is set.
///
/// # Errors
/// `no_part_log` when there is no log or no row in it; `unsupported` when the table has no parts;
/// and those of a query.
pub async fn written(
    clickhouse: &Arc<ClickHouse>,
    table: &Shape,
    periods: &[Days],
    deadline: Instant,
) -> Result<Vec<Written>, Error> {
    table.must_have_parts()?;
    let log = log::find(clickhouse, deadline).await?;
    let from = clickhouse.from_every_replica("part_log", deadline).await?;
    let reach = clickhouse.row(&reach_question(&from), deadline).await?;
    if reach.count("entries")? == 0 {
        return Err(log::is_empty());
    }
    let oldest = i64::try_from(reach.count("oldest")?).unwrap_or(i64::MAX);
    let uuids = match log.has_column("table_uuid") {
        true => clickhouse.uuids(table, deadline).await?,
        false => Vec::new(),
    };
    let question = rows_question(table, &uuids, &log, &from, periods);
    let row = clickhouse.row(&question, deadline).await?;
    let written = periods.iter().enumerate().map(|(i, days)| {
        Ok(Written {
            rows: row.count(&format!("rows_{i}"))?,
            coverage: days.coverage(oldest),
        })
    });
    written.collect()
}

/// How far back the log goes: on a cluster, as far as the host that forgets first.
fn reach_question(from: &str) -> String {
    format!(
        "SELECT sum(dup_entries) AS entries, max(dup_oldest) AS oldest FROM (\
         SELECT hostName() AS host, count() AS dup_entries, \
         toUnixTimestamp(min(event_time)) AS dup_oldest FROM {from} GROUP BY host)"
    )
}

/// The rows that new parts of the table held, for each period.
///
/// The event is compared by number, since its name differs between versions; rows of rejected
/// (389) or failed inserts were not stored. A table that has a uuid is known by it alone: it may
/// have had another name, and its name another table.
fn rows_question(
    table: &Shape,
    uuids: &[String],
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
    let is_table = match uuids {
        [] => format!(
            "database = {} AND table = {}",
            sql::string(&table.database),
            sql::string(&table.table)
        ),
        uuids => {
            let uuids: Vec<_> = uuids.iter().map(|uuid| sql::string(uuid)).collect();
            format!("toString(table_uuid) IN ({})", uuids.join(", "))
        }
    };
    let is_insert = log::is_insert(log);
    format!(
        "SELECT {} FROM {from} WHERE event_date >= toDate(toDateTime({since})) - 1 \
         AND toInt8(event_type) = 1 AND error = 0 AND {is_table} AND {is_insert}",
        rows.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const HALF: Written = Written { rows: 100, coverage: 0.5 };

    fn nothing(coverage: f64) -> Written {
        Written { rows: 0, coverage }
    }

    #[test]
    fn a_ratio_needs_rows_and_coverage() {
        assert_eq!(HALF.ratio(200.0, 0.5), Some(2.0));
        assert_eq!(HALF.ratio(200.0, 1.0), None);
        assert_eq!(nothing(1.0).ratio(0.0, 1.0), None);
    }

    #[test]
    fn r06_a_ratio_below_one_is_neither_clamped_nor_hidden() {
        let written = Written { rows: 300, coverage: 1.0 };
        let ratio = written.ratio(44.0, 1.0).unwrap();
        assert!((ratio - 0.147).abs() < 0.0005, "{ratio}");
        assert_eq!(written.ratio(0.0, 1.0), Some(0.0));
    }

    #[test]
    fn a_log_that_covers_the_periods_and_saw_nothing_is_blind() {
        assert!(is_blind(&[nothing(1.0)], &[5.0], 1.0));
        assert!(!is_blind(&[nothing(1.0)], &[0.0], 1.0), "nothing was to be seen");
        assert!(!is_blind(&[nothing(0.0)], &[5.0], 0.0), "the log does not reach back");
        assert!(!is_blind(&[nothing(0.5)], &[5.0], 1.0), "it does not claim to cover enough");
        assert!(!is_blind(&[HALF], &[5.0], 0.0));
    }

    #[test]
    fn a_backfill_of_last_month_leaves_today_its_ratio() {
        let today = Written { rows: 10, coverage: 1.0 };
        assert!(!is_blind(&[today, nothing(1.0)], &[10.0, 5000.0], 1.0));
    }
}
