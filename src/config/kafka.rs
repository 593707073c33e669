//! A Kafka source: how to reach the cluster, and what its groups check watches.

use std::collections::BTreeMap;

use secrecy::{ExposeSecret, SecretString};
use serde::de::{self, Deserialize, Deserializer};
use serde_saphyr::Spanned;

use super::values::{Names, Pattern, Secret, Span, Text};
use super::{Defaults, Invalid, OwnTiming, SourceNames, Timing, read_secret};
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
    properties: BTreeMap<Property, Spanned<Secret>>,
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
        let properties = properties(self.bootstrap_servers, self.properties)?;
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

/// The name of a librdkafka property, or of one with `_file` behind it.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Property(String);

impl<'de> Deserialize<'de> for Property {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = String::deserialize(deserializer)?;
        let mend = match name.trim_end_matches("_file") {
            "bootstrap.servers" | "metadata.broker.list" => "write bootstrap_servers",
            "group.id" => "leave it out, since dup_exporter joins no group",
            _ => return Ok(Property(name)),
        };
        Err(de::Error::custom(format!(
            "`{name}` can't be set here: {mend}"
        )))
    }
}

fn properties(
    servers: Spanned<Text>,
    raw: BTreeMap<Property, Spanned<Secret>>,
) -> Result<BTreeMap<String, SecretString>, Invalid> {
    if servers.value.0.trim().is_empty() {
        let message = "no broker is named: write host:port, and more of them after commas";
        return Err(Invalid::new(&servers, message));
    }
    let mut properties = BTreeMap::from([("bootstrap.servers".into(), servers.value.0.into())]);
    for (Property(name), value) in raw {
        let (name, secret) = match name.strip_suffix("_file") {
            Some(name) => (
                name.to_owned(),
                read_secret(value.value.0.expose_secret(), &value)?,
            ),
            None => (name, value.value.0.clone()),
        };
        if properties.insert(name.clone(), secret).is_some() {
            let message = format!("`{name}` is given both in place and by a file: keep one");
            return Err(Invalid::new(&value, message));
        }
    }
    Ok(properties)
}
