//! From YAML to a [`Config`] that can't be invalid.
//!
//! What a value may be is decided by the types in `values`; what values may stand together, by the
//! `validate` functions beside the types they guard: sources here, each check in its own file.
//! Every refusal names file, line and column, and what to write instead.

mod clickhouse;
mod explain;
mod kafka;
mod pipelines;
pub(crate) mod values;

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use secrecy::SecretString;
use serde::Deserialize;
use serde_saphyr::{Location, Spanned};

pub(crate) use self::clickhouse::{ClickHouseSource, Limits, Tls};
use self::explain::explain;
pub(crate) use self::kafka::KafkaSource;
use self::pipelines::Watched;
pub(crate) use self::pipelines::{KafkaLayer, Pipeline, TableLayer};
use self::values::{Span, Text};

/// A configuration that was read and found valid.
#[derive(Debug)]
pub struct Config {
    file: PathBuf,
    pub(crate) max_series: usize,
    pub(crate) kafka: Vec<KafkaSource>,
    pub(crate) clickhouse: Vec<ClickHouseSource>,
    pub(crate) pipelines: Vec<Pipeline>,
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
            let mend = match error.kind() {
                io::ErrorKind::InvalidData => "save it as UTF-8",
                _ => "name a readable file with --config.file",
            };
            fail(None, format!("can't be read ({error}): {mend}"))
        })?;
        // Without snippets: a picture of the line could show a secret that stands on it.
        let options = serde_saphyr::options! { with_snippet: false };
        let raw: Spanned<Raw> = serde_saphyr::from_str_with_options(&text, options)
            .map_err(|error| fail(error.location(), explain(&error)))?;
        validate(raw, file).map_err(|invalid| fail(Some(invalid.at), invalid.message))
    }

    /// Reads and validates the same file again; what flags have set stays.
    ///
    /// # Errors
    /// As [`Config::load`].
    pub fn load_again(&self) -> Result<Self, ConfigError> {
        Ok(Config {
            telemetry_path: self.telemetry_path.clone(),
            worker_program: self.worker_program.clone(),
            ..Config::load(&self.file)?
        })
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
    #[serde(default)]
    pipelines: Vec<pipelines::Raw>,
}

fn default_max_series() -> usize {
    100_000
}

fn validate(raw: Spanned<Raw>, file: &Path) -> Result<Config, Invalid> {
    if raw.value.kafka.is_empty() && raw.value.clickhouse.is_empty() {
        let message = "no source is named: write at least one under kafka or clickhouse";
        return Err(Invalid::new(&raw, message));
    }
    let raw = raw.value;
    let defaults = Defaults {
        interval: raw.interval.map_or(Span::seconds(60), |i| i.value),
        timeout: raw.timeout.map_or(Span::seconds(20), |t| t.value),
        stale_after: raw.stale_after,
    };
    let mut names = SourceNames::default();
    let kafka: Vec<_> = (raw.kafka.into_iter())
        .map(|raw| raw.validate(&defaults, &mut names))
        .collect::<Result<_, _>>()?;
    let clickhouse: Vec<_> = (raw.clickhouse.into_iter())
        .map(|raw| raw.validate(&defaults, &mut names))
        .collect::<Result<_, _>>()?;
    let mut watched = Watched::new(&kafka, &clickhouse);
    let pipelines = (raw.pipelines.into_iter())
        .map(|raw| raw.validate(&defaults, &mut watched))
        .collect::<Result<_, _>>()?;
    Ok(Config {
        file: file.to_owned(),
        max_series: raw.max_series,
        kafka,
        clickhouse,
        pipelines,
        telemetry_path: "/metrics".into(),
        worker_program: this_program(),
    })
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
struct SourceNames(BTreeSet<String>);

impl SourceNames {
    fn claim(&mut self, name: Spanned<Text>) -> Result<String, Invalid> {
        let text = &name.value.0;
        if text.is_empty() {
            return Err(Invalid::new(
                &name,
                "the name is empty: write one, like main",
            ));
        }
        if text == "pipelines" {
            let message = "the name `pipelines` is kept for the exporter: choose another";
            return Err(Invalid::new(&name, message));
        }
        if !self.0.insert(text.clone()) {
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

/// Refuses a `stale_after` that one slow poll would exceed.
fn must_span_two(stale_after: &Spanned<Span>, interval: Span) -> Result<(), Invalid> {
    let least = Span(interval.0 * 2);
    if stale_after.value >= least {
        return Ok(());
    }
    let message = format!(
        "stale_after {} is shorter than two intervals of {interval}, so figures would vanish between \
         polls: make it at least {least}, or leave it out for three intervals",
        stale_after.value
    );
    Err(Invalid::new(stale_after, message))
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
        let follows_the_top = own.interval.is_none() && interval == self.interval;
        let interval = own.interval.map_or(interval, |i| i.value);
        let timeout = own.timeout.map_or(self.timeout, |t| t.value);
        let common = self.stale_after.as_ref();
        if let Some(own) = &own.stale_after {
            must_span_two(own, interval)?;
        } else if let Some(common) = common.filter(|_| follows_the_top) {
            must_span_two(common, interval)?;
        }
        // What the top says is meant for the quick checks; a slower one keeps its default.
        let common = common.map(|c| c.value).filter(|c| c.0 >= interval.0 * 2);
        let stale_after = own.stale_after.map(|own| own.value).or(common);
        Ok(Timing {
            interval,
            timeout,
            stale_after: stale_after.unwrap_or(Span(interval.0 * 3)),
        })
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
                "the file that is named here can't be read ({error}): name one that the exporter \
                 may read"
            );
            Err(Invalid::new(at, message))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use secrecy::ExposeSecret;

    const ODD_PASSWORD: &str = "p#a@s%s$x,y}%41";

    const LEAST: &str = "\
kafka:
  - name: main
    bootstrap_servers: broker:9092
clickhouse:
  - name: logs
    url: http://clickhouse:8123
    tables:
      - {database: audit, table: playlog, key: [device_id], time: ts}
    summaries:
      - &off
        database: audit
        table: summary
        count: total
        day: day
        raw: {database: audit, table: playlog, key: [device_id], day: toDate(ts)}
      - <<: *off
        table: summary_of_keys
        keys: exact
";

    fn load(yaml: &str) -> Config {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), yaml).unwrap();
        Config::load(file.path()).unwrap_or_else(|error| panic!("{error}\n{yaml}"))
    }

    fn seconds(timing: Timing) -> [u64; 3] {
        [timing.interval, timing.timeout, timing.stale_after].map(Span::as_secs)
    }

    fn texts(patterns: &[values::Pattern]) -> Vec<&str> {
        patterns.iter().map(|p| p.0.as_str()).collect()
    }

    #[test]
    fn what_is_left_out_is_as_documented() {
        let config = load(LEAST);
        assert_eq!(config.max_series, 100_000);
        let kafka = &config.kafka[0];
        assert_eq!(seconds(kafka.timing), [60, 20, 180]);
        assert_eq!(kafka.groups.max_groups, 5_000);
        assert_eq!(kafka.groups.window, Span::seconds(900));
        for names in [&kafka.groups.groups, &kafka.groups.topics] {
            assert_eq!(texts(&names.include), [".*"]);
            assert_eq!(texts(&names.exclude), ["^__"]);
        }
        let clickhouse = &config.clickhouse[0];
        let limits = &clickhouse.limits;
        assert_eq!(limits.max_threads, 2);
        assert_eq!(limits.max_memory_usage.0, 2 << 30);
        assert_eq!(limits.max_rows_to_read, 500_000_000);
        let part_log = clickhouse.part_log.as_ref().unwrap();
        assert_eq!(seconds(part_log.timing), [60, 20, 180]);
        assert_eq!(part_log.max_tables, 5_000);
        assert_eq!(texts(&part_log.tables.include), [".*"]);
        assert_eq!(texts(&part_log.tables.exclude), [r"^system\."]);
        let table = &clickhouse.tables[0];
        assert_eq!(seconds(table.timing), [300, 20, 900]);
        assert_eq!(table.windows, [600, 3_600].map(Span::seconds));
        assert!(!table.force);
        let [summary, of_keys] = &clickhouse.summaries[..] else {
            panic!("two summaries: {clickhouse:?}");
        };
        assert_eq!(seconds(summary.timing), [300, 20, 900]);
        assert_eq!(seconds(of_keys.timing), [3_600, 20, 10_800]);
        assert_eq!(summary.periods.len(), 4);
        assert_eq!(summary.min_coverage, 1.0);
        assert!(summary.timezone.is_none() && summary.exact_keys.is_none());
        assert!(of_keys.exact_keys.is_some());
    }

    #[test]
    fn a_check_follows_the_top_of_the_file_unless_it_says_otherwise() {
        let top = "interval: 30s\ntimeout: 5s\nstale_after: 2h\n";
        let config = load(&format!("{top}{LEAST}"));
        assert_eq!(seconds(config.kafka[0].timing), [30, 5, 7_200]);
        let clickhouse = &config.clickhouse[0];
        assert_eq!(seconds(clickhouse.tables[0].timing), [300, 5, 7_200]);
        let own = "time: ts, interval: 1m, timeout: 7s, stale_after: 2m";
        let config = load(&format!("{top}{LEAST}").replace("time: ts", own));
        let table = &config.clickhouse[0].tables[0];
        assert_eq!(seconds(table.timing), [60, 7, 120]);
    }

    #[test]
    fn what_the_top_says_of_staleness_is_not_for_checks_that_are_too_slow_for_it() {
        let config = load(&format!("stale_after: 3m\n{LEAST}"));
        assert_eq!(seconds(config.kafka[0].timing), [60, 20, 180]);
        let table = &config.clickhouse[0].tables[0];
        assert_eq!(seconds(table.timing), [300, 20, 900]);
        let quick = LEAST.replace("time: ts", "time: ts, interval: 5s");
        let quick = quick.replace("9092", "9092\n    interval: 5s");
        let quick = quick.replace("8123", "8123\n    part_log: {interval: 5s}");
        let config = load(&format!("stale_after: 30s\n{quick}"));
        assert_eq!(seconds(config.kafka[0].timing), [5, 20, 30]);
        let table = &config.clickhouse[0].tables[0];
        assert_eq!(seconds(table.timing), [5, 20, 30]);
    }

    #[test]
    fn a_part_log_of_no_table_is_no_check() {
        let none = LEAST.replace("8123", "8123\n    part_log: {include: []}");
        assert!(load(&none).clickhouse[0].part_log.is_none());
        // And has no timing that could be refused.
        let off = "clickhouse: [{name: c, url: 'http://h', part_log: {include: []}}]\n";
        load(&format!("stale_after: 30s\n{off}"));
    }

    #[test]
    fn a_long_interval_lengthens_what_is_made_of_intervals() {
        let config = load(&format!("interval: 20m\n{LEAST}"));
        assert_eq!(config.kafka[0].groups.window, Span::seconds(2_400));
        let half_hour = LEAST.replace("time: ts", "time: ts, interval: 30m");
        let table = &load(&half_hour).clickhouse[0].tables[0];
        assert_eq!(table.windows, [Span::seconds(3_600)]);
    }

    #[test]
    fn r22_an_odd_password_comes_unchanged_into_the_properties_of_kafka() {
        let secret = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(secret.path(), format!("{ODD_PASSWORD}\r\n")).unwrap();
        for property in [
            format!("sasl.password: '{ODD_PASSWORD}'"),
            format!("sasl.password_file: {}", secret.path().display()),
        ] {
            let config = load(&format!(
                "kafka:\n  - name: main\n    bootstrap_servers: b:9092\n    properties:\n      \
                 security.protocol: SASL_SSL\n      sasl.mechanism: PLAIN\n      \
                 sasl.username: mon\n      {property}\n"
            ));
            let password = config.kafka[0].properties["sasl.password"].expose_secret();
            assert_eq!(password, ODD_PASSWORD, "{property}");
        }
    }

    #[test]
    fn numbers_and_booleans_of_kafka_need_no_quotes() {
        let config = load(
            "kafka:\n  - name: main\n    bootstrap_servers: b:9092\n    properties:\n      \
             security.protocol: SSL\n      enable.ssl.certificate.verification: false\n      \
             socket.timeout.ms: 5000\n",
        );
        let value = |name| config.kafka[0].properties[name].expose_secret();
        assert_eq!(value("enable.ssl.certificate.verification"), "false");
        assert_eq!(value("socket.timeout.ms"), "5000");
    }

    #[test]
    fn r21_a_configuration_is_debugged_without_its_secrets() {
        let config = load(
            "kafka:\n  - {name: k, bootstrap_servers: b, properties: {security.protocol: SSL, \
             ssl.keystore.location: k, ssl.keystore.password: S3cr3t}}\n\
             clickhouse:\n  - {name: a, url: 'http://u:S3cr3t@h'}\n  \
             - {name: b, url: http://h, password: S3cr3t}\n",
        );
        assert!(!format!("{config:?}").contains("S3cr3t"));
    }
}
