//! Check of every table of a ClickHouse server, without reading any: what `system.part_log` says was
//! written to it, rejected as a duplicate, lost in a failed insert, and removed again by merges.
//!
//! A poll reads what is new in the log, and the last [`memory::AGAIN`] seconds before that once
//! more, since the log is written late. What it read before is told apart row by row.

pub(super) mod log;
mod memory;
mod question;
mod tables;

use std::any::Any;
use std::collections::BTreeSet;
use std::sync::Arc;

use serde::Deserialize;
use serde_saphyr::Spanned;
use tokio::time::Instant;
use tracing::warn;

use self::memory::{Batch, Counts, Memory, Name};
use self::question::{Questions, Slice};
use self::tables::Lister;
use super::Sources;
use crate::config::values::{Names, Pattern, Span, pattern};
use crate::config::{Defaults, Invalid, OwnTiming, Timing};
use crate::error::{Error, Reason};
use crate::poll::{Check, Planned};
use crate::sample::{Family, Sample};
use crate::snapshot::Report;
use crate::sources::clickhouse::{ClickHouse, REASONS, sql};

const DEFAULT_MAX_TABLES: usize = 5_000;
/// Seconds of the log in one question; more where it has little to say, less where that is too much.
const PIECE: i64 = 180;

// ---- Configuration ----

/// Which tables are watched.
#[derive(Debug, Clone)]
pub struct Config {
    /// Matched against `database.table`.
    pub tables: Names,
    pub max_tables: usize,
    pub timing: Timing,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawConfig {
    include: Option<Vec<Pattern>>,
    exclude: Option<Vec<Pattern>>,
    max_tables: Option<usize>,
    interval: Option<Spanned<Span>>,
    timeout: Option<Spanned<Span>>,
    stale_after: Option<Spanned<Span>>,
}

impl RawConfig {
    /// `None` when nothing is to be watched.
    pub fn validate(self, defaults: &Defaults) -> Result<Option<Config>, Invalid> {
        let only = |text| pattern(text).into_iter().collect();
        let tables = Names {
            include: self.include.unwrap_or_else(|| only(".*")),
            exclude: self.exclude.unwrap_or_else(|| only(r"^system\.")),
        };
        if tables.include.is_empty() {
            return Ok(None);
        }
        let own = OwnTiming {
            interval: self.interval,
            timeout: self.timeout,
            stale_after: self.stale_after,
        };
        Ok(Some(Config {
            tables,
            max_tables: self.max_tables.unwrap_or(DEFAULT_MAX_TABLES),
            timing: defaults.timing(defaults.interval, own)?,
        }))
    }
}

// ---- Families ----

const TABLE: &[&str] = &["source", "database", "table"];

static WRITTEN: Family = Family::counter(
    "dup_table_written_rows_total",
    TABLE,
    "Rows of the parts that inserts made, by system.part_log, since the table was first seen.",
);
static DEDUPLICATED: Family = Family::counter(
    "dup_table_deduplicated_rows_total",
    TABLE,
    "Rows of the blocks that the server rejected as duplicates of earlier ones, by \
     system.part_log, since the table was first seen.",
);
static FAILED: Family = Family::counter(
    "dup_table_failed_rows_total",
    TABLE,
    "Rows of the parts that inserts failed to add, by system.part_log, since the table was first \
     seen.",
);
static HEALED: Family = Family::counter(
    "dup_table_healed_rows_total",
    TABLE,
    "Older copies of a key that merges removed, by system.part_log, since the table was first seen; \
     absent where merges may remove other rows, too.",
);

/// Every family of this check.
pub const FAMILIES: &[&Family] = &[&WRITTEN, &DEDUPLICATED, &FAILED, &HEALED];

fn samples(source: &str, (database, table): &Name, counts: Counts, heals: bool) -> Vec<Sample> {
    let labels = [source, database, table];
    let mut samples = vec![
        WRITTEN.sample(&labels, counts.written as f64),
        DEDUPLICATED.sample(&labels, counts.deduplicated as f64),
        FAILED.sample(&labels, counts.failed as f64),
    ];
    if heals {
        samples.push(HEALED.sample(&labels, counts.healed as f64));
    }
    samples
}

// ---- The check ----

struct PartLog {
    config: Config,
    clickhouse: Arc<ClickHouse>,
    lister: Lister,
    memory: Memory,
    piece: i64,
}

/// One check for each ClickHouse source that does not switch it off.
pub fn plan(config: &crate::config::Config, sources: &Sources) -> Vec<Planned> {
    sources.plan_clickhouse(config, |source| source.part_log.as_slice(), |config, clickhouse| Some(Planned {
        source: clickhouse.health().name.clone(),
        asks: clickhouse.health().name.clone(),
        name: "part_log".into(),
        timing: config.timing,
        reasons: REASONS,
        check: Box::new(PartLog {
            config,
            clickhouse,
            lister: Lister::default(),
            memory: Memory::default(),
            piece: PIECE,
        }),
    }))
}

#[async_trait::async_trait]
impl Check for PartLog {
    async fn poll(&mut self, deadline: Instant) -> Result<Report, Error> {
        let now = now(&self.clickhouse, deadline).await?;
        let log = match log::find(&self.clickhouse, deadline).await {
            Err(error) if error.reason() == Reason::NoPartLog => {
                self.memory.wait_for_log(now);
                return Err(error);
            }
            log => log?,
        };
        let have_uuids = log.has_column("table_uuid");
        let PartLog { config, clickhouse, lister, .. } = self;
        let tables = lister.list(clickhouse, config, have_uuids, deadline).await?;
        self.memory.look_at(tables.listed);
        let replicas = match self.clickhouse.cluster() {
            Some(_) if tables.are_replicated => Some("system.replicas".to_owned()),
            _ => None,
        };
        let look = Look {
            questions: Questions {
                log,
                from: self.clickhouse.from_every_replica("part_log", deadline).await?,
                replicas,
            },
            clickhouse: &self.clickhouse,
            deadline,
        };
        let read = look.read_up_to(now, self.piece, &mut self.memory).await;
        self.judge_size(read.as_ref().err());
        read?;
        let source = self.clickhouse.health();
        let items = self.memory.show().map(|(name, counts, heals)| {
            let item = format!("{}.{}", sql::name(&name.0), sql::name(&name.1));
            (item, Ok(samples(&source.name, name, counts, heals)))
        });
        Ok(Report {
            items: items.collect(),
            skipped: tables.skipped,
            ..Report::default()
        })
    }

    fn take_over(&mut self, before: Box<dyn Any>) {
        // Over another cluster the rows of the log are told apart by other means.
        if let Ok(before) = before.downcast::<PartLog>()
            && before.clickhouse.cluster() == self.clickhouse.cluster()
        {
            self.memory = before.memory;
        }
    }
}

impl PartLog {
    /// Asks for less after a question that was too much, and in the end for none of the second that
    /// is: one burst must not stop the check for good.
    fn judge_size(&mut self, error: Option<&Error>) {
        match error.map(Error::reason) {
            None => self.piece = PIECE,
            Some(Reason::Timeout | Reason::Limit | Reason::Protocol) if self.piece > 1 => {
                self.piece /= 2;
            }
            Some(Reason::Timeout | Reason::Limit | Reason::Protocol) => {
                let source = &self.clickhouse.health().name;
                warn!(source, "a second of system.part_log is too much to read, and is left out");
                self.memory.skip();
            }
            Some(_) => {}
        }
    }
}

async fn now(clickhouse: &Arc<ClickHouse>, deadline: Instant) -> Result<i64, Error> {
    let clock = clickhouse.row("SELECT toUnixTimestamp(now()) AS now", deadline).await?;
    Ok(i64::try_from(clock.count("now")?).unwrap_or(i64::MAX))
}

/// What the questions of one poll share.
struct Look<'a> {
    questions: Questions,
    clickhouse: &'a Arc<ClickHouse>,
    deadline: Instant,
}

impl Look<'_> {
    /// Counts what is new. After a long silence that is read piece by piece, and none of it again
    /// should the time not suffice.
    async fn read_up_to(&self, now: i64, piece: i64, memory: &mut Memory) -> Result<(), Error> {
        const LITTLE: usize = 10_000;
        let mut from = memory.from(now);
        let mut length = piece;
        let mut is_empty = true;
        loop {
            let to = Some(from + length).filter(|to| *to < now);
            let batches = self.read(Slice { from, to }, memory).await?;
            memory.take_in(&batches.known, to.unwrap_or(now));
            is_empty &= batches.are_none;
            let Some(to) = to else { break };
            let entries: usize = batches.known.iter().map(|batch| batch.entries.len()).sum();
            length = if entries < LITTLE { length * 2 } else { length.min(PIECE) };
            from = to;
        }
        if is_empty && self.is_log_empty().await? {
            return Err(log::is_empty());
        }
        Ok(())
    }

    /// Reads a stretch of the log, and what else must be known to judge it.
    async fn read(&self, slice: Slice, memory: &mut Memory) -> Result<Batches, Error> {
        let Look { questions, clickhouse, deadline } = self;
        let question = questions.slice(slice, &memory.databases());
        let rows = clickhouse.rows(&question, *deadline).await;
        let rows = rows.map_err(log::missing_somewhere)?;
        let known = question::batches(&rows, memory, questions.tells_rows_read())?;
        if questions.tells_rows_read() {
            let shrunk = memory.shrunk(&known);
            let deletes = self.tables_with_deletes(&shrunk).await;
            memory.note_deletes(match deletes {
                // Who may not know whether rows were deleted can't tell copies from them.
                Err(error) if is_hidden(error.reason()) => shrunk.into_iter().collect(),
                deletes => deletes?,
            });
        } else {
            for entry in known.iter().flat_map(|batch| &batch.entries) {
                memory.learn_parts([(entry.part, entry.rows)], entry.at);
            }
            let unknown = memory.unknown_sources(&known);
            memory.learn_parts(self.parts(&unknown).await?, slice.to.unwrap_or(slice.from));
        }
        Ok(Batches { known, are_none: rows.is_empty() })
    }

    async fn is_log_empty(&self) -> Result<bool, Error> {
        let question = self.questions.is_empty();
        let row = self.clickhouse.row(&question, self.deadline).await?;
        Ok(row.count("entries")? == 0)
    }

    async fn tables_with_deletes(&self, tables: &BTreeSet<Name>) -> Result<Vec<Name>, Error> {
        if tables.is_empty() {
            return Ok(Vec::new());
        }
        let Look { clickhouse, deadline, .. } = self;
        let shape = clickhouse.shape("system", "parts", *deadline).await?;
        let parts = clickhouse.from_every_replica("parts", *deadline).await?;
        let mutations = clickhouse.from_every_replica("mutations", *deadline).await?;
        let has_marks = shape.has_column("has_lightweight_delete");
        let question = question::deletes(has_marks, &parts, &mutations, tables);
        let rows = clickhouse.rows(&question, *deadline).await?;
        let name = |row: &crate::sources::clickhouse::Row| {
            Ok((row.text("database")?, row.text("table")?))
        };
        rows.iter().map(name).collect()
    }

    async fn parts(&self, tables: &BTreeSet<Name>) -> Result<Vec<(u64, u64)>, Error> {
        if tables.is_empty() {
            return Ok(Vec::new());
        }
        let parts = self.clickhouse.from_every_replica("parts", self.deadline).await?;
        let question = self.questions.parts(&parts, tables);
        let rows = self.clickhouse.rows(&question, self.deadline).await?;
        rows.iter().map(|row| Ok((row.count("part")?, row.count("rows")?))).collect()
    }
}

fn is_hidden(reason: Reason) -> bool {
    matches!(reason, Reason::Authorization | Reason::UnknownTable | Reason::UnknownColumn)
}

/// What a stretch of the log holds.
struct Batches {
    /// Of the tables that are watched.
    known: Vec<Batch>,
    /// Whether it holds nothing, of any table.
    are_none: bool,
}
