//! Check of a pipeline as a whole: rows that its table got for each message that its group read.
//!
//! No table is scanned for it. The messages are the advance of committed offsets between two looks
//! of the groups check; the rows are those of the parts that `system.part_log` says were written
//! between the very same instants. Where both sides are steady, what is cut at either end is at most
//! a batch.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::Sources;
use super::part_log::log;
use crate::config::{Config, KafkaLayer, Pipeline, TableLayer};
use crate::error::{Error, Reason};
use crate::history::{Advance, Ring};
use crate::poll::{Check, Planned};
use crate::sample::{Family, Sample};
use crate::snapshot::Report;
use crate::sources::clickhouse::{ClickHouse, REASONS as CLICKHOUSE_REASONS, Row, Shape, sql};

/// The value of the `source` label, since a pipeline is of several sources.
const SOURCE: &str = "pipelines";
/// The log is written late; by then it is complete, whether or not anything was written to it.
const COMPLETE_AFTER: Duration = Duration::from_secs(120);
/// How far before the window an entry is looked for, to see that the log was kept by then.
const BEFORE_WINDOW: Duration = Duration::from_secs(86_400);
const MICROS: i64 = 1_000_000;

// ---- Families ----

const PIPELINE: &[&str] = &["pipeline", "window"];

static INFO: Family = Family::gauge(
    "dup_pipeline_info",
    &["pipeline", "layer", "source", "database", "table", "group", "topic", "queue"],
    "Always 1; tells which layers (kafka, table, summary) the configuration gives a pipeline, by the \
     labels of their figures.",
);
static CONTROL: Family = Family::gauge(
    "dup_control_info",
    &["pipeline", "control"],
    "Always 1; names the pipeline that serves as the control of another.",
);
static COLLAPSES: Family = Family::gauge(
    "dup_pipeline_collapses",
    &["pipeline"],
    "Whether the configuration says that rows collapse before or at the write, so that fewer rows \
     than messages are no loss.",
);
static MESSAGES: Family = Family::gauge(
    "dup_pipeline_messages",
    PIPELINE,
    "Messages that the group read for the first time between two looks, about a window apart, as of \
     the last poll: the advance of each partition's greatest committed offset.",
);
static ROWS: Family = Family::gauge(
    "dup_pipeline_rows",
    PIPELINE,
    "Rows of the parts that inserts made in the table between the same two looks, by \
     system.part_log, as of the last poll.",
);
static ROWS_PER_MESSAGE: Family = Family::gauge(
    "dup_pipeline_rows_per_message",
    PIPELINE,
    "Rows written for each message read, as a share of expected_rows_per_message: 1 is right, 2 is \
     twice; absent when there were no messages.",
);
static BATCHES: Family = Family::gauge(
    "dup_pipeline_batches",
    PIPELINE,
    "Looks between the same two that found committed offsets advanced: with few of them \
     dup_pipeline_rows_per_message is coarse.",
);

/// Every family of this check.
pub const FAMILIES: &[&Family] = &[
    &INFO,
    &CONTROL,
    &COLLAPSES,
    &MESSAGES,
    &ROWS,
    &ROWS_PER_MESSAGE,
    &BATCHES,
];

// ---- What the configuration itself tells ----

/// Which layers each pipeline has, and its control; shown from the start, whatever polls bring.
pub fn facts(config: &Config) -> Vec<Sample> {
    config.pipelines.iter().flat_map(facts_of).collect()
}

fn facts_of(pipeline: &Pipeline) -> Vec<Sample> {
    let name = &*pipeline.name;
    let mut facts = Vec::new();
    if let Some(KafkaLayer { source, group, topics }) = &pipeline.kafka {
        for topic in topics {
            facts.push(INFO.sample(&[name, "kafka", source, "", "", group, topic, ""], 1.0));
        }
    }
    for (layer, table) in [("table", &pipeline.table), ("summary", &pipeline.summary)] {
        if let Some(TableLayer { source, database, table }) = table {
            facts.push(INFO.sample(&[name, layer, source, database, table, "", "", ""], 1.0));
        }
    }
    if let Some(control) = &pipeline.control {
        facts.push(CONTROL.sample(&[name, control], 1.0));
    }
    if pipeline.kafka.is_some() && pipeline.table.is_some() {
        facts.push(COLLAPSES.sample(&[name], f64::from(u8::from(pipeline.collapses))));
    }
    facts
}

// ---- The maths ----

/// The server's clock, as seen from ours.
#[derive(Debug, Clone, Copy)]
struct Clock {
    /// Unix time of the server, in microseconds, at the instant `at`.
    server: i64,
    at: Instant,
}

impl Clock {
    fn to_server(self, instant: Instant) -> i64 {
        match instant >= self.at {
            true => self.server.saturating_add(micros(instant - self.at)),
            false => self.server.saturating_sub(micros(self.at - instant)),
        }
    }

    /// The instant at which the server's clock said so; `None` when that was before our time.
    fn to_ours(self, server: i64) -> Option<Instant> {
        let span = Duration::from_micros(server.abs_diff(self.server));
        match server >= self.server {
            true => self.at.checked_add(span),
            false => self.at.checked_sub(span),
        }
    }
}

/// The stretch of time, by the server's clock, of which the log tells everything.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Told {
    from: i64,
    to: i64,
}

impl Told {
    /// What every host tells since `since`, by its first and last entries from then on. A host may
    /// have had nothing to say of late, or at all.
    fn by(hosts: &[(i64, i64)], since: i64, now: i64) -> Told {
        let first = hosts.iter().map(|(first, _)| *first).max();
        let last = hosts.iter().map(|(_, last)| *last).min();
        let silent = now.saturating_sub(micros(COMPLETE_AFTER));
        Told {
            from: first.unwrap_or(since),
            to: last.map_or(silent, |last| last.max(silent)),
        }
    }
}

fn samples(pipeline: &Pipeline, advance: &Advance, rows: u64) -> Vec<Sample> {
    let window = pipeline.window.to_string();
    let labels = [&*pipeline.name, &window];
    let mut samples = vec![
        MESSAGES.sample(&labels, advance.messages as f64),
        ROWS.sample(&labels, rows as f64),
        BATCHES.sample(&labels, advance.batches as f64),
    ];
    if advance.messages > 0 {
        let expected = advance.messages as f64 * pipeline.expected_rows_per_message;
        samples.push(ROWS_PER_MESSAGE.sample(&labels, rows as f64 / expected));
    }
    samples
}

// ---- The questions ----

/// What is asked of the log.
struct Questions<'a> {
    log: &'a Shape,
    /// What stands behind FROM to read it.
    from: &'a str,
}

impl Questions<'_> {
    /// Whether the log, and so the server, knows fractions of a second.
    fn has_fractions(&self) -> bool {
        self.log.has_column("event_time_microseconds")
    }

    /// SQL: a time of the log in microseconds.
    fn time(&self) -> &'static str {
        match self.has_fractions() {
            true => "toUnixTimestamp64Micro(event_time_microseconds)",
            false => "toUInt64(toUnixTimestamp(event_time)) * 1000000",
        }
    }

    fn clock(&self) -> &'static str {
        match self.has_fractions() {
            true => "SELECT toUnixTimestamp64Micro(now64(6)) AS now",
            false => "SELECT toUInt64(toUnixTimestamp(now())) * 1000000 AS now",
        }
    }

    /// The first and last entry of each host, from a time on.
    fn ends(&self, from: i64) -> String {
        let (time, seconds) = (self.time(), from.div_euclid(MICROS));
        format!(
            "SELECT min({time}) AS first, max({time}) AS last FROM {} \
             WHERE event_date >= toDate(toDateTime({seconds})) - 1 \
             AND event_time >= toDateTime({seconds}) GROUP BY hostName()",
            self.from
        )
    }

    /// Some entry, if there is any.
    fn any(&self) -> String {
        format!("SELECT 1 AS entry FROM {} LIMIT 1", self.from)
    }

    /// Rows that were inserted into a table, from one time up to another.
    fn rows(&self, table: &TableLayer, from: i64, to: i64) -> String {
        let (from_second, to_second) = (from.div_euclid(MICROS), to.div_euclid(MICROS) + 1);
        format!(
            "SELECT sum(rows) AS rows FROM {log} \
             WHERE event_date >= toDate(toDateTime({from_second})) - 1 \
             AND event_date <= toDate(toDateTime({to_second})) + 1 \
             AND event_time >= toDateTime({from_second}) AND event_time <= toDateTime({to_second}) \
             AND {time} >= {from} AND {time} < {to} \
             AND database = {database} AND table = {table} \
             AND toInt8(event_type) = 1 AND error = 0 AND {is_insert}",
            log = self.from,
            time = self.time(),
            database = sql::string(&table.database),
            table = sql::string(&table.table),
            is_insert = log::is_insert(self.log),
        )
    }
}

// ---- The check ----

/// Why its polls may fail.
const REASONS: &[Reason] = &{
    let mut reasons = [Reason::GroupNotFound; CLICKHOUSE_REASONS.len() + 1];
    let (of_clickhouse, _) = reasons.split_at_mut(CLICKHOUSE_REASONS.len());
    of_clickhouse.copy_from_slice(CLICKHOUSE_REASONS);
    reasons
};

struct RowsPerMessage {
    pipeline: Pipeline,
    table: TableLayer,
    ring: Arc<Ring>,
    clickhouse: Arc<ClickHouse>,
    /// How old the newest look may be.
    looks_stale_after: Duration,
}

/// One check for each pipeline with a group and a table.
pub fn plan(config: &Config, sources: &Sources) -> Vec<Planned> {
    let plan = |pipeline: &Pipeline| {
        let table = pipeline.table.clone()?;
        let ring = sources.history.of(&pipeline.name)?;
        let mut clients = sources.clickhouse.iter();
        let clickhouse = clients.find(|client| client.health().name == table.source)?.clone();
        let kafka = config.kafka.iter().find(|source| source.name == ring.layer.source)?;
        Some(Planned {
            source: SOURCE.into(),
            asks: table.source.clone(),
            name: format!("pipeline:{}", pipeline.name),
            timing: pipeline.timing,
            reasons: REASONS,
            check: Box::new(RowsPerMessage {
                pipeline: pipeline.clone(),
                looks_stale_after: kafka.timing.stale_after.0,
                table,
                ring,
                clickhouse,
            }),
        })
    };
    config.pipelines.iter().filter_map(plan).collect()
}

#[async_trait::async_trait]
impl Check for RowsPerMessage {
    async fn poll(&mut self, deadline: Instant) -> Result<Report, Error> {
        if self.ring.is_missing() {
            let KafkaLayer { source, group, .. } = &self.ring.layer;
            let message = format!(
                "{source} has no group {group} with commits that we may see: mend its name, grant \
                 DESCRIBE on it and its topics, or wait for its first commit"
            );
            return Err(Error::new(Reason::GroupNotFound, message));
        }
        let Some((advance, rows)) = self.look(deadline).await? else {
            return Ok(Report::default());
        };
        Ok(Report::of("pipeline", samples(&self.pipeline, &advance, rows)))
    }
}

impl RowsPerMessage {
    /// How far the group came, and the rows that were written meanwhile; `None` while nothing can be
    /// said, since there were too few looks, or too old ones.
    async fn look(&self, deadline: Instant) -> Result<Option<(Advance, u64)>, Error> {
        let log = log::find(&self.clickhouse, deadline).await?;
        let from = self.clickhouse.from_every_replica("part_log", deadline).await?;
        let questions = Questions { log: &log, from: &from };
        let clock = self.clock(&questions, deadline).await?;
        let told = self.told(&questions, clock, deadline).await?;
        let is_fresh = |last: Instant| last.elapsed() < self.looks_stale_after;
        if !self.ring.last().is_some_and(is_fresh) {
            return Ok(None);
        }
        let Some(advance) = clock.to_ours(told.to).and_then(|to| {
            // What the server tells of the time before this computer began is early enough.
            let from = clock.to_ours(told.from);
            self.ring.advance(self.pipeline.window.0, from, to)
        }) else {
            return Ok(None);
        };
        let (from, to) = (clock.to_server(advance.from), clock.to_server(advance.to));
        let question = questions.rows(&self.table, from, to);
        let row = self.clickhouse.row(&question, deadline).await;
        let rows = row.map_err(log::missing_somewhere)?.count("rows")?;
        Ok(Some((advance, rows)))
    }

    async fn clock(&self, questions: &Questions<'_>, deadline: Instant) -> Result<Clock, Error> {
        let asked = Instant::now();
        let row = self.clickhouse.row(questions.clock(), deadline).await?;
        // The answer is as old as half of its way, there and back.
        Ok(Clock { server: time(&row, "now")?, at: asked + asked.elapsed() / 2 })
    }

    /// Which time the log tells everything of, by its entries within reach.
    async fn told(
        &self,
        questions: &Questions<'_>,
        clock: Clock,
        deadline: Instant,
    ) -> Result<Told, Error> {
        let reach = micros(self.pipeline.window.0 + COMPLETE_AFTER + BEFORE_WINDOW);
        let since = clock.server.saturating_sub(reach);
        let ask = async |question: &str| {
            let rows = self.clickhouse.rows(question, deadline).await;
            rows.map_err(log::missing_somewhere)
        };
        let ends = |row: &Row| Ok((time(row, "first")?, time(row, "last")?));
        let hosts = ask(&questions.ends(since)).await?;
        if hosts.is_empty() && ask(&questions.any()).await?.is_empty() {
            return Err(log::is_empty());
        }
        let hosts: Result<Vec<_>, Error> = hosts.iter().map(ends).collect();
        Ok(Told::by(&hosts?, since, clock.server))
    }
}

fn time(row: &Row, column: &str) -> Result<i64, Error> {
    let nonsense = |_| Error::new(Reason::Protocol, "a time of part_log makes no sense");
    i64::try_from(row.count(column)?).map_err(nonsense)
}

fn micros(span: Duration) -> i64 {
    i64::try_from(span.as_micros()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: i64 = MICROS;

    #[test]
    fn the_log_tells_all_from_where_the_last_host_began_to_where_the_slowest_has_flushed() {
        let hosts = [(10 * SECOND, 990 * SECOND), (40 * SECOND, 980 * SECOND)];
        let told = Told::by(&hosts, 0, 1_000 * SECOND);
        assert_eq!(told, Told { from: 40 * SECOND, to: 980 * SECOND });
    }

    #[test]
    fn a_host_that_is_silent_has_nothing_to_tell_but_what_it_may_still_flush() {
        let told = Told::by(&[(10 * SECOND, 20 * SECOND)], 0, 1_000 * SECOND);
        assert_eq!(told, Told { from: 10 * SECOND, to: 880 * SECOND });
        let told = Told::by(&[], 5 * SECOND, 1_000 * SECOND);
        assert_eq!(told, Told { from: 5 * SECOND, to: 880 * SECOND });
    }

    #[test]
    fn clocks_are_turned_into_each_other() {
        let at = Instant::now();
        let clock = Clock { server: 1_000 * SECOND, at };
        for seconds in [-7, 0, 7] {
            let ours = clock.to_ours((1_000 + seconds) * SECOND).unwrap();
            assert_eq!(clock.to_server(ours), (1_000 + seconds) * SECOND);
        }
    }

    fn values(messages: u64, rows: u64, expected: f64) -> Vec<(&'static str, f64)> {
        let pipeline = Pipeline {
            expected_rows_per_message: expected,
            ..Pipeline::for_tests("play", "main", "audit-import", &["playlog"])
        };
        let now = Instant::now();
        let advance = Advance { from: now, to: now, messages, batches: 30 };
        let samples = samples(&pipeline, &advance, rows);
        assert!(samples.iter().all(|s| *s.labels == ["play".into(), "1h".into()]));
        samples.iter().map(|s| (s.family.name, s.value)).collect()
    }

    fn ratio(messages: u64, rows: u64, expected: f64) -> Option<f64> {
        let values = values(messages, rows, expected);
        let found = values.iter().find(|(name, _)| *name == ROWS_PER_MESSAGE.name);
        found.map(|(_, value)| *value)
    }

    #[test]
    fn rows_are_compared_with_what_messages_should_make() {
        assert_eq!(ratio(1_000, 2_000, 1.0), Some(2.0));
        assert_eq!(ratio(1_000, 900, 1.0), Some(0.9));
        assert_eq!(ratio(1_000, 2_500, 2.5), Some(1.0));
    }

    #[test]
    fn without_messages_there_is_no_ratio_and_yet_the_rows_are_shown() {
        let shown = [("dup_pipeline_messages", 0.0), ("dup_pipeline_rows", 7.0)];
        assert_eq!(values(0, 7, 1.0)[..2], shown);
        assert_eq!(ratio(0, 7, 1.0), None);
    }
}
