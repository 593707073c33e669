//! Pipelines: which groups, tables and summaries are layers of one flow.
//!
//! A layer must be watched by the check that is about it; else its figures would be missing where
//! somebody relies on them.

use std::collections::BTreeSet;

use serde::Deserialize;
use serde::de::{self, Deserializer};
use serde_saphyr::Spanned;

use super::values::{Name, Span};
use super::{ClickHouseSource, Defaults, Invalid, KafkaSource, OwnTiming, Timing};
use crate::checks::table;

const DEFAULT_WINDOW: Span = Span::seconds(3_600);

/// Layers of one flow.
#[derive(Debug, Clone)]
pub(crate) struct Pipeline {
    pub name: String,
    pub kafka: Option<KafkaLayer>,
    pub table: Option<TableLayer>,
    pub summary: Option<TableLayer>,
    /// Over which rows are compared with messages.
    pub window: Span,
    /// Rows that one message makes by design.
    pub expected_rows_per_message: f64,
    /// Whether rows may collapse before or at the write, so that fewer rows are no loss.
    pub collapses: bool,
    /// The pipeline that runs the same code; of this exporter, or of another.
    pub control: Option<String>,
    pub timing: Timing,
}

/// A group's reading of some topics.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct KafkaLayer {
    pub source: String,
    pub group: String,
    pub topics: Vec<String>,
}

/// A raw table, or a summary.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct TableLayer {
    pub source: String,
    pub database: String,
    pub table: String,
}

#[cfg(test)]
impl Pipeline {
    /// A pipeline that only reads from Kafka, with a window of an hour.
    pub(crate) fn for_tests(name: &str, source: &str, group: &str, topics: &[&str]) -> Self {
        Pipeline {
            name: name.into(),
            kafka: Some(KafkaLayer {
                source: source.into(),
                group: group.into(),
                topics: topics.iter().map(|&topic| topic.into()).collect(),
            }),
            table: None,
            summary: None,
            window: DEFAULT_WINDOW,
            expected_rows_per_message: 1.0,
            collapses: false,
            control: None,
            timing: Timing {
                interval: Span::seconds(60),
                timeout: Span::seconds(20),
                stale_after: Span::seconds(180),
            },
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Raw {
    name: Spanned<Name>,
    kafka: Option<RawKafka>,
    table: Option<RawTable>,
    summary: Option<RawTable>,
    window: Option<Spanned<Span>>,
    expected_rows_per_message: Option<Rate>,
    #[serde(default)]
    collapses: bool,
    control: Option<Spanned<Name>>,
    interval: Option<Spanned<Span>>,
    timeout: Option<Spanned<Span>>,
    stale_after: Option<Spanned<Span>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawKafka {
    source: Spanned<Name>,
    group: Spanned<Name>,
    topics: Spanned<Vec<Spanned<Name>>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawTable {
    source: Spanned<Name>,
    database: Name,
    table: Spanned<Name>,
}

/// A number above 0.
struct Rate(f64);

impl<'de> Deserialize<'de> for Rate {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match f64::deserialize(deserializer)? {
            rate if rate.is_finite() && rate > 0.0 => Ok(Rate(rate)),
            _ => Err(de::Error::custom(
                "a message makes more than 0 rows: write a number above 0, like 1 or 2.5",
            )),
        }
    }
}

/// The sources that layers may be of, and the layers that pipelines have taken so far.
pub(super) struct Watched<'a> {
    pub kafka: &'a [KafkaSource],
    pub clickhouse: &'a [ClickHouseSource],
    names: BTreeSet<String>,
    layers: BTreeSet<Vec<String>>,
}

impl<'a> Watched<'a> {
    pub(super) fn new(kafka: &'a [KafkaSource], clickhouse: &'a [ClickHouseSource]) -> Self {
        Watched {
            kafka,
            clickhouse,
            names: BTreeSet::new(),
            layers: BTreeSet::new(),
        }
    }

    /// A layer belongs to one pipeline only: its figures could not tell which.
    fn claim(&mut self, at: &Spanned<Name>, what: &str, layer: &[&str]) -> Result<(), Invalid> {
        let layer = [what]
            .iter()
            .chain(layer)
            .map(|&part| part.to_owned())
            .collect();
        if self.layers.insert(layer) {
            return Ok(());
        }
        let message = format!(
            "{what} {} is a layer of a pipeline already: keep it in one",
            at.value.0
        );
        Err(Invalid::new(at, message))
    }
}

impl Raw {
    pub(super) fn validate(
        self,
        defaults: &Defaults,
        watched: &mut Watched,
    ) -> Result<Pipeline, Invalid> {
        let name = self.name.value.0.clone();
        if !watched.names.insert(name.clone()) {
            let message = format!("the name `{name}` is taken: give each pipeline its own");
            return Err(Invalid::new(&self.name, message));
        }
        if self.kafka.is_none() && self.table.is_none() && self.summary.is_none() {
            let message = "the pipeline has no layer: write kafka, table or summary";
            return Err(Invalid::new(&self.name, message));
        }
        if let Some(control) = self
            .control
            .as_ref()
            .filter(|control| control.value.0 == name)
        {
            let message = "a pipeline can't be its own control: name another, or leave it out";
            return Err(Invalid::new(control, message));
        }
        let own = OwnTiming {
            interval: self.interval,
            timeout: self.timeout,
            stale_after: self.stale_after,
        };
        let timing = defaults.timing(defaults.interval, own)?;
        let kafka = self
            .kafka
            .map(|kafka| kafka.validate(watched))
            .transpose()?;
        Ok(Pipeline {
            window: window(self.window, kafka.as_ref(), watched, timing.interval)?,
            kafka,
            table: self
                .table
                .map(|table| table.validate("table", watched))
                .transpose()?,
            summary: self
                .summary
                .map(|table| table.validate("summary", watched))
                .transpose()?,
            name,
            expected_rows_per_message: self.expected_rows_per_message.map_or(1.0, |rate| rate.0),
            collapses: self.collapses,
            control: self.control.map(|control| control.value.0),
            timing,
        })
    }
}

/// Rows are compared with messages between two looks at the group.
fn window(
    raw: Option<Spanned<Span>>,
    kafka: Option<&KafkaLayer>,
    watched: &Watched,
    interval: Span,
) -> Result<Span, Invalid> {
    let source = kafka.and_then(|kafka| watched.kafka.iter().find(|s| s.name == kafka.source));
    let between_looks = source.map_or(interval, |source| source.timing.interval);
    let least = Span(between_looks.0 * 3);
    match raw {
        Some(window) if window.value < least => {
            let message = format!(
                "window {} holds hardly two looks at the group, which come every {between_looks}: make \
                 it at least {least}",
                window.value
            );
            Err(Invalid::new(&window, message))
        }
        Some(window) => Ok(window.value),
        None => Ok(DEFAULT_WINDOW.max(least)),
    }
}

impl RawKafka {
    fn validate(self, watched: &mut Watched) -> Result<KafkaLayer, Invalid> {
        let is_named = |source: &&KafkaSource| source.name == self.source.value.0;
        let Some(source) = watched.kafka.iter().find(is_named) else {
            return Err(no_such_source(&self.source, "kafka"));
        };
        let group = &self.group.value.0;
        if !source.groups.groups.is_match(group) {
            let message = format!(
                "groups of the source {} leaves the group {group} out: include it there",
                source.name
            );
            return Err(Invalid::new(&self.group, message));
        }
        if self.topics.value.is_empty() {
            let message = "no topic is named: write those whose messages become rows of the table";
            return Err(Invalid::new(&self.topics, message));
        }
        for topic in &self.topics.value {
            if !source.groups.topics.is_match(&topic.value.0) {
                let message = format!(
                    "topics of the source {} leaves the topic {} out: include it there",
                    source.name, topic.value.0
                );
                return Err(Invalid::new(topic, message));
            }
            watched.claim(
                topic,
                "topic",
                &[&self.source.value.0, group, &topic.value.0],
            )?;
        }
        Ok(KafkaLayer {
            source: self.source.value.0,
            group: self.group.value.0,
            topics: self
                .topics
                .value
                .into_iter()
                .map(|topic| topic.value.0)
                .collect(),
        })
    }
}

impl RawTable {
    fn validate(self, layer: &str, watched: &mut Watched) -> Result<TableLayer, Invalid> {
        let is_named = |source: &&ClickHouseSource| source.name == self.source.value.0;
        let Some(source) = watched.clickhouse.iter().find(is_named) else {
            return Err(no_such_source(&self.source, "clickhouse"));
        };
        let (database, table) = (&self.database.0, &self.table.value.0);
        let (is_watched, mend) = match layer {
            "summary" => (
                is_summary(source, database, table),
                "name it under summaries",
            ),
            _ => (
                has_rows_counted(source, database, table),
                "name it under tables, or include it in part_log",
            ),
        };
        if !is_watched {
            let message = format!(
                "no check of the source {} is about {database}.{table}: {mend} there",
                source.name
            );
            return Err(Invalid::new(&self.table, message));
        }
        watched.claim(&self.table, layer, &[&source.name, database, table])?;
        Ok(TableLayer {
            source: self.source.value.0,
            database: self.database.0,
            table: self.table.value.0,
        })
    }
}

fn is_summary(source: &ClickHouseSource, database: &str, table: &str) -> bool {
    let mut summaries = source.summaries.iter();
    summaries.any(|summary| summary.database == database && summary.table == table)
}

fn has_rows_counted(source: &ClickHouseSource, database: &str, table: &str) -> bool {
    let is_in_log =
        |log: &crate::checks::part_log::Config| log.tables.is_match(&format!("{database}.{table}"));
    source.part_log.as_ref().is_some_and(is_in_log)
        || (source.tables.iter()).any(|config: &table::Config| config.may_be_about(database, table))
}

fn no_such_source(at: &Spanned<Name>, kind: &str) -> Invalid {
    let message = format!(
        "{kind} has no source `{}`: name one that it has",
        at.value.0
    );
    Invalid::new(at, message)
}
