//! A Kafka source: how to reach the cluster, and what its groups check watches.

mod pairs;
mod properties;

use std::collections::BTreeMap;

use secrecy::SecretString;
use serde_saphyr::Spanned;

use super::values::{Names, Pattern, Secret, Span, Text};
use super::{Defaults, Invalid, OwnTiming, SourceNames, Timing};
use crate::checks::groups;

/// A Kafka cluster.
#[derive(Debug)]
pub(crate) struct KafkaSource {
    pub name: String,
    /// Properties of librdkafka, `bootstrap.servers` among them. Any of them may be a secret.
    pub properties: BTreeMap<String, SecretString>,
    pub timing: Timing,
    pub groups: groups::Config,
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Raw {
    name: Spanned<Text>,
    bootstrap_servers: Spanned<Text>,
    #[serde(default)]
    properties: BTreeMap<properties::Name, Spanned<Secret>>,
    groups: Option<Names>,
    topics: Option<Names>,
    memberless: Option<groups::RawMemberless>,
    #[serde(default)]
    expected_members: BTreeMap<Pattern, u32>,
    max_groups: Option<usize>,
    interval: Option<Spanned<Span>>,
    timeout: Option<Spanned<Span>>,
    stale_after: Option<Spanned<Span>>,
}

impl Raw {
    pub(super) fn validate(
        self,
        defaults: &Defaults,
        names: &mut SourceNames,
    ) -> Result<KafkaSource, Invalid> {
        let name = names.claim(self.name)?;
        let own = OwnTiming {
            interval: self.interval,
            timeout: self.timeout,
            stale_after: self.stale_after,
        };
        let timing = defaults.timing(defaults.interval, own)?;
        let properties = properties::read(self.bootstrap_servers, self.properties)?;
        let groups = groups::RawConfig {
            groups: self.groups,
            topics: self.topics,
            memberless: self.memberless,
            expected_members: self.expected_members,
            max_groups: self.max_groups,
        };
        Ok(KafkaSource {
            name,
            properties,
            timing,
            groups: groups.validate(&timing)?,
        })
    }
}
