//! What the log is asked. Names and parts stay on the server, which tells them by hashes.

use std::collections::BTreeSet;

use super::log;
use super::memory::{Batch, Entry, Event, Memory, Name, Read};
use super::tables::is_any_of;
use crate::error::{Error, Reason};
use crate::sources::clickhouse::{Row, Shape, is_real_uuid, sql};

/// Beyond this, a list of databases is no help.
const MANY: usize = 500;

/// A stretch of the log, half-open; up to its end where there is no `to`.
#[derive(Debug, Clone, Copy)]
pub struct Slice {
    pub from: i64,
    pub to: Option<i64>,
}

/// What all questions of a poll share.
pub struct Questions {
    pub log: Shape,
    /// What stands behind FROM to read the log.
    pub from: String,
    /// What stands behind FROM to read which tables are replicas of which, where that matters.
    pub replicas: Option<String>,
}

impl Questions {
    /// Whether the log says how many rows a merge read. Before it gave the reason of a merge, it
    /// gave bytes in their place.
    pub fn tells_rows_read(&self) -> bool {
        self.log.has_column("merge_reason")
    }

    /// Adds the path under which replicas meet. The subquery is answered by each replica itself.
    fn join(&self) -> String {
        self.replicas.as_ref().map_or_else(String::new, |replicas| {
            format!(
                " ANY LEFT JOIN (SELECT database, table, zookeeper_path AS dup_path \
                 FROM {replicas}) AS dup_replicas USING (database, table)"
            )
        })
    }

    fn is_shared(&self) -> &'static str {
        match self.replicas {
            Some(_) => "(ifNull(dup_path, '') != '')",
            None => "0",
        }
    }

    /// SQL: what tells tables whose parts of one name are not the same part.
    fn group(&self) -> String {
        let alone = "cityHash64(hostName(), database, table)";
        match self.replicas {
            Some(_) => format!("if({}, cityHash64(dup_path), {alone})", self.is_shared()),
            None => alone.into(),
        }
    }

    /// SQL: a row of the log, as [`entry`] reads it.
    fn entry(&self) -> String {
        let log = &self.log;
        let is_regular = match self.tells_rows_read() {
            true => "merge_reason = 'RegularMerge'",
            false => "1",
        };
        let event = format!(
            "multiIf(toInt8(event_type) = 1, multiIf(error = 389, 2, error != 0, 3, {}, 1, 0), \
             toInt8(event_type) = 2 AND error = 0 AND {is_regular}, 4, 0)",
            log::is_insert(log)
        );
        let time = match log.has_column("event_time_microseconds") {
            true => "event_time_microseconds",
            false => "event_time",
        };
        let group = self.group();
        let own = format!(
            "cityHash64(hostName(), {group}, part_name, toInt8(event_type), error, {time})"
        );
        let id = match self.replicas {
            Some(_) => format!(
                "if({event} = 4 AND {}, cityHash64({group}, part_name), {own})",
                self.is_shared()
            ),
            None => own,
        };
        let part = |name: &str| format!("cityHash64({group}, {name})");
        let (this, read) = match self.tells_rows_read() {
            true => ("0".into(), "[toUInt64(read_rows)]".into()),
            false => (part("part_name"), format!("arrayMap(p -> {}, merged_from)", part("p"))),
        };
        format!(
            "arrayConcat([toUInt64({id}), toUInt64(toUnixTimestamp(event_time)), \
             toUInt64({event}), toUInt64(rows), toUInt64({this})], {read})"
        )
    }

    /// What the log holds of a slice, by table.
    pub fn slice(&self, slice: Slice, databases: &BTreeSet<&str>) -> String {
        let Slice { from, to } = slice;
        let until = to.map_or_else(String::new, |to| {
            format!(
                " AND event_date <= toDate(toDateTime({to})) + 1 AND event_time < toDateTime({to})"
            )
        });
        let types = match self.tells_rows_read() {
            true => "1, 2",
            false => "1, 2, 3, 5",
        };
        let databases: Vec<_> = databases.iter().map(|name| sql::string(name)).collect();
        let of_databases = match databases.len() {
            0 => " AND 0".into(),
            1..=MANY => format!(" AND database IN ({})", databases.join(", ")),
            _ => String::new(),
        };
        format!(
            "SELECT dup_database AS database, dup_table AS table, dup_id AS id, \
             dup_shared AS shared, groupArray(dup_entry) AS entries FROM (\
             SELECT database AS dup_database, table AS dup_table, {id} AS dup_id, \
             {shared} AS dup_shared, {entry} AS dup_entry FROM {log}{join} \
             WHERE event_date >= toDate(toDateTime({from})) - 1 \
             AND event_time >= toDateTime({from}){until} \
             AND toInt8(event_type) IN ({types}){of_databases}) \
             GROUP BY dup_database, dup_table, dup_id, dup_shared",
            id = match self.log.has_column("table_uuid") {
                true => "toString(table_uuid)",
                false => "''",
            },
            shared = self.is_shared(),
            entry = self.entry(),
            log = self.from,
            join = self.join(),
        )
    }

    /// Whether the log holds anything.
    pub fn is_empty(&self) -> String {
        format!("SELECT count() AS entries FROM (SELECT 1 FROM {} LIMIT 1)", self.from)
    }

    /// How many rows the parts of these tables have, those that were merged away included.
    pub fn parts(&self, parts: &str, tables: &BTreeSet<Name>) -> String {
        format!(
            "SELECT cityHash64({}, name) AS part, rows FROM {parts}{} WHERE {}",
            self.group(),
            self.join(),
            is_any_of("table", tables.iter())
        )
    }
}

/// Which of these tables have rows that were deleted, or changed, in a way that a merge carries out.
pub fn deletes(
    has_marks: bool,
    parts: &str,
    mutations: &str,
    tables: &BTreeSet<Name>,
) -> String {
    let is_named = is_any_of("table", tables.iter());
    let is_marked = match has_marks {
        true => "(has_lightweight_delete OR startsWith(name, 'patch-'))",
        false => "0",
    };
    format!(
        "SELECT DISTINCT database, table FROM (\
         SELECT database, table FROM {parts} WHERE {is_named} AND {is_marked} UNION ALL \
         SELECT database, table FROM {mutations} WHERE {is_named} \
         AND position(command, '_row_exists') > 0)"
    )
}

/// The rows of the log in an answer, by table; those of tables that are not watched are left out.
pub fn batches(rows: &[Row], memory: &Memory, tells_rows_read: bool) -> Result<Vec<Batch>, Error> {
    let mut batches = Vec::new();
    for row in rows {
        let id = row.text("id")?;
        let id = Some(&*id).filter(|id| is_real_uuid(id));
        let logged = (row.text("database")?, row.text("table")?);
        let Some(table) = memory.name_of(id, logged) else {
            continue;
        };
        let entries = row.lists_of_counts("entries")?;
        batches.push(Batch {
            table,
            shared: row.count("shared")? > 0,
            entries: (entries.into_iter())
                .map(|numbers| entry(numbers, tells_rows_read))
                .collect::<Result<_, _>>()?,
        });
    }
    Ok(batches)
}

fn entry(mut numbers: Vec<u64>, tells_rows_read: bool) -> Result<Entry, Error> {
    let nonsense = || Error::new(Reason::Protocol, "an entry of part_log makes no sense");
    if numbers.len() < 5 {
        return Err(nonsense());
    }
    let read = numbers.split_off(5);
    let [id, at, event, rows, part] = numbers[..] else {
        return Err(nonsense());
    };
    Ok(Entry {
        id,
        at: i64::try_from(at).map_err(|_| nonsense())?,
        event: match event {
            1 => Event::Written,
            2 => Event::Deduplicated,
            3 => Event::Failed,
            4 => Event::Merged,
            _ => Event::Other,
        },
        rows,
        part,
        read: match tells_rows_read {
            true => Read::Rows(read.first().copied().unwrap_or(0)),
            false => Read::Parts(read),
        },
    })
}
