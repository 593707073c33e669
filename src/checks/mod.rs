//! The checks: one file each, read from top to bottom as configuration, families, questions, pure
//! maths, poll, tests. A new check is one file and one word in the list below.

use std::sync::Arc;

use crate::config::{ClickHouseSource, Config};
use crate::error::Error;
use crate::history::History;
use crate::poll::Planned;
use crate::sample::Family;
use crate::self_metrics::SourceHealth;
use crate::sources::clickhouse::ClickHouse;

/// Every source, in the order of the configuration.
pub struct Sources {
    /// Clients, shared by the checks of a source.
    pub clickhouse: Vec<Arc<ClickHouse>>,
    /// A cluster has one check, which owns the client.
    pub kafka: Vec<Arc<SourceHealth>>,
    /// Filled by the checks of Kafka, for those of pipelines.
    pub history: Arc<History>,
}

impl Sources {
    /// Clients for the configured sources; nothing is connected yet. `health` gives that of a
    /// source, by its name; `before` is what was known of the groups of pipelines.
    ///
    /// # Errors
    /// When a certificate can't be read or used.
    pub fn new(
        config: &Config,
        health: impl Fn(&str) -> Arc<SourceHealth>,
        before: &History,
    ) -> Result<Self, Error> {
        let clickhouse = config.clickhouse.iter();
        let clickhouse = clickhouse.map(|source| ClickHouse::new(source, health(&source.name)));
        let kafka = config.kafka.iter().map(|source| health(&source.name));
        Ok(Sources {
            clickhouse: clickhouse.collect::<Result<_, _>>()?,
            kafka: kafka.collect(),
            history: Arc::new(History::new(config, before)),
        })
    }

    /// The checks that `plan` makes of the configurations which `of` finds in ClickHouse sources.
    fn plan_clickhouse<C: Clone>(
        &self,
        config: &Config,
        of: impl Fn(&ClickHouseSource) -> &[C],
        plan: impl Fn(C, Arc<ClickHouse>) -> Option<Planned>,
    ) -> Vec<Planned> {
        let sources = config.clickhouse.iter().zip(&self.clickhouse);
        let of_source = |(source, client): (_, &Arc<ClickHouse>)| {
            let checks = of(source).iter().cloned();
            checks
                .filter_map(|check| plan(check, client.clone()))
                .collect::<Vec<_>>()
        };
        sources.flat_map(of_source).collect()
    }

    /// The health of every source, in the order of the configuration.
    pub fn health(&self) -> Vec<Arc<SourceHealth>> {
        let clickhouse = self.clickhouse.iter().map(|source| source.health());
        self.kafka.iter().cloned().chain(clickhouse).collect()
    }
}

macro_rules! checks {
    ($($check:ident),+ $(,)?) => {
        $(pub mod $check;)+

        /// The families of every check.
        pub fn families() -> Vec<&'static Family> {
            [$($check::FAMILIES),+].concat()
        }

        /// Every check that the configuration asks for.
        pub fn plan(config: &Config, sources: &Sources) -> Vec<Planned> {
            let mut planned = Vec::new();
            $(planned.extend($check::plan(config, sources));)+
            planned
        }
    };
}

mod scan;

checks!(groups, table, ages, summary, part_log, pipelines);
