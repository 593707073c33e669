//! librdkafka's properties: what we set unless the user says otherwise, what we set whatever the
//! user says, which of them may be secrets, and what to say when librdkafka refuses one.

use std::collections::BTreeMap;

use rdkafka::config::{ClientConfig, RDKafkaLogLevel};
use rdkafka::error::KafkaError;
use rdkafka::types::RDKafkaConfRes;

use crate::error::{Error, Reason};

/// Overridden by the user's properties.
const DEFAULTS: [(&str, &str); 8] = [
    ("client.id", "dup_exporter"),
    // A broker that hangs is given up within one poll, and found again within the next.
    ("socket.timeout.ms", "10000"),
    ("socket.connection.setup.timeout.ms", "10000"),
    ("socket.keepalive.enable", "true"),
    ("reconnect.backoff.max.ms", "2000"),
    ("log.connection.close", "false"),
    // The telemetry of KIP-714 would be a write.
    ("enable.metrics.push", "false"),
    ("log_level", "5"),
];

/// Not overridden, and why: read-only is no matter of taste. The group is never joined (admin.rs).
const FORCED: [(&str, &str, &str); 5] = [
    (
        "allow.auto.create.topics",
        "false",
        "dup_exporter creates no topic",
    ),
    (
        "enable.auto.commit",
        "false",
        "dup_exporter commits no offset",
    ),
    (
        "enable.auto.offset.store",
        "false",
        "dup_exporter commits no offset",
    ),
    ("group.id", "dup_exporter", "dup_exporter joins no group"),
    (
        "statistics.interval.ms",
        "0",
        "dup_exporter reads no statistics of librdkafka",
    ),
];

/// Why the exporter sets this property itself; `None`: the user may set it.
pub(crate) fn forced(property: &str) -> Option<&'static str> {
    let (_, _, why) = FORCED.iter().find(|(name, _, _)| *name == property)?;
    Some(why)
}

/// Whether librdkafka knows this property and takes its value. No client is made.
///
/// # Errors
/// In words that repeat the value only if it is no secret; what a file holds always may be one.
pub(crate) fn accepts(property: &str, value: &str, by_file: bool) -> Result<(), Error> {
    let mut config = ClientConfig::new();
    config.set(property, value);
    match config.create_native_config() {
        Ok(_) => Ok(()),
        Err(error) => Err(refused(error, by_file)),
    }
}

/// The user's properties with ours.
pub(super) fn complete(user: BTreeMap<String, String>) -> BTreeMap<String, String> {
    let own = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
    let mut all: BTreeMap<String, String> = DEFAULTS.map(own).into();
    all.extend(user);
    all.extend(FORCED.map(|(name, value, _)| own((name, value))));
    all
}

/// Whether the value of this property may be a secret. Rather one too many than one too few.
pub(super) fn is_secret(property: &str) -> bool {
    const PARTS: [&str; 8] = [
        "password",
        "secret",
        "pem",
        "oauthbearer.config",
        "passphrase",
        "assertion",
        "token",
        "jaas",
    ];
    PARTS.iter().any(|part| property.contains(part))
}

/// How much librdkafka logs: `log_level`, or everything when `debug` names a context.
pub(super) fn log_level(properties: &BTreeMap<String, String>) -> RDKafkaLogLevel {
    if properties.contains_key("debug") {
        return RDKafkaLogLevel::Debug;
    }
    let level = properties.get("log_level").map(String::as_str);
    match level.and_then(|level| level.parse().ok()).unwrap_or(5) {
        ..=0 => RDKafkaLogLevel::Emerg,
        1 => RDKafkaLogLevel::Alert,
        2 => RDKafkaLogLevel::Critical,
        3 => RDKafkaLogLevel::Error,
        4 => RDKafkaLogLevel::Warning,
        5 => RDKafkaLogLevel::Notice,
        6 => RDKafkaLogLevel::Info,
        7.. => RDKafkaLogLevel::Debug,
    }
}

/// Why no client could be made.
pub(super) fn refusal(error: KafkaError) -> Error {
    refused(error, false)
}

fn refused(error: KafkaError, may_be_secret: bool) -> Error {
    let message = match error {
        KafkaError::ClientConfig(RDKafkaConfRes::RD_KAFKA_CONF_UNKNOWN, _, property, _) => {
            format!("librdkafka knows no property `{property}`")
        }
        // librdkafka's own words quote the value.
        KafkaError::ClientConfig(_, _, property, _) if may_be_secret || is_secret(&property) => {
            format!("librdkafka does not accept the value of property `{property}`")
        }
        KafkaError::ClientConfig(_, words, property, _) => {
            let words = words.trim_end();
            format!("librdkafka does not accept property `{property}` ({words})")
        }
        KafkaError::ClientCreation(words) => format!("librdkafka refused its properties: {words}"),
        other => format!("librdkafka refused its properties: {other}"),
    };
    Error::new(Reason::Unsupported, message)
}
