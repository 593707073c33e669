//! What the exporter says of itself: how each check and each source fares, and the build.
//!
//! The pollers and sources write here, the metrics page and the landing page read; so both always
//! tell the same story.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::error::{Error, Reason};
use crate::sample::{Family, Sample};
use crate::snapshot::Report;

const CHECK: &[&str] = &["source", "check"];
const CHECK_REASON: &[&str] = &["source", "check", "reason"];

static CHECK_UP: Family = Family::gauge(
    "dup_check_up",
    CHECK,
    "Whether the last poll of the check succeeded; 0 until the first one has.",
);
static CHECK_DURATION: Family = Family::gauge(
    "dup_check_duration_seconds",
    CHECK,
    "How long the last poll of the check took.",
);
static CHECK_LAST_SUCCESS: Family = Family::gauge(
    "dup_check_last_success_timestamp_seconds",
    CHECK,
    "Unix time of the end of the check's last successful poll.",
);
static CHECK_STALE_AFTER: Family = Family::gauge(
    "dup_check_stale_after_seconds",
    CHECK,
    "How long the figures of a successful poll are shown; then they vanish.",
);
static CHECK_POLLS: Family = Family::counter(
    "dup_check_polls_total",
    CHECK,
    "Polls of the check, failed ones included.",
);
static CHECK_UNREADABLE: Family = Family::gauge(
    "dup_check_unreadable",
    CHECK_REASON,
    "Items (groups, tables, parts of a summary) that the last poll could not read.",
);
static CHECK_FAILURES: Family = Family::counter(
    "dup_check_failures_total",
    CHECK_REASON,
    "Polls of the check that failed, or could not read some item, by reason.",
);
static SOURCE_UP: Family = Family::gauge(
    "dup_source_up",
    &["source"],
    "Whether the last contact with the source worked; absent before the first.",
);
static SOURCE_LIMITS: Family = Family::gauge(
    "dup_source_limits_enforced",
    &["source"],
    "Whether the server accepted our query limits at the last query; 0 when it refused them.",
);
static BUILD_INFO: Family = Family::gauge(
    "dup_exporter_build_info",
    &["version"],
    "Always 1; the label tells which build this is.",
);
static RELOAD_OK: Family = Family::gauge(
    "dup_exporter_config_last_reload_successful",
    &[],
    "Whether the configuration could be used when it was last read.",
);
static RELOAD_TIME: Family = Family::gauge(
    "dup_exporter_config_last_reload_success_timestamp_seconds",
    &[],
    "Unix time at which the configuration in use was read.",
);
static SERIES_DROPPED: Family = Family::gauge(
    "dup_exporter_series_dropped",
    &[],
    "Series that this scrape does not show because max_series is reached.",
);

/// Every family of this file.
pub static FAMILIES: &[&Family] = &[
    &CHECK_UP,
    &CHECK_DURATION,
    &CHECK_LAST_SUCCESS,
    &CHECK_STALE_AFTER,
    &CHECK_POLLS,
    &CHECK_UNREADABLE,
    &CHECK_FAILURES,
    &SOURCE_UP,
    &SOURCE_LIMITS,
    &BUILD_INFO,
    &RELOAD_OK,
    &RELOAD_TIME,
    &SERIES_DROPPED,
];

/// The health of the whole exporter.
pub struct Health {
    pub checks: Vec<Arc<CheckHealth>>,
    pub sources: Vec<Arc<SourceHealth>>,
    pub config_read_at: SystemTime,
    /// Why the last reload failed, if it did.
    pub reload_error: Mutex<Option<String>>,
}

impl Health {
    /// Whether every check was polled at least once, whatever came of it.
    pub fn all_polled(&self) -> bool {
        self.checks.iter().all(|check| check.state().polls > 0)
    }

    /// Why the last reload failed; `None` if it did not.
    pub fn reload_error(&self) -> MutexGuard<'_, Option<String>> {
        self.reload_error
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// The self metrics, but for [`series_dropped`] and [`stale_after`].
    pub fn samples(&self) -> Vec<Sample> {
        let mut samples = vec![
            BUILD_INFO.sample(&[env!("CARGO_PKG_VERSION")], 1.0),
            RELOAD_OK.sample(&[], f64::from(u8::from(self.reload_error().is_none()))),
            RELOAD_TIME.sample(&[], unix_seconds(self.config_read_at)),
        ];
        self.sources.iter().for_each(|s| s.append(&mut samples));
        self.checks.iter().for_each(|c| c.append(&mut samples));
        samples
    }
}

/// How many series of the checks did not fit on the page.
pub fn series_dropped(dropped: usize) -> Sample {
    SERIES_DROPPED.sample(&[], dropped as f64)
}

/// How long the figures of a check are shown.
pub fn stale_after(source: &str, check: &str, span: Duration) -> Sample {
    CHECK_STALE_AFTER.sample(&[source, check], span.as_secs_f64())
}

/// How one source fares. Unknown until it was first asked.
pub struct SourceHealth {
    pub name: String,
    up: Flag,
    limits: Flag,
}

impl SourceHealth {
    /// A source that was not asked yet.
    pub fn new(name: &str) -> Arc<Self> {
        Arc::new(SourceHealth {
            name: name.into(),
            up: Flag::default(),
            limits: Flag::default(),
        })
    }

    /// The source was asked; whether it answered, and let us in.
    pub fn contact(&self, worked: bool) {
        self.up.set(worked);
    }

    /// A query ran; whether under our limits. True when that is news.
    pub fn limits_enforced(&self, enforced: bool) -> bool {
        self.limits.set(enforced)
    }

    fn append(&self, samples: &mut Vec<Sample>) {
        for (family, flag) in [(&SOURCE_UP, &self.up), (&SOURCE_LIMITS, &self.limits)] {
            if let Some(set) = flag.get() {
                samples.push(family.sample(&[&self.name], f64::from(u8::from(set))));
            }
        }
    }
}

/// A truth that is not known at first.
struct Flag(AtomicU8);

impl Default for Flag {
    fn default() -> Self {
        Flag(AtomicU8::new(u8::MAX))
    }
}

impl Flag {
    /// True when the value is another than before.
    fn set(&self, value: bool) -> bool {
        self.0.swap(u8::from(value), Ordering::Relaxed) != u8::from(value)
    }

    fn get(&self) -> Option<bool> {
        match self.0.load(Ordering::Relaxed) {
            u8::MAX => None,
            value => Some(value == 1),
        }
    }
}

/// How one check fares.
pub struct CheckHealth {
    pub source: String,
    pub check: String,
    /// Why its polls may fail.
    reasons: &'static [Reason],
    state: Mutex<CheckState>,
}

/// What is remembered of a check's polls.
#[derive(Default, Clone)]
pub struct CheckState {
    pub polls: u64,
    pub up: bool,
    pub took: Option<Duration>,
    pub last_success: Option<SystemTime>,
    /// Of the last poll, if it failed or some item could not be read.
    pub last_error: Option<Error>,
    failures: BTreeMap<Reason, u64>,
    unreadable: BTreeMap<Reason, u64>,
}

impl CheckHealth {
    /// A check that was not polled yet.
    pub fn new(source: &str, check: &str, reasons: &'static [Reason]) -> Arc<Self> {
        Arc::new(CheckHealth {
            source: source.into(),
            check: check.into(),
            reasons,
            state: Mutex::default(),
        })
    }

    /// Writes down a poll; returns the reason if it failed as a whole.
    pub fn polled(&self, outcome: &Result<Report, Error>, took: Duration) -> Option<Reason> {
        let mut state = self.state();
        let failure = match outcome {
            Ok(report) => report.failure.as_ref(),
            Err(error) => Some(error),
        };
        state.polls += 1;
        state.up = failure.is_none();
        state.took = Some(took);
        if state.up {
            state.last_success = Some(SystemTime::now());
        }
        state.unreadable.values_mut().for_each(|count| *count = 0);
        let mut reasons: BTreeSet<Reason> = failure.iter().map(|e| e.reason()).collect();
        state.last_error = failure.cloned();
        if let Ok(report) = outcome {
            for (_, error) in report.errors() {
                *state.unreadable.entry(error.reason()).or_default() += 1;
                reasons.insert(error.reason());
                state.last_error.get_or_insert_with(|| error.clone());
            }
            if report.skipped > 0 {
                let words = format!("{} items are over the configured number", report.skipped);
                state
                    .last_error
                    .get_or_insert_with(|| Error::new(Reason::Limit, words));
                *state.unreadable.entry(Reason::Limit).or_default() += report.skipped as u64;
                reasons.insert(Reason::Limit);
            }
        }
        for reason in reasons {
            *state.failures.entry(reason).or_default() += 1;
        }
        failure.map(Error::reason)
    }

    /// Whether the poll before failed.
    pub fn was_failing(&self) -> bool {
        let state = self.state();
        state.polls > 0 && !state.up
    }

    /// The state right now.
    pub fn state(&self) -> MutexGuard<'_, CheckState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn append(&self, samples: &mut Vec<Sample>) {
        let state = self.state();
        let names = [&*self.source, &*self.check];
        samples.push(CHECK_UP.sample(&names, f64::from(u8::from(state.up))));
        samples.push(CHECK_POLLS.sample(&names, state.polls as f64));
        if let Some(took) = state.took {
            samples.push(CHECK_DURATION.sample(&names, took.as_secs_f64()));
        }
        if let Some(at) = state.last_success {
            samples.push(CHECK_LAST_SUCCESS.sample(&names, unix_seconds(at)));
        }
        // What may happen is shown from the start, so that increase() sees the first failure.
        for reason in Reason::ALL {
            let labels = [names[0], names[1], reason.as_str()];
            let failures = state.failures.get(&reason).copied();
            let failures = failures.or_else(|| self.reasons.contains(&reason).then_some(0));
            if let Some(failures) = failures {
                samples.push(CHECK_FAILURES.sample(&labels, failures as f64));
            }
            if let Some(&count) = state.unreadable.get(&reason) {
                samples.push(CHECK_UNREADABLE.sample(&labels, count as f64));
            }
        }
    }
}

fn unix_seconds(at: SystemTime) -> f64 {
    at.duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(health: &CheckHealth, family: &'static Family) -> Vec<(String, f64)> {
        let mut samples = Vec::new();
        health.append(&mut samples);
        samples
            .iter()
            .filter(|s| std::ptr::eq(s.family, family) && s.value != 0.0)
            .map(|s| (s.labels.last().unwrap().to_string(), s.value))
            .collect()
    }

    #[test]
    fn a_failed_poll_is_counted_by_its_reason_and_takes_the_check_down() {
        let health = CheckHealth::new("logs", "table:a.b", &[]);
        let took = Duration::from_secs(1);
        health.polled(&Ok(Report::default()), took);
        assert!(health.state().up);
        let failure = health.polled(&Err(Error::new(Reason::Timeout, "slow")), took);
        assert_eq!(failure, Some(Reason::Timeout));
        assert!(!health.state().up);
        assert_eq!(shown(&health, &CHECK_FAILURES), [("timeout".into(), 1.0)]);
        assert_eq!(shown(&health, &CHECK_POLLS), [("table:a.b".into(), 2.0)]);
    }

    #[test]
    fn unreadable_items_leave_the_check_up_and_are_counted() {
        let health = CheckHealth::new("main", "groups", &[]);
        let unreadable = |n: usize| {
            let mut report = Report::default();
            for i in 0..n {
                let error = Error::new(Reason::Coordinator, "moving");
                report.items.insert(i.to_string(), Err(error));
            }
            Ok(report)
        };
        health.polled(&unreadable(3), Duration::ZERO);
        assert!(health.state().up);
        let expected = [("coordinator".to_owned(), 3.0)];
        assert_eq!(shown(&health, &CHECK_UNREADABLE), expected);
        health.polled(&unreadable(0), Duration::ZERO);
        assert_eq!(shown(&health, &CHECK_UNREADABLE), []);
        assert_eq!(
            shown(&health, &CHECK_FAILURES),
            [("coordinator".into(), 1.0)]
        );
    }

    #[test]
    fn a_source_that_was_never_asked_is_neither_up_nor_down() {
        let source = SourceHealth::new("logs");
        let mut samples = Vec::new();
        source.append(&mut samples);
        assert_eq!(samples, []);
        source.contact(false);
        source.append(&mut samples);
        assert_eq!(samples, [SOURCE_UP.sample(&["logs"], 0.0)]);
    }
}
