//! librdkafka's properties: what we set unless the user says otherwise, what we set whatever the
//! user says, which of them may be secrets, and what to say when librdkafka refuses one.

use std::collections::BTreeMap;

use rdkafka::config::RDKafkaLogLevel;
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

/// Not overridden: read-only is no matter of taste. The group is never joined (admin.rs).
const FORCED: [(&str, &str); 5] = [
    ("allow.auto.create.topics", "false"),
    ("enable.auto.commit", "false"),
    ("enable.auto.offset.store", "false"),
    ("group.id", "dup_exporter"),
    ("statistics.interval.ms", "0"),
];

/// The user's properties with ours.
pub(super) fn complete(user: BTreeMap<String, String>) -> BTreeMap<String, String> {
    let own = |pairs: &[(&str, &str)]| -> Vec<(String, String)> {
        let pair = |&(name, value): &(&str, &str)| (name.to_owned(), value.to_owned());
        pairs.iter().map(pair).collect()
    };
    let mut all: BTreeMap<String, String> = own(&DEFAULTS).into_iter().collect();
    all.extend(user);
    all.extend(own(&FORCED));
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
    let message = match error {
        KafkaError::ClientConfig(RDKafkaConfRes::RD_KAFKA_CONF_UNKNOWN, _, property, _) => {
            format!("librdkafka knows no property `{property}`")
        }
        // librdkafka's own words quote the value.
        KafkaError::ClientConfig(_, _, property, _) if is_secret(&property) => {
            format!("librdkafka does not accept the value of property `{property}`")
        }
        KafkaError::ClientConfig(_, words, property, _) => {
            format!("librdkafka does not accept property `{property}`: {words}")
        }
        KafkaError::ClientCreation(words) => format!("librdkafka refused its properties: {words}"),
        other => format!("librdkafka refused its properties: {other}"),
    };
    Error::new(Reason::Unsupported, message)
}
