//! Which tables there are, and whose merges remove nothing but older copies of a key.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tokio::time::Instant;

use super::Config;
use super::memory::{Listed, Name};
use crate::error::Error;
use crate::sources::clickhouse::{
    ClickHouse, is_real_uuid, plain_engine, replacing_columns, sql,
};

/// The tables of a source that have parts and are asked for.
pub struct Tables {
    pub listed: Vec<Listed>,
    /// How many `max_tables` left out.
    pub skipped: usize,
    pub are_replicated: bool,
}

/// What an engine was found to do, and for which definition of the table.
type Verdicts = BTreeMap<Name, (BTreeSet<String>, bool)>;

/// Lists tables. To look at how a table is defined costs the server much more than to list it, so
/// that is done once, and again when its definition has changed.
#[derive(Default)]
pub struct Lister {
    verdicts: Verdicts,
}

/// One table, on every replica that has it.
#[derive(Default)]
struct Found {
    ids: BTreeSet<String>,
    engines: BTreeSet<String>,
    /// What changes with its definition.
    stamps: BTreeSet<String>,
}

impl Lister {
    /// # Errors
    /// Those of a query.
    pub async fn list(
        &mut self,
        clickhouse: &Arc<ClickHouse>,
        config: &Config,
        have_uuids: bool,
        deadline: Instant,
    ) -> Result<Tables, Error> {
        let from = clickhouse.from_every_replica("tables", deadline).await?;
        let rows = clickhouse.rows(&list_question(&from, have_uuids), deadline).await?;
        let mut found: BTreeMap<Name, Found> = BTreeMap::new();
        for row in rows {
            let name = (row.text("database")?, row.text("name")?);
            let is_wanted = config.tables.is_match(&format!("{}.{}", name.0, name.1));
            if !is_wanted || name.0.is_empty() {
                continue;
            }
            let table = found.entry(name).or_default();
            let id = row.text("id")?;
            table.stamps.insert(format!("{id} {}", row.text("changed")?));
            table.ids.extend(Some(id).filter(|id| is_real_uuid(id)));
            table.engines.insert(row.text("engine")?);
        }
        let skipped = found.len().saturating_sub(config.max_tables);
        let found: BTreeMap<_, _> = found.into_iter().take(config.max_tables).collect();
        self.judge(clickhouse, &from, &found, deadline).await?;
        // One replica logs its own inserts, but merges what was inserted through any of them.
        let sees_all = clickhouse.cluster().is_some();
        let replaces = |name, table: &Found| {
            let is_alone = table.engines.iter().all(|engine| plain_engine(engine) == engine);
            let verdict = self.verdicts.get(name).is_some_and(|(_, replaces)| *replaces);
            verdict && (sees_all || is_alone)
        };
        let mut engines = found.values().flat_map(|table| &table.engines);
        Ok(Tables {
            are_replicated: engines.any(|engine| engine.starts_with("Replicated")),
            listed: (found.iter())
                .map(|(name, table)| Listed {
                    name: name.clone(),
                    ids: table.ids.clone(),
                    replaces: replaces(name, table),
                })
                .collect(),
            skipped,
        })
    }

    /// Judges the tables whose definition is not known.
    async fn judge(
        &mut self,
        clickhouse: &Arc<ClickHouse>,
        from: &str,
        found: &BTreeMap<Name, Found>,
        deadline: Instant,
    ) -> Result<(), Error> {
        self.verdicts.retain(|name, (stamps, _)| {
            found.get(name).is_some_and(|table| table.stamps == *stamps)
        });
        let may_replace = |table: &Found| table.engines.iter().any(|e| is_replacing(e));
        let is_unknown = |(name, table): &(&Name, &Found)| {
            may_replace(table) && !self.verdicts.contains_key(*name)
        };
        let unknown: Vec<_> = found.iter().filter(is_unknown).collect();
        if unknown.is_empty() {
            return Ok(());
        }
        let names = unknown.iter().map(|(name, _)| *name);
        let question = definition_question(from, names);
        let mut replaces: BTreeMap<Name, bool> = BTreeMap::new();
        for row in clickhouse.rows(&question, deadline).await? {
            let name = (row.text("database")?, row.text("name")?);
            let does = replaces_alone(&row.text("engine")?, &row.text("engine_full")?);
            replaces.entry(name).and_modify(|all| *all &= does).or_insert(does);
        }
        for (name, table) in unknown {
            let does = replaces.get(name).copied().unwrap_or(false);
            self.verdicts.insert(name.clone(), (table.stamps.clone(), does));
        }
        Ok(())
    }
}

fn list_question(from: &str, have_uuids: bool) -> String {
    let id = if have_uuids { "toString(uuid)" } else { "''" };
    format!(
        "SELECT database, name, engine, {id} AS id, toString(metadata_modification_time) AS changed \
         FROM {from} WHERE engine LIKE '%MergeTree'"
    )
}

fn definition_question<'a>(from: &str, names: impl Iterator<Item = &'a Name> + Clone) -> String {
    let is_named = is_any_of("name", names);
    format!(
        "SELECT database, name, engine, engine_full FROM {from} \
         WHERE engine LIKE '%ReplacingMergeTree' AND {is_named}"
    )
}

/// SQL: whether a row is about one of these tables; the column of their names is given. Not to name
/// many is cheaper, and gives more than is needed.
pub fn is_any_of<'a>(column: &str, names: impl Iterator<Item = &'a Name> + Clone) -> String {
    const MANY: usize = 50;
    if names.clone().nth(MANY).is_some() {
        return "1".into();
    }
    let pair = |(database, table): &Name| {
        format!("({}, {})", sql::string(database), sql::string(table))
    };
    let pairs: Vec<_> = names.map(pair).collect();
    format!("(database, {column}) IN ({})", pairs.join(", "))
}

fn is_replacing(engine: &str) -> bool {
    plain_engine(engine) == "ReplacingMergeTree"
}

/// Whether all that a merge removes are older copies of a key: no rows that have expired (TTL), and
/// none that are marked as deleted. In doubt it is not.
fn replaces_alone(engine: &str, definition: &str) -> bool {
    let has_deleted_marks = replacing_columns(engine, definition).len() > 1;
    is_replacing(engine) && !definition.contains(" TTL ") && !has_deleted_marks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_engine_that_only_replaces_is_told_by_its_definition() {
        for (definition, alone) in [
            ("ReplacingMergeTree ORDER BY k SETTINGS index_granularity = 8192", true),
            ("ReplacingMergeTree(ver) PARTITION BY toYYYYMM(d) ORDER BY (a, b)", true),
            ("ReplacingMergeTree(ver, gone) ORDER BY k", false),
            ("ReplacingMergeTree ORDER BY k TTL d + toIntervalDay(1)", false),
            ("ReplicatedReplacingMergeTree('/a', '{replica}', ver, gone) ORDER BY k", false),
            ("MergeTree ORDER BY k", false),
            ("SummingMergeTree ORDER BY k", false),
        ] {
            let engine = definition.split(['(', ' ']).next().unwrap();
            assert_eq!(replaces_alone(engine, definition), alone, "{definition}");
        }
    }
}
