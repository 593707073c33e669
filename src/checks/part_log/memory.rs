//! What is remembered from poll to poll: which rows of the log were counted, and what they sum up to.
//! Times are the server's, in Unix seconds; no clock of ours has a say.

use std::collections::{BTreeMap, BTreeSet, HashMap};

/// The log is flushed late: so many seconds before the end of the last poll are read again.
pub const AGAIN: i64 = 120;
/// Replicas of one shard merge the same parts, some of them later than others.
const SHARED_MERGES_FOR: i64 = 86_400;
/// How much of a log that was not there is news when it comes: it may have been hidden from us.
const HIDDEN_FOR: i64 = 3_600;
/// How long the rows of a part are remembered, for a merge whose entry names its sources alone.
const PARTS_FOR: i64 = 3_600;
const MAX_PARTS: usize = 200_000;

/// Database and table.
pub type Name = (String, String);

/// A table as the server lists it.
pub struct Listed {
    pub name: Name,
    /// Its uuid on each replica, where there are any.
    pub ids: BTreeSet<String>,
    /// Whether its merges remove nothing but older copies of a key.
    pub replaces: bool,
}

/// What an entry of the log tells.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Event {
    /// A part that is no news of an insert, whose rows a later merge may have read.
    Other,
    Written,
    Deduplicated,
    Failed,
    /// A regular merge.
    Merged,
}

/// What a merge read.
#[derive(Debug, PartialEq)]
pub enum Read {
    Rows(u64),
    /// These parts, by the hash of their names.
    Parts(Vec<u64>),
}

/// One row of the log.
#[derive(Debug)]
pub struct Entry {
    /// The hash of all that tells it from others.
    pub id: u64,
    pub at: i64,
    pub event: Event,
    pub rows: u64,
    /// The hash of the part's name.
    pub part: u64,
    pub read: Read,
}

/// Rows of the log about one table.
pub struct Batch {
    pub table: Name,
    /// Whether the replicas of a shard tell of the same merge, each in an entry with the same id.
    pub shared: bool,
    pub entries: Vec<Entry>,
}

/// Rows of one table since it was first seen.
#[derive(Debug, Default, Clone, Copy, PartialEq)]
pub struct Counts {
    pub written: u64,
    pub deduplicated: u64,
    pub failed: u64,
    pub healed: u64,
}

/// One table since it was first seen.
struct Table {
    ids: BTreeSet<String>,
    replaces: bool,
    /// Whether rows of it were deleted in a way that its merges carry out.
    deletes: bool,
    counts: Counts,
    /// Whether a poll has shown it. The first one shows zeros, so that `increase()` misses nothing
    /// of what was counted by then.
    shown: bool,
}

impl Table {
    fn of(listed: Listed) -> Self {
        Table {
            ids: listed.ids,
            replaces: listed.replaces,
            deletes: false,
            counts: Counts::default(),
            shown: false,
        }
    }

    fn heals(&self) -> bool {
        self.replaces && !self.deletes
    }
}

/// What earlier polls of one source left behind.
pub struct Memory {
    /// Every entry that was counted and is dated from here on is in `seen`.
    told_from: i64,
    /// Until when entries are remembered, by their id.
    seen: HashMap<u64, i64>,
    /// Rows and date of parts, by the hash of their names.
    parts: HashMap<u64, (u64, i64)>,
    tables: BTreeMap<Name, Table>,
    names: HashMap<String, Name>,
}

impl Default for Memory {
    /// Nothing is known, so nothing that is in the log is news.
    fn default() -> Self {
        Memory {
            told_from: i64::MAX,
            seen: HashMap::new(),
            parts: HashMap::new(),
            tables: BTreeMap::new(),
            names: HashMap::new(),
        }
    }
}

impl Memory {
    /// Takes in which tables there are. One that is gone is forgotten; one of the same name and
    /// another uuid is another one.
    pub fn look_at(&mut self, tables: Vec<Listed>) {
        let mut before = std::mem::take(&mut self.tables);
        self.names.clear();
        for listed in tables {
            for id in &listed.ids {
                self.names.insert(id.clone(), listed.name.clone());
            }
            let is_same = |table: &Table| {
                let both_known = !table.ids.is_empty() && !listed.ids.is_empty();
                !both_known || !table.ids.is_disjoint(&listed.ids)
            };
            let name = listed.name.clone();
            let table = match before.remove(&name).filter(is_same) {
                Some(table) => Table {
                    ids: listed.ids,
                    replaces: listed.replaces,
                    ..table
                },
                None => Table::of(listed),
            };
            self.tables.insert(name, table);
        }
    }

    /// The table that a row of the log is about. One with a uuid is known by it alone: it may have
    /// had another name, and its name another table.
    pub fn name_of(&self, id: Option<&str>, logged: Name) -> Option<Name> {
        match id {
            Some(id) => self.names.get(id).cloned(),
            None => self.tables.contains_key(&logged).then_some(logged),
        }
    }

    /// The databases of the tables.
    pub fn databases(&self) -> BTreeSet<&str> {
        self.tables.keys().map(|(database, _)| &**database).collect()
    }

    /// Where to read the log from, when the server's clock says `now`. After a step back of the
    /// clock that is before what is remembered: what lies there can't be told from news.
    pub fn from(&self, now: i64) -> i64 {
        match now >= self.told_from {
            true => self.told_from,
            false => now - AGAIN,
        }
    }

    /// There is no log yet, so what will be in it is news.
    pub fn wait_for_log(&mut self, now: i64) {
        self.told_from = match self.told_from {
            i64::MAX => now - AGAIN,
            before => before.max(now - HIDDEN_FOR),
        };
    }

    /// Gives up the next second of the log, which can't be read.
    pub fn skip(&mut self) {
        self.told_from = self.told_from.saturating_add(1);
    }

    /// Remembers how many rows parts have.
    pub fn learn_parts(&mut self, parts: impl IntoIterator<Item = (u64, u64)>, at: i64) {
        for (part, rows) in parts {
            self.parts.insert(part, (rows, at));
        }
        if self.parts.len() > MAX_PARTS {
            // Some merges will then look as if they had removed fewer rows.
            self.parts.clear();
        }
    }

    /// Tables with a new merge whose sources are not all known.
    pub fn unknown_sources(&self, batches: &[Batch]) -> BTreeSet<Name> {
        let is_unknown = |entry: &Entry| match &entry.read {
            Read::Parts(parts) => !parts.iter().all(|part| self.parts.contains_key(part)),
            Read::Rows(_) => false,
        };
        self.new_merges(batches, is_unknown)
    }

    /// Tables with a new merge that removed rows.
    pub fn shrunk(&self, batches: &[Batch]) -> BTreeSet<Name> {
        self.new_merges(batches, |entry| self.removed(entry) > 0)
    }

    fn new_merges(&self, batches: &[Batch], wanted: impl Fn(&Entry) -> bool) -> BTreeSet<Name> {
        let is_new = |entry: &&Entry| {
            entry.at >= self.told_from && !self.seen.contains_key(&entry.id)
        };
        let heals = |batch: &&Batch| self.tables.get(&batch.table).is_some_and(Table::heals);
        let has_wanted = |batch: &&Batch| {
            let merges = batch.entries.iter().filter(|e| e.event == Event::Merged);
            merges.filter(is_new).any(&wanted)
        };
        let batches = batches.iter().filter(heals).filter(has_wanted);
        batches.map(|batch| batch.table.clone()).collect()
    }

    /// Rows that a merge removed, at least: a source of which nothing is known counts as empty.
    fn removed(&self, merge: &Entry) -> u64 {
        let rows_of = |part| self.parts.get(part).map_or(0, |(rows, _)| *rows);
        let read = match &merge.read {
            Read::Rows(rows) => *rows,
            Read::Parts(parts) => parts.iter().map(rows_of).fold(0, u64::saturating_add),
        };
        read.saturating_sub(merge.rows)
    }

    /// Merges of these tables remove rows that were deleted, too.
    pub fn note_deletes(&mut self, tables: impl IntoIterator<Item = Name>) {
        for name in tables {
            if let Some(table) = self.tables.get_mut(&name) {
                table.deletes = true;
            }
        }
    }

    /// Counts what is new of the log from [`from`](Self::from), or the end of the call before, up
    /// to `to`.
    pub fn take_in(&mut self, batches: &[Batch], to: i64) {
        for batch in batches {
            for entry in &batch.entries {
                let is_shared = batch.shared && entry.event == Event::Merged;
                let until = entry.at + if is_shared { SHARED_MERGES_FOR } else { 0 };
                let is_new = self.seen.insert(entry.id, until).is_none();
                if is_new && entry.at >= self.told_from {
                    self.count(&batch.table, entry);
                }
            }
        }
        let next = to - AGAIN;
        self.told_from = match to < self.told_from {
            // The clock has stepped back behind all that is remembered.
            true => next,
            // A small step: what was forgotten must not be read again.
            false => self.told_from.max(next),
        };
        self.seen.retain(|_, until| *until >= self.told_from);
        self.parts.retain(|_, (_, at)| *at >= to - PARTS_FOR);
    }

    fn count(&mut self, table: &Name, entry: &Entry) {
        let removed = self.removed(entry);
        let Some(table) = self.tables.get_mut(table) else { return };
        let counts = &mut table.counts;
        let (count, rows) = match entry.event {
            Event::Written => (&mut counts.written, entry.rows),
            Event::Deduplicated => (&mut counts.deduplicated, entry.rows),
            Event::Failed => (&mut counts.failed, entry.rows),
            Event::Merged => (&mut counts.healed, removed),
            Event::Other => return,
        };
        *count = count.saturating_add(rows);
    }

    /// Every table with its counts, and whether `healed` is known.
    pub fn show(&mut self) -> impl Iterator<Item = (&Name, Counts, bool)> {
        self.tables.iter_mut().map(|(name, table)| {
            let counts = match std::mem::replace(&mut table.shown, true) {
                true => table.counts,
                false => Counts::default(),
            };
            (name, counts, table.heals())
        })
    }
}

#[cfg(test)]
mod tests;
