//! The last good figures of every check, held until they are too old to be shown.
//!
//! Staleness is per item (a group, a table, a summary): an item that could not be read keeps its
//! last figures until the check's `stale_after`; one that is known to be gone, or was never read,
//! has none. A scrape reads from here and waits for nobody.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::error::Error;
use crate::sample::Sample;

/// What one poll of a check brought.
#[derive(Debug, Default)]
pub struct Report {
    /// By name of the item: its figures, or why it could not be read. An item that is not here is
    /// known to be gone.
    pub items: BTreeMap<String, Result<Vec<Sample>, Error>>,
    /// Set when the poll as a whole counts as failed, although some items could be read.
    pub failure: Option<Error>,
    /// How many items a limit of the configuration left out.
    pub skipped: usize,
}

impl Report {
    /// A report about one item that was read.
    pub fn of(item: impl Into<String>, samples: Vec<Sample>) -> Self {
        Report {
            items: BTreeMap::from([(item.into(), Ok(samples))]),
            ..Report::default()
        }
    }

    /// The items that could not be read, and why.
    pub fn errors(&self) -> impl Iterator<Item = (&str, &Error)> {
        self.items
            .iter()
            .filter_map(|(name, outcome)| Some((name.as_str(), outcome.as_ref().err()?)))
    }
}

#[derive(Clone)]
struct Item {
    read_at: Instant,
    samples: Vec<Sample>,
}

/// The items of one check.
struct Slot {
    stale_after: Duration,
    items: BTreeMap<String, Item>,
    /// Series of the last poll that were not kept, since one check may not fill the memory.
    cut: usize,
}

/// The store that polls write and scrapes read.
pub struct Snapshot {
    slots: Vec<Mutex<Slot>>,
    max_series: usize,
}

impl Snapshot {
    /// A store for as many checks as there are entries in `stale_after`, in their order, that
    /// shows at most `max_series` series.
    pub fn new(stale_after: impl IntoIterator<Item = Duration>, max_series: usize) -> Self {
        let slots = stale_after.into_iter().map(|stale_after| {
            Mutex::new(Slot {
                stale_after,
                items: BTreeMap::new(),
                cut: 0,
            })
        });
        Snapshot {
            slots: slots.collect(),
            max_series,
        }
    }

    /// Takes in what the poll of check number `check` brought at `now`. A poll that failed as a
    /// whole is not stored at all: its items then age.
    pub fn store(&self, check: usize, report: &Report, now: Instant) {
        let mut slot = self.slot(check);
        let mut before = std::mem::take(&mut slot.items);
        let mut room = self.max_series;
        slot.cut = 0;
        for (name, outcome) in &report.items {
            let series = match outcome {
                Ok(samples) => samples.len(),
                Err(_) => before.get(name).map_or(0, |item| item.samples.len()),
            };
            // Whole items only: half a group would look like a group without the rest.
            if series > room {
                slot.cut += series;
                continue;
            }
            room -= series;
            let item = match outcome {
                Ok(samples) => Some(Item {
                    read_at: now,
                    samples: samples.clone(),
                }),
                Err(_) => before.remove(name),
            };
            slot.items.extend(item.map(|item| (name.clone(), item)));
        }
    }

    /// Takes over the figures of a check from the store that this one replaces.
    pub fn take_over(&self, check: usize, before: &Snapshot, check_before: usize) {
        // Copied, since the other one is still shown for a moment.
        self.slot(check).items = before.slot(check_before).items.clone();
    }

    /// The figures that are not too old at `now`, and how many series did not fit.
    pub fn read(&self, now: Instant) -> (Vec<Sample>, usize) {
        let mut samples = Vec::new();
        let mut dropped = 0;
        for check in 0..self.slots.len() {
            let mut slot = self.slot(check);
            let stale_after = slot.stale_after;
            dropped += slot.cut;
            slot.items
                .retain(|_, item| now.duration_since(item.read_at) <= stale_after);
            for item in slot.items.values() {
                if samples.len() + item.samples.len() <= self.max_series {
                    samples.extend_from_slice(&item.samples);
                } else {
                    dropped += item.samples.len();
                }
            }
        }
        (samples, dropped)
    }

    fn slot(&self, check: usize) -> MutexGuard<'_, Slot> {
        self.slots[check]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Reason;
    use crate::sample::Family;

    static TRIAL: Family = Family::gauge("dup_trial", &["item"], "A trial.");
    const STALE_AFTER: Duration = Duration::from_secs(180);

    fn store() -> Snapshot {
        Snapshot::new([STALE_AFTER], 10)
    }

    fn good(item: &str, value: f64) -> (String, Result<Vec<Sample>, Error>) {
        (item.into(), Ok(vec![TRIAL.sample(&[item], value)]))
    }

    fn unreadable(item: &str) -> (String, Result<Vec<Sample>, Error>) {
        (item.into(), Err(Error::new(Reason::Coordinator, "moving")))
    }

    fn report<const N: usize>(items: [(String, Result<Vec<Sample>, Error>); N]) -> Report {
        Report {
            items: items.into(),
            ..Report::default()
        }
    }

    fn values(snapshot: &Snapshot, now: Instant) -> Vec<(String, f64)> {
        let (samples, _) = snapshot.read(now);
        samples
            .iter()
            .map(|s| (s.labels[0].to_string(), s.value))
            .collect()
    }

    #[test]
    fn a_figure_stays_until_stale_after_and_not_longer() {
        let (snapshot, start) = (store(), Instant::now());
        snapshot.store(0, &report([good("t", 1.4)]), start);
        assert_eq!(values(&snapshot, start + STALE_AFTER), [("t".into(), 1.4)]);
        assert_eq!(
            values(&snapshot, start + STALE_AFTER + Duration::from_millis(1)),
            []
        );
    }

    #[test]
    fn an_item_that_could_not_be_read_keeps_its_own_age() {
        let (snapshot, start) = (store(), Instant::now());
        let later = start + Duration::from_secs(100);
        snapshot.store(0, &report([good("a", 1.0), good("b", 2.0)]), start);
        snapshot.store(0, &report([unreadable("a"), good("b", 3.0)]), later);
        assert_eq!(
            values(&snapshot, later),
            [("a".into(), 1.0), ("b".into(), 3.0)]
        );
        let stale = start + STALE_AFTER + Duration::from_secs(1);
        assert_eq!(values(&snapshot, stale), [("b".into(), 3.0)]);
    }

    #[test]
    fn an_item_that_was_never_read_has_no_figure() {
        let (snapshot, start) = (store(), Instant::now());
        snapshot.store(0, &report([unreadable("a")]), start);
        assert_eq!(values(&snapshot, start), []);
    }

    #[test]
    fn an_item_that_is_gone_goes_at_once() {
        let (snapshot, start) = (store(), Instant::now());
        snapshot.store(0, &report([good("a", 1.0), good("b", 2.0)]), start);
        snapshot.store(0, &report([good("b", 2.0)]), start);
        assert_eq!(values(&snapshot, start), [("b".into(), 2.0)]);
    }

    #[test]
    fn what_is_over_the_limit_is_cut_by_whole_items_and_counted() {
        let snapshot = Snapshot::new([STALE_AFTER], 3);
        let start = Instant::now();
        let pair = |name: &str| {
            let samples = vec![
                TRIAL.sample(&[name], 1.0),
                TRIAL.sample(&[&format!("{name}2")], 1.0),
            ];
            (name.to_owned(), Ok(samples))
        };
        snapshot.store(0, &report([pair("a"), pair("b"), good("c", 1.0)]), start);
        let (samples, dropped) = snapshot.read(start);
        let shown: Vec<_> = samples.iter().map(|s| &*s.labels[0]).collect();
        assert_eq!((shown, dropped), (vec!["a", "a2", "c"], 2));
    }
}
