//! Everything that runs for one configuration, and how the next one takes over from it.
//!
//! A reload is a restart that forgets nothing: every check is stopped and started anew, but
//! counters, the memory of checks and the last good figures go on, told apart by source and check.
//! A configuration that can't be used changes nothing.

use std::any::Any;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::{CancellationToken, DropGuard};
use tracing::{error, warn};

use crate::checks::{self, Sources, pipelines};
use crate::config::Config;
use crate::error::Error;
use crate::history::History;
use crate::poll::{POLLS_PER_SOURCE, Planned, Poller};
use crate::sample::Sample;
use crate::self_metrics::{self, CheckHealth, Health, SourceHealth};
use crate::snapshot::Snapshot;

/// What the pages show of a generation.
pub struct View {
    pub health: Health,
    /// What the configuration itself tells.
    pub facts: Vec<Sample>,
    pub snapshot: Snapshot,
}

/// The checks of one configuration, at work.
pub struct Generation {
    pub view: Arc<View>,
    sources: Sources,
    pollers: JoinSet<Planned>,
    ended: CancellationToken,
    /// Whatever ends the generation ends its pollers too.
    _end: DropGuard,
}

/// Source and check.
type Name = (String, String);

/// What a generation leaves to the next one; nothing at the start of the program.
#[derive(Default)]
struct Legacy {
    view: Option<Arc<View>>,
    checks: BTreeMap<Name, Planned>,
}

impl Generation {
    /// Starts the checks of the configuration.
    ///
    /// # Errors
    /// When a certificate can't be read or used.
    pub fn start(config: &Config) -> Result<Self, Error> {
        let sources = Sources::new(config, SourceHealth::new, &History::default())?;
        Ok(Generation::begin(config, sources, Legacy::default()))
    }

    /// What makes the sources of another configuration, which share the health and the history of
    /// those of the same name. It reads certificates, and so may take long.
    pub fn heir(&self) -> impl FnOnce(&Config) -> Result<Sources, Error> + Send + 'static {
        let known = self.view.health.sources.clone();
        let history = self.sources.history.clone();
        move |config| {
            let health = |name: &str| {
                let known = known.iter().find(|health| health.name == name);
                known.cloned().unwrap_or_else(|| SourceHealth::new(name))
            };
            Sources::new(config, health, &history)
        }
    }

    /// Takes the place of this generation with one for another configuration.
    pub async fn replace(&mut self, config: &Config, sources: Sources) {
        let legacy = Legacy {
            checks: self.halt().await,
            view: Some(self.view.clone()),
        };
        *self = Generation::begin(config, sources, legacy);
    }

    fn begin(config: &Config, sources: Sources, legacy: Legacy) -> Self {
        let mut planned = checks::plan(config, &sources);
        if planned.is_empty() {
            warn!("the configuration asks for no check");
        }
        let stale_after = planned.iter().map(|check| check.timing.stale_after.0);
        let view = View {
            snapshot: Snapshot::new(stale_after, config.max_series),
            facts: facts(config, &planned),
            health: Health {
                checks: planned.iter().map(Planned::health).collect(),
                sources: sources.health(),
                config_read_at: SystemTime::now(),
                reload_error: Default::default(),
            },
        };
        let view = Arc::new(legacy.into_heirs(&mut planned, view));
        let ended = CancellationToken::new();
        Generation {
            pollers: start_pollers(planned, &view, &ended),
            view,
            sources,
            _end: ended.clone().drop_guard(),
            ended,
        }
    }

    /// Stops the checks and gives them back.
    async fn halt(&mut self) -> BTreeMap<Name, Planned> {
        for clickhouse in &self.sources.clickhouse {
            clickhouse.leave();
        }
        self.ended.cancel();
        let mut checks = BTreeMap::new();
        while let Some(ended) = self.pollers.join_next().await {
            match ended {
                Ok(check) => {
                    checks.insert((check.source.clone(), check.name.clone()), check);
                }
                Err(error) => error!(%error, "a check panicked, please report it"),
            }
        }
        checks
    }

    /// Waits until a check panics; for ever if none does.
    pub async fn panic(&mut self) -> String {
        while let Some(ended) = self.pollers.join_next().await {
            if let Err(error) = ended {
                return format!("a check panicked, please report it: {error}");
            }
        }
        std::future::pending().await
    }

    /// Stops the checks, and within `grace` what they have asked of their servers.
    pub async fn stop(mut self, grace: Duration) {
        let settle = async {
            self.halt().await;
            for clickhouse in &self.sources.clickhouse {
                clickhouse.settle().await;
            }
        };
        if timeout(grace, settle).await.is_err() {
            warn!("some query may still run on its server, up to its time limit");
        }
    }
}

fn facts(config: &Config, planned: &[Planned]) -> Vec<Sample> {
    let stale_after = planned.iter().map(|check| {
        self_metrics::stale_after(&check.source, &check.name, check.timing.stale_after.0)
    });
    stale_after.chain(pipelines::facts(config)).collect()
}

impl Legacy {
    /// Leaves what there is to the checks of the same names.
    fn into_heirs(mut self, planned: &mut [Planned], mut view: View) -> View {
        let Some(before) = self.view else { return view };
        for (slot, heir) in planned.iter_mut().enumerate() {
            let of_heir = |it: &Arc<CheckHealth>| it.source == heir.source && it.check == heir.name;
            if let Some(at) = before.health.checks.iter().position(of_heir) {
                view.health.checks[slot] = before.health.checks[at].clone();
                view.snapshot.take_over(slot, &before.snapshot, at);
            }
            let name = (heir.source.clone(), heir.name.clone());
            if let Some(check) = self.checks.remove(&name) {
                let check: Box<dyn Any> = check.check;
                heir.check.take_over(check);
            }
        }
        view
    }
}

/// One task per check; those that ask one source share its gate.
fn start_pollers(
    planned: Vec<Planned>,
    view: &Arc<View>,
    ended: &CancellationToken,
) -> JoinSet<Planned> {
    let mut pollers = JoinSet::new();
    let mut gates: BTreeMap<String, Arc<Semaphore>> = BTreeMap::new();
    for (slot, planned) in planned.into_iter().enumerate() {
        let gate = gates
            .entry(planned.asks.clone())
            .or_insert_with(|| Arc::new(Semaphore::new(POLLS_PER_SOURCE)));
        let poller = Poller {
            slot,
            view: view.clone(),
            gate: gate.clone(),
            shutdown: ended.clone(),
            planned,
        };
        pollers.spawn(poller.run());
    }
    pollers
}
