//! From YAML to a [`Config`] that can't be invalid.
//!
//! What a value may be is decided by the types in `values`; what values may stand together, by the
//! `validate` functions beside the types they guard: sources here, each check in its own file.
//! Every refusal names file, line and column, and what to write instead.

mod clickhouse;
mod kafka;
pub(crate) mod values;

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use secrecy::SecretString;
use serde::Deserialize;
use serde_saphyr::{Error as YamlError, Location, Spanned};

pub(crate) use self::clickhouse::{ClickHouseSource, Limits, Tls};
pub(crate) use self::kafka::KafkaSource;
use self::values::{Span, Text};

/// A configuration that was read and found valid.
#[derive(Debug)]
pub struct Config {
    pub(crate) max_series: usize,
    pub(crate) kafka: Vec<KafkaSource>,
    pub(crate) clickhouse: Vec<ClickHouseSource>,
    /// The path that serves the metrics; `/metrics` unless a flag says otherwise.
    pub telemetry_path: String,
    /// The program that is started, with `kafka-worker` as its argument, to talk to Kafka: this
    /// very program, except in tests.
    pub worker_program: PathBuf,
}

/// A configuration that can't be used: where, why, and what to write instead.
#[derive(Debug, thiserror::Error)]
#[error("{file}{at}: {message}", file = file.display())]
pub struct ConfigError {
    file: PathBuf,
    at: Position,
    message: String,
}

#[derive(Debug)]
struct Position(Option<Location>);

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(at) => write!(f, ":{}:{}", at.line(), at.column()),
            None => Ok(()),
        }
    }
}

/// Why a value that parses can't be used, and where it stands.
#[derive(Debug)]
pub(crate) struct Invalid {
    at: Location,
    message: String,
}

impl Invalid {
    pub(crate) fn new<T>(at: &Spanned<T>, message: impl Into<String>) -> Self {
        Invalid {
            at: at.referenced,
            message: message.into(),
        }
    }
}

impl Config {
    /// Reads and validates a file.
    ///
    /// # Errors
    /// When the file can't be read, is not YAML, or says something that can't be; also when a
    /// secret's file can't be read or an environment variable is not set.
    pub fn load(file: &Path) -> Result<Self, ConfigError> {
        let fail = |at, message| ConfigError {
            file: file.to_owned(),
            at: Position(at),
            message,
        };
        let text = std::fs::read_to_string(file).map_err(|error| {
            let mend = "name a readable file with --config.file";
            fail(None, format!("cannot be read ({error}): {mend}"))
        })?;
        // Without snippets: a picture of the line could show a secret that stands on it.
        let options = serde_saphyr::options! { with_snippet: false };
        let raw: Raw = serde_saphyr::from_str_with_options(&text, options)
            .map_err(|error| fail(error.location(), explain(&error)))?;
        raw.validate()
            .map_err(|invalid| fail(Some(invalid.at), invalid.message))
    }
}

/// The words for a YAML error, without the library's hints to programmers.
fn explain(error: &YamlError) -> String {
    match error {
        YamlError::Message { msg, .. } => msg.clone(),
        YamlError::SerdeUnknownField {
            field, expected, ..
        } => {
            format!(
                "unknown key `{field}`: write one of {}",
                expected.join(", ")
            )
        }
        YamlError::SerdeUnknownVariant {
            variant, expected, ..
        } => {
            format!(
                "`{variant}` is not known here: write one of {}",
                expected.join(", ")
            )
        }
        YamlError::SerdeMissingField { field, .. } => {
            format!("the key `{field}` is missing: add it")
        }
        YamlError::DuplicateMappingKey { key, .. } => match key {
            Some(key) => format!("the key `{key}` stands here twice: keep one"),
            None => "a key stands here twice: keep one".into(),
        },
        YamlError::NullIntoString { .. } => {
            "a text is expected here, and there is nothing: write it, or leave the key out".into()
        }
        YamlError::Eof { .. } => {
            "the file is empty: name at least one source under kafka or clickhouse".into()
        }
        YamlError::MultipleDocuments { .. } => {
            "a second YAML document begins here: keep one".into()
        }
        other => {
            let text = other.to_string();
            match text.rsplit_once(" at line ") {
                Some((words, _)) => words.to_owned(),
                None => text,
            }
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Raw {
    interval: Option<Spanned<Span>>,
    timeout: Option<Spanned<Span>>,
    stale_after: Option<Spanned<Span>>,
    #[serde(default = "default_max_series")]
    max_series: usize,
    #[serde(default)]
    kafka: Vec<kafka::Raw>,
    #[serde(default)]
    clickhouse: Vec<clickhouse::Raw>,
}

fn default_max_series() -> usize {
    100_000
}

impl Raw {
    fn validate(self) -> Result<Config, Invalid> {
        let defaults = Defaults {
            interval: self.interval.map_or(Span::seconds(60), |i| i.value),
            timeout: self.timeout.map_or(Span::seconds(20), |t| t.value),
            stale_after: self.stale_after,
        };
        let mut names = Names::default();
        let kafka = (self.kafka.into_iter())
            .map(|raw| raw.validate(&defaults, &mut names))
            .collect::<Result<_, _>>()?;
        let clickhouse = (self.clickhouse.into_iter())
            .map(|raw| raw.validate(&defaults, &mut names))
            .collect::<Result<_, _>>()?;
        Ok(Config {
            max_series: self.max_series,
            kafka,
            clickhouse,
            telemetry_path: "/metrics".into(),
            worker_program: this_program(),
        })
    }
}

/// This very program, also after an upgrade has replaced its file.
fn this_program() -> PathBuf {
    let running = Path::new("/proc/self/exe");
    match running.exists() {
        true => running.into(),
        false => std::env::current_exe().unwrap_or_else(|_| "dup_exporter".into()),
    }
}

/// The names of sources seen so far: unique across kinds, since they are label values.
#[derive(Default)]
struct Names(BTreeSet<String>);

impl Names {
    fn claim(&mut self, name: Spanned<Text>) -> Result<String, Invalid> {
        let text = &name.value.0;
        if text.is_empty() {
            return Err(Invalid::new(
                &name,
                "the name is empty: write one, like main",
            ));
        }
        if text == "pipelines" || !self.0.insert(text.clone()) {
            let message = format!("the name `{text}` is taken: give each source its own");
            return Err(Invalid::new(&name, message));
        }
        Ok(name.value.0)
    }
}

/// How often a check is polled, how long a poll may take, how long its figures are shown.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Timing {
    pub interval: Span,
    pub timeout: Span,
    pub stale_after: Span,
}

/// The `interval`, `timeout` and `stale_after` of one check, where it sets its own.
#[derive(Default)]
pub(crate) struct OwnTiming {
    pub interval: Option<Spanned<Span>>,
    pub timeout: Option<Spanned<Span>>,
    pub stale_after: Option<Spanned<Span>>,
}

/// What the top of the file says for every check.
pub(crate) struct Defaults {
    /// Of the checks that have no slower default of their own.
    pub interval: Span,
    timeout: Span,
    stale_after: Option<Spanned<Span>>,
}

impl Defaults {
    /// The timing of a check whose interval is `interval` unless it sets its own.
    pub(crate) fn timing(&self, interval: Span, own: OwnTiming) -> Result<Timing, Invalid> {
        let interval = own.interval.map_or(interval, |i| i.value);
        let timeout = own.timeout.map_or(self.timeout, |t| t.value);
        let stale_after = own.stale_after.as_ref().or(self.stale_after.as_ref());
        if let Some(given) = stale_after.filter(|given| given.value < interval) {
            let message = format!(
                "stale_after {} is shorter than the interval {interval} of a check, whose figures \
                 would vanish between polls: raise it, or leave it out for three intervals",
                given.value
            );
            return Err(Invalid::new(given, message));
        }
        Ok(Timing {
            interval,
            timeout,
            stale_after: stale_after.map_or(Span(interval.0 * 3), |given| given.value),
        })
    }
}

impl Timing {
    /// The time limit of a poll that starts now.
    pub(crate) fn limit(&self) -> Duration {
        self.timeout.0
    }
}

/// Reads a secret from a file, without the newline that editors leave at its end. `at` is where the
/// configuration names the file.
fn read_secret<T>(file: &str, at: &Spanned<T>) -> Result<SecretString, Invalid> {
    match std::fs::read_to_string(file) {
        Ok(text) => Ok(text.trim_end_matches(['\r', '\n']).into()),
        Err(error) => {
            // Without its name: somebody may have written the secret itself here.
            let message = format!(
                "the file that is named here cannot be read ({error}): name one that this user may \
                 read"
            );
            Err(Invalid::new(at, message))
        }
    }
}
