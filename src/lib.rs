//! dup_exporter tells, for every layer of a data pipeline, whether something was processed twice.
//!
//! A map, in the order in which a value travels:
//!
//! - [`config`]: YAML becomes a [`Config`] that can't be invalid.
//! - `checks`: one file each. A check asks a source, judges by pure maths, and says samples.
//! - `sources`: clients that answer typed questions; Kafka's lives in a process of its own.
//! - `history`: looks at the groups of pipelines, from the check that takes them to those that use them.
//! - `poll`: one task per check, with interval, time limit and outcome.
//! - `snapshot`: the last good samples of every item, until they are too old.
//! - `self_metrics`: how checks and sources fare.
//! - `generation`: all of this for one configuration, and how a reload replaces it.
//! - `sample`: what a metric is. `web`: the pages that show all this.
//!
//! [`run`] ties them together.

mod checks;
pub mod config;
pub mod error;
mod generation;
mod history;
mod poll;
mod sample;
mod self_metrics;
mod snapshot;
mod sources;
mod web;

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use prometheus::Registry;
use prometheus::process_collector::ProcessCollector;
use tokio::net::TcpListener;
use tokio::sync::{Notify, mpsc};
use tokio::task::spawn_blocking;
use tokio_util::sync::CancellationToken;
use tracing::{error, info};

pub use crate::config::Config;
use crate::generation::Generation;
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

/// Polls and serves until `shutdown` is cancelled. The configuration's file is read again when
/// `hangup` is notified, and when `/-/reload` is asked for; one that can't be used changes nothing.
///
/// A source that is down is no error: its checks fail until it is back.
///
/// # Errors
/// When a certificate of the configuration can't be used, or when a check panics, which is a bug.
pub async fn run(
    config: Config,
    listener: TcpListener,
    shutdown: CancellationToken,
    hangup: Arc<Notify>,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let mut config = Arc::new(config);
    let mut generation = Generation::start(&config)?;
    // Whatever ends the run ends the pages too.
    let ended = shutdown.child_token();
    let _end = ended.clone().drop_guard();
    let (reloads, mut wishes) = mpsc::channel(1);
    let pages = Arc::new(Pages {
        view: ArcSwap::new(generation.view.clone()),
        reloads,
        process: process_metrics()?,
        telemetry_path: config.telemetry_path.clone(),
        dropped: 0.into(),
    });
    let checks = generation.view.health.checks.len();
    info!(address = %listener.local_addr()?, checks, "listening");
    let router = web::router(pages.clone());
    let mut server = tokio::spawn(web::serve(listener, router, ended, GRACE));
    let outcome = loop {
        let wish = tokio::select! {
            served = &mut server => break served.map_err(Into::into),
            panicked = generation.panic() => break Err(panicked.into()),
            () = hangup.notified() => None,
            wish = wishes.recv() => wish,
        };
        let reload = reload(&mut config, &mut generation, &pages);
        let Some(outcome) = shutdown.run_until_cancelled(reload).await else {
            continue;
        };
        if let Some(wish) = wish {
            // Whoever asked may have gone.
            let _ = wish.send(outcome);
        }
    };
    generation.stop(GRACE).await;
    outcome
}

/// Reads the configuration again; says why it can't be used.
async fn reload(
    config: &mut Arc<Config>,
    generation: &mut Generation,
    pages: &Pages,
) -> Result<(), String> {
    match next(config, generation).await {
        Ok(()) => {
            pages.view.store(generation.view.clone());
            info!(
                checks = generation.view.health.checks.len(),
                "the configuration was read again"
            );
            Ok(())
        }
        Err(error) => {
            error!(%error, "the configuration can't be used, the one before it stays");
            *generation.view.health.reload_error() = Some(error.to_string());
            Err(error.to_string())
        }
    }
}

async fn next(
    config: &mut Arc<Config>,
    generation: &mut Generation,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let (before, sources) = (config.clone(), generation.heir());
    // Files may lie on a disk that hangs.
    let read = move || -> Result<_, Box<dyn std::error::Error + Send + Sync>> {
        let next = before.load_again()?;
        let sources = sources(&next)?;
        Ok((next, sources))
    };
    let (next, sources) = spawn_blocking(read).await??;
    generation.replace(&next, sources).await;
    *config = Arc::new(next);
    Ok(())
}

fn process_metrics() -> prometheus::Result<Registry> {
    let registry = Registry::new();
    registry.register(Box::new(ProcessCollector::for_self()))?;
    Ok(registry)
}
