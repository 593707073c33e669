//! The properties that a configuration gives to librdkafka: read from where they stand, and refused
//! where librdkafka would not take them, the exporter sets them itself, or they do not go together.

use std::collections::BTreeMap;

use secrecy::{ExposeSecret, SecretString};
use serde::de::{self, Deserialize, Deserializer};
use serde_saphyr::{Location, Spanned};

use super::pairs;
use crate::config::values::{Secret, Text};
use crate::config::{Invalid, read_secret};
use crate::sources::kafka;

/// The name of a librdkafka property, or of one with `_file` behind it.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Name(String);

impl<'de> Deserialize<'de> for Name {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = String::deserialize(deserializer)?;
        let property = name.strip_suffix("_file").unwrap_or(&name);
        let mend = match (property, kafka::forced(property)) {
            ("bootstrap.servers" | "metadata.broker.list", _) => "write bootstrap_servers".into(),
            (_, Some(why)) => format!("leave it out, since {why}"),
            _ => return Ok(Name(name)),
        };
        Err(de::Error::custom(format!(
            "`{name}` can't be set here: {mend}"
        )))
    }
}

/// A value, and where it stands.
pub(super) struct Given {
    pub value: SecretString,
    pub at: Location,
}

/// What stands under `properties`, with the brokers, all of it fit for librdkafka.
pub(super) fn read(
    servers: Spanned<Text>,
    raw: BTreeMap<Name, Spanned<Secret>>,
) -> Result<BTreeMap<String, SecretString>, Invalid> {
    if servers.value.0.trim().is_empty() {
        let message = "no broker is named: write host:port, and more of them after commas";
        return Err(Invalid::new(&servers, message));
    }
    let mut given = BTreeMap::new();
    for (Name(name), value) in raw {
        let (name, value) = read_one(&name, &value)?;
        let at = value.at;
        if given.insert(name.clone(), value).is_some() {
            let message = format!("`{name}` is given both in place and by a file: keep one");
            return Err(Invalid { at, message });
        }
    }
    pairs::check(&given)?;
    let values = given.into_iter().map(|(name, given)| (name, given.value));
    let servers = ("bootstrap.servers".to_owned(), servers.value.0.into());
    Ok(values.chain([servers]).collect())
}

fn read_one(name: &str, value: &Spanned<Secret>) -> Result<(String, Given), Invalid> {
    let in_place = &value.value.0;
    let (property, secret, by_file) = match name.strip_suffix("_file") {
        Some(property) => (
            property,
            read_secret(in_place.expose_secret(), value)?,
            true,
        ),
        None => (name, in_place.clone(), false),
    };
    kafka::accepts(property, secret.expose_secret(), by_file).map_err(|error| {
        let mend = "look it up in librdkafka's CONFIGURATION.md, or leave it out";
        Invalid::new(value, format!("{error}: {mend}"))
    })?;
    let given = Given {
        value: secret,
        at: value.referenced,
    };
    Ok((property.to_owned(), given))
}
