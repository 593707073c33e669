//! dup_exporter tells, for every layer of a data pipeline, whether something was processed twice.
//!
//! A map, in the order in which a value travels:
//!
//! - [`config`]: YAML becomes a [`Config`] that can't be invalid.
//! - `checks`: one file each. A check asks a source, judges by pure maths, and says samples.
//! - `sources`: clients that answer typed questions; Kafka's lives in a process of its own.
//! - `poll`: one task per check, with interval, time limit and outcome.
//! - `snapshot`: the last good samples of every item, until they are too old.
//! - `self_metrics`: how checks and sources fare.
//! - `sample`: what a metric is. `web`: the pages that show all this.
//!
//! [`run`] ties them together.

mod checks;
pub mod config;
pub mod error;
mod poll;
mod sample;
mod self_metrics;
mod snapshot;
mod sources;
mod web;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use prometheus::Registry;
use prometheus::process_collector::ProcessCollector;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

pub use crate::config::Config;
use crate::poll::{Planned, Poller};
use crate::self_metrics::{CheckHealth, Health};
use crate::snapshot::Snapshot;
pub use crate::sources::kafka::worker;
use crate::web::Pages;

/// How long a shutdown waits for open scrapes, and after them for queries to be ended on their
/// servers: both together end within a second.
const GRACE: Duration = Duration::from_millis(300);

/// Name, kind (`gauge` or `counter`), labels and help of every metric that the exporter declares.
pub fn declared_metrics() -> Vec<(
    &'static str,
    &'static str,
    &'static [&'static str],
    &'static str,
)> {
    let families = [checks::families(), self_metrics::FAMILIES.to_vec()].concat();
    let describe = |family: &&'static sample::Family| {
        (
            family.name,
            family.kind.as_str(),
            family.labels,
            family.help,
        )
    };
    families.iter().map(describe).collect()
}

/// Polls and serves until `shutdown` is cancelled.
///
/// A source that is down is no error: its checks fail until it is back.
///
/// # Errors
/// When a certificate of the configuration can't be used, when the listener fails, or when a check
/// panics, which is a bug.
pub async fn run(
    config: Config,
    listener: TcpListener,
    shutdown: CancellationToken,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let sources = checks::Sources::new(&config)?;
    let planned = checks::plan(&config, &sources);
    if planned.is_empty() {
        warn!("the configuration asks for no check");
    }
    let stale_after = planned.iter().map(|p| p.timing.stale_after.0);
    let snapshot = Arc::new(Snapshot::new(stale_after, config.max_series));
    let checks = planned
        .iter()
        .map(|p| CheckHealth::new(&p.source, &p.name, p.reasons));
    let health = Health {
        checks: checks.collect(),
        sources: sources.health(),
        config_read_at: SystemTime::now(),
    };

    // Whatever ends the run ends the pollers too.
    let ended = shutdown.child_token();
    let _end = ended.clone().drop_guard();
    let mut pollers = start_pollers(planned, &health, &snapshot, &ended);
    let pages = Arc::new(Pages {
        health,
        snapshot,
        process: process_metrics()?,
        telemetry_path: config.telemetry_path.clone(),
        dropped: 0.into(),
    });
    info!(address = %listener.local_addr()?, checks = pollers.len(), "listening");
    let outcome = tokio::select! {
        () = web::serve(listener, web::router(pages), &shutdown, GRACE) => Ok(()),
        panicked = first_panic(&mut pollers) => Err(panicked.into()),
    };
    ended.cancel();
    let settle = async {
        while pollers.join_next().await.is_some() {}
        for clickhouse in &sources.clickhouse {
            clickhouse.settle().await;
        }
    };
    if timeout(GRACE, settle).await.is_err() {
        warn!("some query may still run on its server, up to its time limit");
    }
    outcome
}

/// One task per check; the checks of one source share its gate.
fn start_pollers(
    planned: Vec<Planned>,
    health: &Health,
    snapshot: &Arc<Snapshot>,
    ended: &CancellationToken,
) -> JoinSet<()> {
    let mut pollers = JoinSet::new();
    let mut gates: BTreeMap<String, Arc<Semaphore>> = BTreeMap::new();
    for (slot, planned) in planned.into_iter().enumerate() {
        let gate = gates
            .entry(planned.source.clone())
            .or_insert_with(|| Arc::new(Semaphore::new(poll::POLLS_PER_SOURCE)));
        let poller = Poller {
            slot,
            snapshot: snapshot.clone(),
            health: health.checks[slot].clone(),
            gate: gate.clone(),
            shutdown: ended.clone(),
            planned,
        };
        pollers.spawn(poller.run());
    }
    pollers
}

/// Waits until a poller panics; for ever if none does.
async fn first_panic(pollers: &mut JoinSet<()>) -> String {
    while let Some(ended) = pollers.join_next().await {
        if let Err(error) = ended {
            return format!("a check panicked, please report it: {error}");
        }
    }
    std::future::pending().await
}

fn process_metrics() -> prometheus::Result<Registry> {
    let registry = Registry::new();
    registry.register(Box::new(ProcessCollector::for_self()))?;
    Ok(registry)
}
