//! Several tables of one database under one entry of the configuration: which they are.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use serde_saphyr::Spanned;
use tokio::time::Instant;

use super::{Config, Tables};
use crate::config::values::{Name, Pattern, Span};
use crate::config::{Invalid, Timing};
use crate::error::{Error, Reason};
use crate::sources::clickhouse::{ClickHouse, plain_engine, sql};

const DEFAULT_ENGINES: [&str; 1] = ["ReplacingMergeTree"];
const DEFAULT_MAX_TABLES: usize = 100;

/// Tables by a pattern of their names, and by their engines.
#[derive(Debug, Clone)]
pub struct Matching {
    pub pattern: Pattern,
    /// Without `Replicated` or `Shared` in front.
    engines: Vec<String>,
    max_tables: usize,
    /// What other entries of the same database watch.
    elsewhere: Vec<Tables>,
}

/// What an entry says beside `table`.
pub struct RawMatching {
    pub pattern: Option<Spanned<Pattern>>,
    pub engines: Option<Spanned<Vec<Name>>>,
    pub max_tables: Option<Spanned<usize>>,
}

impl RawMatching {
    /// Refuses what makes no sense for one table.
    pub fn must_be_absent(&self) -> Result<(), Invalid> {
        let message = "match, engines and max_tables are for several tables: take them out, or take \
                       table out";
        let given = [
            self.pattern.as_ref().map(|it| Invalid::new(it, message)),
            self.engines.as_ref().map(|it| Invalid::new(it, message)),
            self.max_tables.as_ref().map(|it| Invalid::new(it, message)),
        ];
        given.into_iter().flatten().next().map_or(Ok(()), Err)
    }

    /// `at` is where an entry without any table is to be blamed.
    pub fn validate<T>(self, at: &Spanned<T>) -> Result<Matching, Invalid> {
        let Some(pattern) = self.pattern else {
            let message = "no table is named: write table, or match with a pattern of names";
            return Err(Invalid::new(at, message));
        };
        let engines = match self.engines {
            None => DEFAULT_ENGINES.map(str::to_owned).into(),
            Some(engines) if engines.value.is_empty() => {
                let message = "no engine is named: write some, like [ReplacingMergeTree], or leave \
                               engines out";
                return Err(Invalid::new(&engines, message));
            }
            Some(engines) => {
                let names = engines.value.iter();
                names.map(|engine| plain_engine(&engine.0).to_owned()).collect()
            }
        };
        Ok(Matching {
            pattern: pattern.value,
            engines,
            max_tables: self.max_tables.map_or(DEFAULT_MAX_TABLES, |max| max.value),
            elsewhere: Vec::new(),
        })
    }
}

/// Leaves to each pattern what no entry of its own, and no pattern before it, watches.
pub fn tell_apart(configs: &mut [Config]) {
    for i in 0..configs.len() {
        let database = configs[i].database.clone();
        let others = configs.iter().enumerate().filter(|(j, other)| {
            let first = *j < i || matches!(other.tables, Tables::One(_));
            other.database == database && first
        });
        let others: Vec<_> = others.map(|(_, other)| other.tables.clone()).collect();
        if let Tables::Matching(matching) = &mut configs[i].tables {
            matching.elsewhere = others;
        }
    }
}

impl Tables {
    fn has(&self, table: &str, engine: &str) -> bool {
        match self {
            Tables::One(name) => name == table,
            Tables::Matching(matching) => matching.has(table, engine),
        }
    }
}

/// The tables of a moment.
pub struct Found {
    pub tables: BTreeSet<String>,
    /// How many more there are than may be watched.
    pub skipped: usize,
}

/// Tables are begun in the first half of the interval, so that other checks have their turn, too.
pub fn starts_within(timing: Timing) -> Duration {
    timing.interval.0 / 2
}

/// How long a poll of all may take: the last one that is begun has its own time, and there is a
/// little for the list of them.
pub fn timing_of_all(of_one: Timing) -> Timing {
    let timeout = starts_within(of_one) + of_one.timeout.0 * 2;
    Timing { timeout: Span(timeout), ..of_one }
}

impl Matching {
    fn has(&self, table: &str, engine: &str) -> bool {
        self.pattern.is_match(table) && self.engines.iter().any(|known| known == engine)
    }

    /// The tables that there are now.
    ///
    /// # Errors
    /// `unknown_table`, when there is none, and those of a query.
    pub async fn find(
        &self,
        clickhouse: &Arc<ClickHouse>,
        database: &str,
        deadline: Instant,
    ) -> Result<Found, Error> {
        let query = format!(
            "SELECT name, engine FROM system.tables WHERE database = {} ORDER BY name",
            sql::string(database)
        );
        let mut tables = BTreeSet::new();
        for row in clickhouse.rows(&query, deadline).await? {
            let (table, engine) = (row.text("name")?, row.text("engine")?);
            let engine = plain_engine(&engine);
            let watched = self.elsewhere.iter().any(|other| other.has(&table, engine));
            if self.has(&table, engine) && !watched {
                tables.insert(table);
            }
        }
        if tables.is_empty() {
            let message = format!(
                "no table of database {database} matches {} and has the engine {}: mend match or \
                 engines, or grant SELECT",
                self.pattern.0,
                self.engines.join(" or ")
            );
            return Err(Error::new(Reason::UnknownTable, message));
        }
        let skipped = tables.len().saturating_sub(self.max_tables);
        for _ in 0..skipped {
            tables.pop_last();
        }
        Ok(Found { tables, skipped })
    }
}
