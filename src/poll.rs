//! One task per check: it waits, polls within the check's time limit, and writes down the outcome.
//!
//! A check never polls twice at once, a source answers a bounded number of polls at once, and a
//! check whose source fails is asked again sooner or later than its interval says, by [`pause`].

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep, sleep_until, timeout, timeout_at};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use crate::config::Timing;
use crate::error::{Error, Reason};
use crate::generation::View;
use crate::self_metrics::CheckHealth;
use crate::snapshot::Report;

/// How many polls one source answers at once.
pub const POLLS_PER_SOURCE: usize = 2;

/// Something that can be looked at again and again.
#[async_trait::async_trait]
pub trait Check: Any + Send {
    /// Looks once. The poller drops the future at `deadline`.
    async fn poll(&mut self, deadline: Instant) -> Result<Report, Error>;

    /// Goes on from what the check of the same name learnt before the configuration was read
    /// again. Most checks learn nothing that the next poll does not tell.
    fn take_over(&mut self, _before: Box<dyn Any>) {}
}

/// A check with its name and its timing, as the configuration wants it.
pub struct Planned {
    /// The `source` label.
    pub source: String,
    /// The source that is asked.
    pub asks: String,
    /// The `check` label, such as `table:audit.playlog`.
    pub name: String,
    pub timing: Timing,
    /// Why its polls may fail.
    pub reasons: &'static [Reason],
    pub check: Box<dyn Check>,
}

impl Planned {
    /// The health of a check that was not polled yet.
    pub fn health(&self) -> Arc<CheckHealth> {
        CheckHealth::new(&self.source, &self.name, self.reasons)
    }
}

/// Everything that one check's task needs.
pub struct Poller {
    pub planned: Planned,
    /// The number of the check in the view.
    pub slot: usize,
    pub view: Arc<View>,
    /// Shared by the checks of one source.
    pub gate: Arc<Semaphore>,
    pub shutdown: CancellationToken,
}

impl Poller {
    /// Polls until shutdown, and gives the check back.
    pub async fn run(mut self) -> Planned {
        let shutdown = self.shutdown.clone();
        // `None`: shut down, whatever the check was waiting for.
        let _: Option<()> = shutdown.run_until_cancelled(self.poll_for_ever()).await;
        self.planned
    }

    fn health(&self) -> &CheckHealth {
        &self.view.health.checks[self.slot]
    }

    async fn poll_for_ever(&mut self) {
        let interval = self.planned.timing.interval.0;
        // At once, but not all checks in the same instant.
        sleep(random_up_to(interval.min(Duration::from_secs(10)) / 10)).await;
        let mut failures = 0;
        let mut first = true;
        loop {
            let permit = self.wait_for_turn().await;
            let started = Instant::now();
            let outcome = match permit {
                Ok(_permit) => self.poll_once(started).await,
                Err(error) => Err(error),
            };
            let ended = Instant::now();
            let failure = self.write_down(&outcome, ended - started);
            failures = if failure.is_some() { failures + 1 } else { 0 };
            let mut wait = match failure {
                Some(reason) => pause(reason, failures, interval),
                None => interval,
            };
            if std::mem::take(&mut first) {
                // From here on the checks of a source are spread over their interval.
                wait = wait.mul_f64(0.5 + 0.5 * fastrand::f64());
            }
            // A poll that takes longer than its interval leaves its source as long a rest.
            let rest = (ended - started).min(interval);
            sleep_until((started + wait).max(ended + rest)).await;
        }
    }

    /// Waits for the source to have a poll to spare. That may take long when it hangs; a check whose
    /// figures have gone stale meanwhile has failed.
    async fn wait_for_turn(&mut self) -> Result<OwnedSemaphorePermit, Error> {
        let limit = self.planned.timing.stale_after;
        match timeout(limit.0, self.gate.clone().acquire_owned()).await {
            Ok(Ok(permit)) => Ok(permit),
            _ => {
                let message = format!(
                    "the source was busy with other checks for {limit}: raise interval, or lower \
                     timeout"
                );
                Err(Error::new(Reason::Timeout, message))
            }
        }
    }

    async fn poll_once(&mut self, started: Instant) -> Result<Report, Error> {
        let Timing { timeout, .. } = self.planned.timing;
        let deadline = started + timeout.0;
        let outcome = timeout_at(deadline, self.planned.check.poll(deadline)).await;
        outcome.unwrap_or_else(|_| {
            let message = format!("no answer within {timeout}");
            Err(Error::new(Reason::Timeout, message))
        })
    }

    /// Shows and logs what a poll brought; returns the reason if it failed.
    fn write_down(&self, outcome: &Result<Report, Error>, took: Duration) -> Option<Reason> {
        self.log(outcome);
        // Before the poll counts as done, so that whoever sees it counted finds its figures.
        if let Ok(report) = outcome {
            self.view.snapshot.store(self.slot, report, Instant::now());
        }
        self.health().polled(outcome, took)
    }

    fn log(&self, outcome: &Result<Report, Error>) {
        let Planned { source, name, .. } = &self.planned;
        let failure = match outcome {
            Ok(report) => {
                for (item, error) in report.errors() {
                    let reason = error.reason().as_str();
                    debug!(source, check = name, item, reason, %error, "item unreadable");
                }
                report.failure.as_ref()
            }
            Err(error) => Some(error),
        };
        match failure {
            Some(error) => {
                let reason = error.reason().as_str();
                warn!(source, check = name, reason, %error, "poll failed");
            }
            None if self.health().was_failing() => info!(source, check = name, "poll works again"),
            None => debug!(source, check = name, "polled"),
        }
    }
}

/// How long after the start of a failed poll the next one starts; `failures` is how many failed in
/// a row.
///
/// A source that can't be reached is asked again after 5 s, other failures are looked at after a
/// minute; both twice as long after each further failure, up to the interval or five minutes. A
/// query over the limits is expensive: it waits its interval, and ever longer, up to five minutes.
fn pause(reason: Reason, failures: u32, interval: Duration) -> Duration {
    const LONGEST: Duration = Duration::from_secs(300);
    let (first, ceiling) = match reason {
        Reason::Limit => (interval, interval.max(LONGEST)),
        Reason::Connection | Reason::Worker | Reason::Coordinator => {
            (Duration::from_secs(5), interval.min(LONGEST))
        }
        _ => (Duration::from_secs(60), interval.min(LONGEST)),
    };
    let doublings = failures.saturating_sub(1).min(16);
    first.saturating_mul(1 << doublings).min(ceiling)
}

fn random_up_to(limit: Duration) -> Duration {
    limit.mul_f64(fastrand::f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pauses(reason: Reason, interval: u64) -> Vec<u64> {
        let interval = Duration::from_secs(interval);
        (1..=6)
            .map(|failures| pause(reason, failures, interval).as_secs())
            .collect()
    }

    #[test]
    fn an_unreachable_source_is_asked_soon_and_then_at_its_interval() {
        assert_eq!(pauses(Reason::Connection, 60), [5, 10, 20, 40, 60, 60]);
        assert_eq!(pauses(Reason::Connection, 2), [2; 6]);
    }

    #[test]
    fn a_slow_check_does_not_wait_its_long_interval_after_a_failure() {
        assert_eq!(
            pauses(Reason::Protocol, 3600),
            [60, 120, 240, 300, 300, 300]
        );
        assert_eq!(pauses(Reason::Timeout, 60), [60; 6]);
    }

    #[test]
    fn a_query_over_the_limits_is_asked_ever_more_rarely() {
        assert_eq!(pauses(Reason::Limit, 60), [60, 120, 240, 300, 300, 300]);
        assert_eq!(pauses(Reason::Limit, 3600), [3600; 6]);
    }

    #[test]
    fn no_number_of_failures_is_too_large() {
        let pause = pause(Reason::Server, u32::MAX, Duration::from_secs(60));
        assert_eq!(pause.as_secs(), 60);
    }
}
