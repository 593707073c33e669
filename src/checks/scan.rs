//! What the checks of a table share: which of its rows are read, how a row is dated, what makes
//! rows copies of one key, and which copies no merge will ever remove.
//!
//! Reading is made cheap in two ways that change no figure but by what each says of itself: parts
//! that were last written before the time in question are left out, and of a huge table one key in
//! so many is read, with all its copies.

use std::sync::Arc;

use serde::de::{self, Deserialize, Deserializer};
use tokio::time::Instant;

use crate::config::values::{Key, Span};
use crate::error::{Error, Reason};
use crate::sources::clickhouse::{ClickHouse, Row, Shape, base_type, sql};

const DAY: Span = Span::seconds(86_400);
/// How far the clock of a client that dates rows may be ahead of the server's, before it was seen
/// to be. A part is left out only if it was last written this long before the time in question.
const SLACK: u64 = 3_600;
/// Rows that `sample: auto` reads at most, about.
const MANY_ROWS: u64 = 10_000_000;

// ---- Configuration ----

/// How many of the keys are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sample {
    /// One key in so many; 1 is all of them.
    Of(u64),
    /// All of them as long as about ten million rows are to be read; beyond, one key in 2, 4, 8, …
    /// so that about as many rows remain.
    Auto,
}

impl<'de> Deserialize<'de> for Sample {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        match text.parse() {
            _ if text == "auto" => Ok(Sample::Auto),
            Ok(of) if (1..=1 << 32).contains(&of) => Ok(Sample::Of(of)),
            _ => Err(de::Error::custom(
                "this is no sample: write 64 for one key in 64, 1 for all of them, or auto",
            )),
        }
    }
}

impl Sample {
    /// One key in how many, when so many rows are to be read.
    fn of(self, rows: Option<u64>) -> u64 {
        match (self, rows) {
            (Sample::Of(of), _) => of,
            (Sample::Auto, Some(rows)) => rows.div_ceil(MANY_ROWS).max(1).next_power_of_two(),
            (Sample::Auto, None) => 1,
        }
    }
}

// ---- Dates ----

/// How rows are dated, by the type of the time column.
pub struct Clock {
    /// The time of a row.
    pub time: String,
    pub now: &'static str,
}

impl Clock {
    /// # Errors
    /// `unknown_column`; `unsupported`, when the column dates no row, or days only and a shorter
    /// one of `spans` is asked for.
    fn of(column: &str, shape: &Shape, spans: &[Span]) -> Result<Self, Error> {
        let name = sql::name(column);
        let kind = shape.type_of(column)?;
        let base = base_type(kind);
        match base {
            "DateTime" => Ok(Clock {
                time: name,
                now: "now()",
            }),
            "DateTime64" => Ok(Clock {
                time: name,
                now: "now64(6)",
            }),
            "Date" | "Date32" => match spans.iter().find(|span| **span < DAY) {
                // A DateTime would wrap around outside of 1970 to 2106.
                None if base == "Date32" => Ok(Clock {
                    time: format!("toDateTime64({name}, 0)"),
                    now: "now64(6)",
                }),
                None => Ok(Clock {
                    time: format!("toDateTime({name})"),
                    now: "now()",
                }),
                Some(span) => {
                    let message = format!(
                        "column {column} is a {base}, which can't tell what lies in a window of \
                         {span}: use windows of whole days, or a DateTime column"
                    );
                    Err(Error::new(Reason::Unsupported, message))
                }
            },
            _ => {
                let message = format!(
                    "column {column} is a {kind}, which dates no row: use a Date, DateTime or \
                     DateTime64 column"
                );
                Err(Error::new(Reason::Unsupported, message))
            }
        }
    }

    /// Whether a row lies in the half-open window that ends now.
    pub fn in_window(&self, window: Span) -> String {
        let Clock { time, now } = self;
        let since = window.as_secs();
        format!("{time} > {now} - toIntervalSecond({since}) AND {time} <= {now}")
    }
}

// ---- Copies ----

/// What is left of the copies of a key after every merge that can come.
enum Left {
    /// Not known: what lies behind the table may merge or not, or rows cancel each other.
    Unknown,
    /// Every copy: the engine never replaces.
    All,
    /// One copy: all of them may meet in one merge.
    One,
    /// One copy for each value of this expression.
    Places(String),
}

/// How a table is read for one poll.
pub struct Scan {
    pub from: String,
    pub clock: Clock,
    longest: Span,
    key: Vec<String>,
    left: Left,
    /// Which parts are read; all of them when absent.
    parts: Option<String>,
    /// One key in so many is read.
    pub sample: u64,
}

/// Rows from the future.
pub struct Future {
    pub rows: u64,
    /// Seconds that the last one of them is ahead; a date more than a day ahead is no clock's.
    pub ahead: u64,
}

/// What a check wants to read.
pub struct Wish<'a> {
    pub key: &'a Key,
    /// The column that dates a row.
    pub time: &'a str,
    /// The spans of time that are told apart; the longest one is read.
    pub spans: &'a [Span],
    pub sample: Sample,
    /// How far ahead of the server's clock rows were seen to be dated, in seconds.
    pub ahead: u64,
}

impl Scan {
    /// Looks at the parts of the table, and decides how to read it.
    ///
    /// # Errors
    /// Those of [`Clock::of`] and of a query; `unsupported`, when the table can't be read so.
    pub async fn plan(
        clickhouse: &Arc<ClickHouse>,
        shape: &Shape,
        wish: &Wish<'_>,
        deadline: Instant,
    ) -> Result<Self, Error> {
        let clock = Clock::of(wish.time, shape, wish.spans)?;
        let key = shape.key_expressions(wish.key)?;
        let longest = wish.spans.iter().max().copied().unwrap_or(DAY);
        let written_since = format!(
            "modification_time >= now() - toIntervalSecond({})",
            longest.as_secs() + SLACK + wish.ahead
        );
        let shard = clickhouse.shard(deadline).await?;
        let parts = Parts::look(clickhouse, shape, shard, &written_since, deadline).await?;
        let is_table = is_table(shape);
        Ok(Scan {
            from: clickhouse.from(shape)?,
            clock,
            longest,
            left: Left::of(shape, &key, shard, parts.as_ref()),
            key,
            // By name alone, and whether active or not: a part that is merged away meanwhile is
            // still read by a query that began before.
            parts: parts.as_ref().map(|_| {
                format!(
                    "_part IN (SELECT name FROM system.parts WHERE {is_table} AND {written_since})"
                )
            }),
            sample: wish.sample.of(parts.map(|parts| parts.rows)),
        })
    }

    /// The rows that are read, grouped by key, with these expressions about each.
    pub fn by_key(&self, of_key: &[String]) -> String {
        let mut rows = vec![self.clock.in_window(self.longest)];
        rows.extend(self.parts.clone());
        if self.sample > 1 {
            rows.push(format!("{} % {} = 0", hash(&self.key), self.sample));
        }
        format!(
            "(SELECT {} FROM {} WHERE {} GROUP BY {})",
            of_key.join(", "),
            self.from,
            rows.join(" AND "),
            self.key.join(", ")
        )
    }

    /// Whether the key of a group has a NULL in it.
    pub fn has_null(&self) -> String {
        let nulls: Vec<_> = self.key.iter().map(|k| format!("isNull({k})")).collect();
        nulls.join(" OR ")
    }

    /// How many of the copies under a condition are left in the end, as an aggregate; `None` when
    /// it need not be asked.
    pub fn count_left(&self, condition: &str) -> Option<String> {
        match &self.left {
            Left::Places(place) => Some(format!("uniqExactIf({place}, {condition})")),
            _ => None,
        }
    }

    /// How many rows of so many keys are left in the end; `column` holds what [`count_left`] gave.
    ///
    /// # Errors
    /// `protocol`, when these counts can't be true together.
    ///
    /// [`count_left`]: Self::count_left
    pub fn left(
        &self,
        row: &Row,
        column: &str,
        rows: u64,
        keys: u64,
    ) -> Result<Option<u64>, Error> {
        let left = match self.left {
            Left::Unknown => None,
            Left::All => Some(rows),
            Left::One => Some(keys),
            Left::Places(_) => Some(row.count(column)?),
        };
        let left_is_sane = left.is_none_or(|left| keys <= left && left <= rows);
        if keys <= rows && (keys > 0) == (rows > 0) && left_is_sane {
            return Ok(left);
        }
        let message = format!("{rows} rows of {keys} keys, of which {left:?} stay, can't be");
        Err(Error::new(Reason::Protocol, message))
    }

    /// What a count of the rows or keys that were read means for all of them.
    pub fn scaled(&self, count: u64) -> f64 {
        count as f64 * self.sample as f64
    }

    /// Counts the rows dated after the server's now, and tells how far ahead they are, up to a day.
    ///
    /// # Errors
    /// Those of a query.
    pub async fn future(
        &self,
        clickhouse: &Arc<ClickHouse>,
        deadline: Instant,
    ) -> Result<Future, Error> {
        let Clock { time, now } = &self.clock;
        let parts = self.parts.as_ref().map(|parts| format!(" AND {parts}"));
        let day = DAY.as_secs();
        let question = format!(
            "SELECT count() AS dup_future, greatest(0, toInt64(ifNull(toUnixTimestamp(\
             maxIf({time}, {time} <= {now} + toIntervalSecond({day}))), 0)) \
             - toInt64(toUnixTimestamp(now()))) AS dup_ahead FROM {} WHERE {time} > {now}{}",
            self.from,
            parts.unwrap_or_default()
        );
        let row = clickhouse.row(&question, deadline).await?;
        Ok(Future {
            rows: row.count("dup_future")?,
            ahead: row.count("dup_ahead")?,
        })
    }
}

impl Left {
    fn of(shape: &Shape, key: &[String], shard: Option<&str>, parts: Option<&Parts>) -> Self {
        match &*shape.engine {
            "ReplacingMergeTree"
            | "SummingMergeTree"
            | "AggregatingMergeTree"
            | "CoalescingMergeTree" => {}
            "MergeTree" | "Memory" | "Log" | "TinyLog" | "StripeLog" => return Left::All,
            _ => return Left::Unknown,
        }
        // Rows meet in a merge when they are in the same partition of the same shard, and are
        // sorted alike.
        let mut place: Vec<String> = shape.sorting_beside(key);
        place.extend(shard.map(str::to_owned));
        // A partition that appears just now is told at the next poll.
        if parts.is_none_or(|parts| parts.partitions > 1) {
            place.push("_partition_id".into());
        }
        match place.is_empty() {
            true => Left::One,
            false => Left::Places(hash(&place)),
        }
    }
}

/// A number out of these expressions, for any type, and the same for the same values. NULL is a
/// value like any other here, for which the hash functions alone give NULL.
fn hash(expressions: &[String]) -> String {
    let each: Vec<_> = expressions
        .iter()
        .map(|e| format!("ifNull(cityHash64({e}), 0)"))
        .collect();
    format!("cityHash64({})", each.join(", "))
}

// ---- Parts ----

fn is_table(shape: &Shape) -> String {
    format!(
        "database = {} AND table = {}",
        sql::string(&shape.database),
        sql::string(&shape.table)
    )
}

/// What `system.parts` shows of the parts that were written lately.
struct Parts {
    rows: u64,
    partitions: u64,
}

impl Parts {
    /// `None` when not all shards show their parts: the log of a server may not have the table, and
    /// shows nothing, without an error, to a user without rights on it.
    async fn look(
        clickhouse: &Arc<ClickHouse>,
        shape: &Shape,
        shard: Option<&str>,
        lately: &str,
        deadline: Instant,
    ) -> Result<Option<Self>, Error> {
        if shape.must_have_parts().is_err() {
            return Ok(None);
        }
        let question = format!(
            "SELECT uniqExact({shard}) AS dup_shards, sum(if(active AND {lately}, rows, 0)) AS dup_rows, \
             uniqExactIf(partition_id, {lately}) AS dup_partitions FROM {from} WHERE {is_table}",
            shard = shard.unwrap_or("1"),
            from = clickhouse.every_shard("parts"),
            is_table = is_table(shape),
        );
        let row = match clickhouse.row(&question, deadline).await {
            Ok(row) => row,
            Err(error) => match error.reason() {
                Reason::UnknownTable | Reason::UnknownColumn | Reason::Authorization => {
                    return Ok(None);
                }
                _ => return Err(error),
            },
        };
        let all_shards = clickhouse.count_shards(deadline).await?;
        let parts = Parts {
            rows: row.count("dup_rows")?,
            partitions: row.count("dup_partitions")?,
        };
        Ok((row.count("dup_shards")? == all_shards).then_some(parts))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn auto_reads_all_of_ten_million_rows_and_about_as_many_of_more() {
        let of = |millions: u64| Sample::Auto.of(Some(millions * 1_000_000));
        assert_eq!([0, 1, 10].map(of), [1, 1, 1]);
        assert_eq!([11, 20, 21, 40, 41].map(of), [2, 2, 4, 4, 8]);
        assert_eq!(of(10_000), 1_024);
        assert_eq!(Sample::Auto.of(None), 1);
        assert_eq!(Sample::Of(64).of(Some(5)), 64);
    }
}
