//! What a table is: its engine, columns and sorting key, as the server shows them. SQL is chosen by
//! this, never by the server's version.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::time::Instant;

use super::{ClickHouse, sql};
use crate::config::values::Key;
use crate::error::{Error, Reason};

/// Engines in which one row is one row. A SELECT from a queue (Kafka, RabbitMQ, …) would consume
/// it, and a collapsing or summing engine's rows mean something else.
const PLAIN_ENGINES: &[&str] = &[
    "MergeTree",
    "ReplacingMergeTree",
    "Distributed",
    "Merge",
    "View",
    "MaterializedView",
    "Buffer",
    "Memory",
    "Log",
    "TinyLog",
    "StripeLog",
];

/// Engines whose rows may stand for several, or for none.
const MERGING_ENGINES: &[&str] = &[
    "SummingMergeTree",
    "AggregatingMergeTree",
    "CollapsingMergeTree",
    "VersionedCollapsingMergeTree",
    "CoalescingMergeTree",
    "GraphiteMergeTree",
];

/// One table, as it is now.
#[derive(Debug)]
pub struct Shape {
    pub database: String,
    pub table: String,
    /// Without `Replicated` or `Shared` in front.
    pub engine: String,
    /// The column by whose value a replacing engine chooses the copy that it keeps.
    pub version: Option<String>,
    sorting_key: String,
    /// Whether the cluster shows each row once for each of several replicas.
    copies_are_shards: bool,
    columns: BTreeMap<String, String>,
}

impl ClickHouse {
    /// Looks a table up.
    ///
    /// # Errors
    /// `unknown_table` when it does not exist or is hidden from us, and those of
    /// [`rows`](Self::rows).
    pub async fn shape(
        self: &Arc<Self>,
        database: &str,
        table: &str,
        deadline: Instant,
    ) -> Result<Shape, Error> {
        let (db, name) = (sql::string(database), sql::string(table));
        let columns = format!(
            "SELECT name, type FROM system.columns WHERE database = {db} AND table = {name}"
        );
        let columns: BTreeMap<String, String> = self
            .rows(&columns, deadline)
            .await?
            .iter()
            .map(|row| Ok((row.text("name")?, row.text("type")?)))
            .collect::<Result<_, Error>>()?;
        if columns.is_empty() {
            let message = format!(
                "table {database}.{table} does not exist, or our user may see none of its columns: \
                 create it, or grant SELECT on it"
            );
            return Err(Error::new(Reason::UnknownTable, message));
        }
        let about = format!(
            "SELECT engine, engine_full, sorting_key FROM system.tables \
             WHERE database = {db} AND name = {name}"
        );
        let about = self.rows(&about, deadline).await?.pop().ok_or_else(|| {
            let message = format!("table {database}.{table} is gone: create it");
            Error::new(Reason::UnknownTable, message)
        })?;
        let engine = about.text("engine")?;
        let copies_are_shards = match self.cluster() {
            Some(cluster) if engine.starts_with("Replicated") => {
                self.reads_rows_twice(cluster, database, table, deadline)
                    .await?
            }
            _ => false,
        };
        Ok(Shape {
            database: database.into(),
            table: table.into(),
            engine: plain_engine(&engine).into(),
            version: version_column(&engine, &about.text("engine_full")?),
            sorting_key: about.text("sorting_key")?,
            copies_are_shards,
            columns,
        })
    }

    /// What tells a table, on each replica of the cluster, from a dropped one of the same name;
    /// empty where the server or the database engine has no such thing.
    ///
    /// # Errors
    /// Those of [`rows`](Self::rows).
    pub async fn uuids(
        self: &Arc<Self>,
        shape: &Shape,
        deadline: Instant,
    ) -> Result<Vec<String>, Error> {
        let from = self.from_every_replica("tables", deadline).await?;
        let query = format!(
            "SELECT DISTINCT toString(uuid) AS id FROM {from} WHERE database = {} AND name = {}",
            sql::string(&shape.database),
            sql::string(&shape.table)
        );
        let rows = self.rows(&query, deadline).await?;
        let ids: Vec<String> = rows
            .iter()
            .map(|row| row.text("id"))
            .collect::<Result<_, _>>()?;
        match ids.iter().all(|id| is_real_uuid(id)) {
            true => Ok(ids),
            false => Ok(Vec::new()),
        }
    }

    /// What stands behind FROM to read the whole table: over the cluster where one is set, unless
    /// the table is itself spread over one.
    ///
    /// # Errors
    /// `unsupported`, when a cluster is set and the table may read other tables: it might read the
    /// whole cluster, once for each shard. Likewise when shards of the cluster hold the same rows.
    pub fn from(&self, shape: &Shape) -> Result<String, Error> {
        let (database, table) = (sql::name(&shape.database), sql::name(&shape.table));
        match self.cluster() {
            Some(cluster) if shape.engine != "Distributed" => {
                if !shape.holds_its_rows() {
                    return Err(shape
                        .unsupported("it can't be read over a cluster: name the table behind it"));
                }
                if shape.copies_are_shards {
                    return Err(shape.unsupported(&format!(
                        "replicas of it are shards of the cluster {cluster}, so that each row would \
                         be counted once for each: name a cluster whose shards hold different rows"
                    )));
                }
                Ok(format!(
                    "cluster({}, {database}, {table})",
                    sql::string(cluster)
                ))
            }
            _ => Ok(format!("{database}.{table}")),
        }
    }

    /// What stands behind FROM to read a table of the database `system`, on one replica of every
    /// shard of the cluster where one is set.
    pub fn every_shard(&self, table: &str) -> String {
        match self.cluster() {
            Some(cluster) => format!("cluster({}, system, {table})", sql::string(cluster)),
            None => format!("system.{table}"),
        }
    }

    /// How many shards the cluster has; one server is one.
    ///
    /// # Errors
    /// Those of [`rows`](Self::rows).
    pub async fn count_shards(self: &Arc<Self>, deadline: Instant) -> Result<u64, Error> {
        let Some(cluster) = self.cluster() else {
            return Ok(1);
        };
        let query = format!(
            "SELECT uniqExact(shard_num) AS shards FROM system.clusters WHERE cluster = {}",
            sql::string(cluster)
        );
        self.row(&query, deadline).await?.count("shards")
    }

    /// What tells in a query over the cluster on which shard a row lies; `None` without a cluster.
    ///
    /// # Errors
    /// Those of [`rows`](Self::rows).
    pub async fn shard(self: &Arc<Self>, deadline: Instant) -> Result<Option<&'static str>, Error> {
        if self.cluster().is_none() {
            return Ok(None);
        }
        // Old servers tell by the name of the host alone, of which each shard has its own.
        match self.knows_function("shardNum", deadline).await? {
            true => Ok(Some("shardNum()")),
            false => Ok(Some("hostName()")),
        }
    }

    async fn knows_function(
        self: &Arc<Self>,
        function: &str,
        deadline: Instant,
    ) -> Result<bool, Error> {
        let query = format!(
            "SELECT count() AS found FROM system.functions WHERE name = {}",
            sql::string(function)
        );
        Ok(self.row(&query, deadline).await?.count("found")? > 0)
    }

    /// What stands behind FROM to read a table of the database `system`, on every replica of the
    /// cluster where one is set.
    ///
    /// # Errors
    /// `unsupported` when the server can't, and those of [`rows`](Self::rows).
    pub async fn from_every_replica(
        self: &Arc<Self>,
        table: &str,
        deadline: Instant,
    ) -> Result<String, Error> {
        let Some(cluster) = self.cluster() else {
            return Ok(format!("system.{table}"));
        };
        let (function, cluster) = self.ask_every_replica(cluster, deadline).await?;
        Ok(format!(
            "{function}({}, system, {table})",
            sql::string(&cluster)
        ))
    }
}

/// A type without its parameters: `DateTime64` of `DateTime64(3, 'UTC')`.
pub fn base_type(kind: &str) -> &str {
    kind.split('(').next().unwrap_or(kind)
}

/// `Replicated` and `Shared` change where rows are, not what they are.
pub fn plain_engine(engine: &str) -> &str {
    let engine = engine.strip_prefix("Replicated").unwrap_or(engine);
    engine.strip_prefix("Shared").unwrap_or(engine)
}

/// The version column of a replacing engine, as its definition names it.
fn version_column(engine: &str, definition: &str) -> Option<String> {
    let arguments = definition.strip_prefix(engine)?.strip_prefix('(')?;
    if plain_engine(engine) != "ReplacingMergeTree" {
        return None;
    }
    let mut arguments = split_expressions(arguments).into_iter();
    // A replicated table names its path and replica first, in quotes.
    let mut rest = arguments
        .by_ref()
        .skip_while(|argument| argument.starts_with('\''));
    let first = rest.next()?;
    // The old way: a date, the key and the granularity, which is a number, come before it.
    let rest: Vec<String> = rest.collect();
    let granularity = rest
        .iter()
        .position(|it| it.chars().all(|c| c.is_ascii_digit()));
    match granularity {
        Some(at) => rest.get(at + 1).cloned(),
        None => Some(first),
    }
    .map(|column| column.trim_matches('`').to_owned())
}

/// Whether this tells a table from others: a table of an old server, or of an Ordinary database,
/// has none, or zeros.
pub fn is_real_uuid(uuid: &str) -> bool {
    uuid.chars().any(|c| !matches!(c, '0' | '-'))
}

impl Shape {
    /// Refuses a table whose rows can't be counted as events.
    ///
    /// # Errors
    /// `unsupported`, naming the engine.
    pub fn must_hold_plain_rows(&self) -> Result<(), Error> {
        if PLAIN_ENGINES.contains(&&*self.engine) {
            return Ok(());
        }
        Err(self.unsupported(
            "a row of it is not one event: watch the table behind it, or set force: true",
        ))
    }

    /// Refuses a table that can't be read without a side effect.
    ///
    /// # Errors
    /// `unsupported`, naming the engine.
    pub fn must_be_readable(&self) -> Result<(), Error> {
        let known = |engines: &[&str]| engines.contains(&&*self.engine);
        if known(PLAIN_ENGINES) || known(MERGING_ENGINES) {
            return Ok(());
        }
        Err(self.unsupported("reading it may consume it: watch the table that it feeds"))
    }

    /// Refuses a table of which `system.part_log` can't know.
    ///
    /// # Errors
    /// `unsupported`, naming the engine.
    pub fn must_have_parts(&self) -> Result<(), Error> {
        match self.engine.ends_with("MergeTree") {
            true => Ok(()),
            false => {
                Err(self
                    .unsupported("system.part_log knows no parts of it: name the table behind it"))
            }
        }
    }

    /// Whether its rows lie in the table itself, and not in others that it reads.
    fn holds_its_rows(&self) -> bool {
        let engine = &*self.engine;
        engine.ends_with("MergeTree") || engine.ends_with("Log") || engine == "Memory"
    }

    fn unsupported(&self, why: &str) -> Error {
        let Shape {
            database,
            table,
            engine,
            ..
        } = self;
        let message = format!("{database}.{table} has the engine {engine}; {why}");
        Error::new(Reason::Unsupported, message)
    }

    /// Whether there is such a column, as far as we may see.
    pub fn has_column(&self, column: &str) -> bool {
        self.columns.contains_key(column)
    }

    /// The type of a column, without `Nullable` and `LowCardinality` around it.
    ///
    /// # Errors
    /// `unknown_column`, when there is none of that name.
    pub fn type_of(&self, column: &str) -> Result<&str, Error> {
        let mut name = self
            .columns
            .get(column)
            .map(String::as_str)
            .ok_or_else(|| {
                let message = format!(
                    "column {column} of {}.{} does not exist, or our user may not see it: mend the \
                 name, or grant SELECT on it",
                    self.database, self.table
                );
                Error::new(Reason::UnknownColumn, message)
            })?;
        for wrapper in ["LowCardinality(", "Nullable("] {
            if let Some(inner) = name.strip_prefix(wrapper).and_then(|n| n.strip_suffix(')')) {
                name = inner;
            }
        }
        Ok(name)
    }

    /// The expressions of a key, ready to stand in a GROUP BY.
    ///
    /// # Errors
    /// `unknown_column`; `unsupported` when the sorting key is asked for and there is none.
    pub fn key_expressions(&self, key: &Key) -> Result<Vec<String>, Error> {
        match key {
            Key::Columns(columns) => columns
                .iter()
                .map(|column| self.type_of(column).map(|_| sql::name(column)))
                .collect(),
            Key::SortingKey => match split_expressions(&self.sorting_key) {
                parts if parts.is_empty() => {
                    Err(self.unsupported("it has no sorting key: name the columns of the key"))
                }
                parts => Ok(parts),
            },
        }
    }
}

impl Shape {
    /// What of the sorting key a key leaves open: rows with the same key may differ in it, and then
    /// never meet in a merge.
    pub fn sorting_beside(&self, key: &[String]) -> Vec<String> {
        let bare = |expression: &str| expression.trim_matches('`').to_owned();
        let key: Vec<String> = key.iter().map(|k| bare(k)).collect();
        let mut beside = split_expressions(&self.sorting_key);
        beside.retain(|expression| !key.contains(&bare(expression)));
        beside
    }
}

/// Splits `a, f(b, c), 'd,e'` at the commas that stand outside of brackets and quotes; up to a
/// bracket that closes none of its own.
pub fn split_expressions(text: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let (mut depth, mut quote, mut escaped) = (0_usize, None, false);
    for c in text.chars() {
        match (quote, c) {
            (Some(q), _) => {
                if c == q && !escaped {
                    quote = None;
                }
                escaped = c == '\\' && !escaped;
            }
            (None, '\'' | '"' | '`') => quote = Some(c),
            (None, '(' | '[') => depth += 1,
            (None, ')' | ']') if depth == 0 => break,
            (None, ')' | ']') => depth -= 1,
            (None, ',') if depth == 0 => {
                parts.push(String::new());
                continue;
            }
            _ => {}
        }
        if let Some(part) = parts.last_mut() {
            part.push(c);
        }
    }
    parts
        .iter()
        .map(|part| part.trim().to_owned())
        .filter(|part| !part.is_empty())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sorting_key_is_split_outside_of_brackets_and_quotes() {
        assert_eq!(split_expressions("a, b"), ["a", "b"]);
        assert_eq!(
            split_expressions(r"toDate(ts, 'UTC'), `odd,\` name`, x['a,b'], concat(y, '\',')"),
            [
                "toDate(ts, 'UTC')",
                r"`odd,\` name`",
                "x['a,b']",
                r"concat(y, '\',')"
            ]
        );
        assert!(split_expressions("").is_empty());
    }

    #[test]
    fn the_version_column_is_found_in_every_way_to_define_an_engine() {
        let version = |definition: &str| {
            let engine = definition.split(['(', ' ']).next().unwrap();
            version_column(engine, definition)
        };
        for (definition, expected) in [
            ("ReplacingMergeTree ORDER BY k", None),
            (
                "ReplacingMergeTree PARTITION BY toYYYYMM(d) ORDER BY k",
                None,
            ),
            ("ReplacingMergeTree(ver) ORDER BY k", Some("ver")),
            (
                "ReplacingMergeTree(`my ver`, is_deleted) ORDER BY k",
                Some("my ver"),
            ),
            (
                "ReplicatedReplacingMergeTree('/a(b)/{shard}', '{replica}') ORDER BY k",
                None,
            ),
            (
                "ReplicatedReplacingMergeTree('/a', 'r', ver) ORDER BY k",
                Some("ver"),
            ),
            (
                "SharedReplacingMergeTree('/a', 'r', ver) ORDER BY f(k)",
                Some("ver"),
            ),
            ("ReplacingMergeTree(d, (k, f(d)), 8192)", None),
            ("ReplacingMergeTree(d, (k, f(d)), 8192, ver)", Some("ver")),
            (
                "ReplicatedReplacingMergeTree('/a', 'r', d, k, 8192, ver)",
                Some("ver"),
            ),
            ("MergeTree ORDER BY k", None),
            ("SummingMergeTree(total) ORDER BY k", None),
        ] {
            assert_eq!(version(definition).as_deref(), expected, "{definition}");
        }
    }

    #[test]
    fn replicated_and_shared_engines_are_judged_by_what_they_replicate() {
        assert_eq!(
            plain_engine("ReplicatedReplacingMergeTree"),
            "ReplacingMergeTree"
        );
        assert_eq!(plain_engine("SharedSummingMergeTree"), "SummingMergeTree");
        assert_eq!(plain_engine("MergeTree"), "MergeTree");
    }

    #[test]
    fn a_table_without_a_uuid_has_none_rather_than_zeros() {
        assert!(!is_real_uuid("00000000-0000-0000-0000-000000000000"));
        assert!(!is_real_uuid(""));
        assert!(is_real_uuid("61f0c404-5cb3-11e7-907b-a6006ad3dba0"));
    }
}
