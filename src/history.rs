//! Looks at the consumer groups that are layers of pipelines: written by the groups check, read by
//! the pipelines. Each pipeline has a bounded ring of its own.
//!
//! What is kept of a partition is its *high-water mark*, the greatest offset that was ever seen
//! committed: two workers on one group commit in turns, to and fro, and after a replay the same
//! offsets are committed again; neither is a message that was read for the first time.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::config::{Config, KafkaLayer, Pipeline};

/// Offsets by topic and partition.
pub type Offsets = BTreeMap<String, BTreeMap<i32, i64>>;
/// High-water marks by the number of the topic, and partition.
type Marks = BTreeMap<(usize, i32), i64>;

/// How much longer than a pipeline's window its looks are kept: the newest ones are not used before
/// the log of what was written has caught up.
const BEYOND_WINDOW: Duration = Duration::from_secs(300);
/// A ring does not grow beyond this many looks, however long the window and short the interval.
const MAX_LOOKS: usize = 4_000;

/// The rings of all pipelines, by their names.
#[derive(Default)]
pub struct History(BTreeMap<String, Arc<Ring>>);

impl History {
    /// Rings for the pipelines of a configuration that read from Kafka; what is known of those that
    /// have not changed goes on.
    pub fn new(config: &Config, before: &History) -> Self {
        let rings = config.pipelines.iter().filter_map(|pipeline| {
            let ring = Ring::new(pipeline)?;
            let known = before
                .0
                .get(&pipeline.name)
                .filter(|known| known.is_like(&ring));
            Some((
                pipeline.name.clone(),
                known.cloned().unwrap_or_else(|| Arc::new(ring)),
            ))
        });
        History(rings.collect())
    }

    /// The ring of a pipeline that reads from Kafka.
    pub fn of(&self, pipeline: &str) -> Option<Arc<Ring>> {
        self.0.get(pipeline).cloned()
    }

    /// The rings that a source fills.
    pub fn of_source(&self, source: &str) -> Vec<Arc<Ring>> {
        let of_source = |ring: &&Arc<Ring>| ring.layer.source == source;
        self.0.values().filter(of_source).cloned().collect()
    }
}

/// What is remembered for one pipeline.
pub struct Ring {
    pub layer: KafkaLayer,
    keep: Duration,
    looks: Mutex<VecDeque<Look>>,
}

/// What one look found: no mark where the group has no commit that we may see.
#[derive(Clone)]
struct Look {
    at: Instant,
    marks: Arc<Marks>,
}

/// How far a group came between two looks.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Advance {
    pub from: Instant,
    pub to: Instant,
    /// Messages that were read for the first time, as far as commits tell.
    pub messages: u64,
    /// Looks that found some mark moved.
    pub batches: usize,
}

impl Ring {
    fn new(pipeline: &Pipeline) -> Option<Self> {
        Some(Ring {
            layer: pipeline.kafka.clone()?,
            keep: pipeline.window.0 + BEYOND_WINDOW,
            looks: Mutex::default(),
        })
    }

    fn is_like(&self, other: &Ring) -> bool {
        self.layer == other.layer && self.keep == other.keep
    }

    fn looks(&self) -> MutexGuard<'_, VecDeque<Look>> {
        self.looks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes in a look at `now`; `committed` is `None` where there is no such group. `log_ends` tell
    /// whether a topic was deleted and made anew.
    pub fn add(&self, committed: Option<&Offsets>, log_ends: &Offsets, now: Instant) {
        let mut looks = self.looks();
        let found = committed.map(|committed| self.marks_of(committed));
        let before = looks
            .back()
            .map(|look| look.marks.clone())
            .unwrap_or_default();
        let ends = self.marks_of(log_ends);
        let mut marks = Marks::clone(&before);
        let is_beyond_end = |(partition, mark)| ends.get(partition).is_some_and(|end| end < mark);
        // Offsets of a topic that was made anew begin again.
        if found.is_none() || before.iter().any(is_beyond_end) {
            looks.clear();
            marks.clear();
        }
        for (partition, offset) in found.unwrap_or_default() {
            let mark = marks.entry(partition).or_insert(offset);
            *mark = (*mark).max(offset);
        }
        let marks = Arc::new(marks);
        looks.push_back(Look { at: now, marks });
        let is_too_old = |look: &Look| now.duration_since(look.at) > self.keep;
        while looks.len() > MAX_LOOKS || looks.front().is_some_and(is_too_old) {
            looks.pop_front();
        }
    }

    /// The offsets of the pipeline's topics.
    fn marks_of(&self, offsets: &Offsets) -> Marks {
        let topics = self.layer.topics.iter().enumerate();
        let of_topic = |(number, topic)| {
            let partitions = offsets.get(topic).into_iter().flatten();
            partitions.map(move |(&partition, &offset)| ((number, partition), offset))
        };
        topics.flat_map(of_topic).collect()
    }

    /// Whether the last look found no such group, or no commit of it that we may see.
    pub fn is_missing(&self) -> bool {
        self.looks()
            .back()
            .is_some_and(|look| look.marks.is_empty())
    }

    /// When the group was last looked at.
    pub fn last(&self) -> Option<Instant> {
        self.looks().back().map(|look| look.at)
    }

    /// How far the group came over `window`, between two looks of which the older one is not before
    /// `from` (where that is given), and the newer one not after `to`. The older one knows every partition that the newer
    /// one knows: where a partition's first commit began is not known.
    pub fn advance(&self, window: Duration, from: Option<Instant>, to: Instant) -> Option<Advance> {
        let looks = self.looks();
        let newest = looks.iter().rev().find(|look| look.at <= to)?;
        let begins = |look: &&Look| {
            let knows = |partition| look.marks.contains_key(partition);
            from.is_none_or(|from| look.at >= from)
                && newest.at.duration_since(look.at) <= window
                && newest.marks.keys().all(knows)
        };
        let oldest = looks.iter().find(begins)?;
        if oldest.at >= newest.at || newest.marks.is_empty() {
            return None;
        }
        let between = looks
            .iter()
            .filter(|look| look.at >= oldest.at && look.at <= newest.at);
        let moved = between
            .clone()
            .zip(between.skip(1))
            .filter(|(a, b)| a.marks != b.marks);
        let ahead = newest.marks.iter().map(|(partition, mark)| {
            let before = oldest.marks.get(partition).unwrap_or(mark);
            mark.saturating_sub(*before).unsigned_abs()
        });
        Some(Advance {
            from: oldest.at,
            to: newest.at,
            messages: ahead.fold(0, u64::saturating_add),
            batches: moved.count(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Pipeline;

    const MINUTE: Duration = Duration::from_secs(60);
    const HOUR: Duration = Duration::from_secs(3_600);

    fn ring() -> Ring {
        let pipeline = Pipeline::for_tests("play", "main", "audit-import", &["playlog"]);
        Ring::new(&pipeline).unwrap()
    }

    fn offsets(partitions: &[(i32, i64)]) -> Offsets {
        BTreeMap::from([("playlog".to_owned(), partitions.iter().copied().collect())])
    }

    /// One look a minute at the one partition's commits.
    fn watched(commits: &[i64]) -> (Ring, Instant) {
        let (ring, start) = (ring(), Instant::now());
        for (minute, &commit) in (0..).zip(commits) {
            ring.add(
                Some(&offsets(&[(0, commit)])),
                &Offsets::new(),
                start + MINUTE * minute,
            );
        }
        (ring, start)
    }

    fn advance(ring: &Ring, start: Instant, until: u32) -> Option<(u64, usize)> {
        let advance = ring.advance(HOUR, Some(start), start + MINUTE * until)?;
        Some((advance.messages, advance.batches))
    }

    #[test]
    fn commits_that_go_to_and_fro_count_each_message_once() {
        // Two workers, one batch of 100 apart: 100, 200, 100, 300, 200, 400 …
        let (ring, start) = watched(&[100, 200, 100, 300, 200, 400, 300, 500]);
        assert_eq!(advance(&ring, start, 7), Some((400, 4)));
    }

    #[test]
    fn a_replay_counts_no_message_again() {
        let (ring, start) = watched(&[1_000, 0, 500, 1_000, 1_100]);
        assert_eq!(advance(&ring, start, 4), Some((100, 1)));
    }

    #[test]
    fn only_looks_up_to_the_given_instant_count_and_one_tells_nothing() {
        let (ring, start) = watched(&[10, 20, 30, 40]);
        assert_eq!(advance(&ring, start, 3), Some((30, 3)));
        assert_eq!(advance(&ring, start, 2), Some((20, 2)));
        assert_eq!(advance(&ring, start, 0), None);
    }

    #[test]
    fn the_window_is_never_exceeded() {
        let commits: Vec<_> = (0..100).map(|minute| minute * 10).collect();
        let (ring, start) = watched(&commits);
        assert_eq!(advance(&ring, start, 99), Some((600, 60)));
    }

    #[test]
    fn a_partition_that_is_new_begins_the_window_anew() {
        let (ring, start) = (ring(), Instant::now());
        let looks: [&[(i32, i64)]; 4] = [
            &[(0, 0)],
            &[(0, 10)],
            &[(0, 20), (1, 500)],
            &[(0, 30), (1, 507)],
        ];
        for (minute, look) in (0..).zip(looks) {
            ring.add(
                Some(&offsets(look)),
                &Offsets::new(),
                start + MINUTE * minute,
            );
        }
        assert_eq!(advance(&ring, start, 3), Some((17, 1)));
        assert_eq!(advance(&ring, start, 2), None);
    }

    #[test]
    fn a_partition_without_a_commit_any_more_keeps_its_mark() {
        let (ring, start) = (ring(), Instant::now());
        let looks: [&[(i32, i64)]; 3] = [&[(0, 0), (1, 5)], &[(0, 10)], &[(0, 20), (1, 8)]];
        for (minute, look) in (0..).zip(looks) {
            ring.add(
                Some(&offsets(look)),
                &Offsets::new(),
                start + MINUTE * minute,
            );
        }
        assert_eq!(advance(&ring, start, 2), Some((23, 2)));
    }

    #[test]
    fn a_topic_that_is_made_anew_begins_anew() {
        let (ring, start) = watched(&[1_000, 2_000]);
        let ends = offsets(&[(0, 60)]);
        ring.add(Some(&offsets(&[(0, 50)])), &ends, start + MINUTE * 2);
        assert_eq!(advance(&ring, start, 2), None);
        ring.add(Some(&offsets(&[(0, 60)])), &ends, start + MINUTE * 3);
        assert_eq!(advance(&ring, start, 3), Some((10, 1)));
    }

    #[test]
    fn a_group_that_is_gone_is_forgotten() {
        let (ring, start) = watched(&[10, 20]);
        ring.add(None, &Offsets::new(), start + MINUTE * 2);
        assert!(ring.is_missing());
        assert_eq!(advance(&ring, start, 2), None);
    }

    #[test]
    fn the_ring_is_bounded() {
        let (ring, start) = (ring(), Instant::now());
        for second in 0..10_000 {
            ring.add(
                Some(&offsets(&[(0, 1)])),
                &Offsets::new(),
                start + Duration::from_millis(second),
            );
        }
        assert_eq!(ring.looks().len(), MAX_LOOKS);
    }
}
