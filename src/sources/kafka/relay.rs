//! What the worker writes to stderr, on its way to the exporter's log: without secrets, one line
//! each, at a level of our own, cut when long, and counted instead of written when too many.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncRead, BufReader};
use tokio::time::Instant;
use tracing::Level;

use super::properties::is_secret;

/// Lines a second; the rest is counted.
const RATE: u32 = 20;
/// Bytes of a line; the rest is cut.
const LENGTH: usize = 2000;

/// The secrets of one source, to be taken out of text.
#[derive(Clone)]
pub(super) struct Mask(Arc<[String]>);

impl Mask {
    pub fn new(properties: &BTreeMap<String, String>) -> Self {
        let mut secrets: Vec<String> = properties
            .iter()
            .filter(|(name, value)| is_secret(name) && !value.is_empty())
            // A key in PEM form would be logged line by line, if at all.
            .flat_map(|(_, value)| value.lines().map(str::to_owned).chain([value.clone()]))
            .filter(|secret| !secret.trim().is_empty())
            .collect();
        // One secret may be a part of another.
        secrets.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
        Mask(secrets.into())
    }

    /// The text with `***` in the place of every secret.
    pub fn apply(&self, text: &str) -> String {
        let replace = |text: String, secret: &String| text.replace(secret.as_str(), "***");
        self.0.iter().fold(text.to_owned(), replace)
    }

    /// Whether the text is or holds a secret. Very short ones are in too many texts by chance.
    pub fn finds(&self, text: &str) -> bool {
        let finds = |secret: &String| {
            text == secret || (secret.len() >= 6 && text.contains(secret.as_str()))
        };
        self.0.iter().any(finds)
    }
}

/// Writes a worker's stderr to the log, until it ends.
pub(super) async fn relay(stderr: impl AsyncRead + Unpin, source: String, mask: Mask) {
    let mut stderr = BufReader::new(stderr);
    let mut gate = Gate::new(Instant::now());
    while let Some(line) = next_line(&mut stderr).await {
        let (open, dropped) = gate.pass(Instant::now());
        if dropped > 0 {
            tracing::warn!(target: "kafka", source, "{dropped} more lines were not logged");
        }
        if open {
            log(&source, &mask.apply(&line));
        }
    }
}

fn log(source: &str, line: &str) {
    let (level, message) = parse(line);
    match level {
        Level::ERROR => tracing::error!(target: "kafka", source, "{message}"),
        Level::WARN => tracing::warn!(target: "kafka", source, "{message}"),
        Level::INFO => tracing::info!(target: "kafka", source, "{message}"),
        _ => tracing::debug!(target: "kafka", source, "{message}"),
    }
}

/// librdkafka writes `%LEVEL|TIME|FACILITY|CLIENT| message`; anything else is a last word. What it
/// calls an error, such as a broker that refuses, is a detail here: the poll tells what came of it.
fn parse(line: &str) -> (Level, &str) {
    let mut parts = line.splitn(5, '|');
    let level = match parts.next() {
        Some("%0" | "%1" | "%2") => Level::ERROR,
        Some("%3" | "%4") => Level::INFO,
        Some("%5" | "%6" | "%7") => Level::DEBUG,
        _ => return (Level::WARN, line),
    };
    (level, parts.nth(3).unwrap_or(line).trim())
}

/// The next line, cut at [`LENGTH`] bytes; `None` at the end.
async fn next_line(input: &mut (impl AsyncBufRead + Unpin)) -> Option<String> {
    let mut line = Vec::new();
    loop {
        let chunk = input.fill_buf().await.ok()?;
        if chunk.is_empty() {
            return (!line.is_empty()).then(|| String::from_utf8_lossy(&line).into_owned());
        }
        let end = chunk.iter().position(|&byte| byte == b'\n');
        let part = &chunk[..end.unwrap_or(chunk.len())];
        line.extend(part.iter().take(LENGTH - line.len()));
        let used = end.map_or(chunk.len(), |end| end + 1);
        input.consume(used);
        if end.is_some() {
            return Some(String::from_utf8_lossy(&line).into_owned());
        }
    }
}

/// Lets [`RATE`] lines a second through.
struct Gate {
    since: Instant,
    passed: u32,
    dropped: u64,
}

impl Gate {
    fn new(now: Instant) -> Self {
        Gate {
            since: now,
            passed: 0,
            dropped: 0,
        }
    }

    /// Whether this line may pass, and how many were dropped in the second that has just ended.
    fn pass(&mut self, now: Instant) -> (bool, u64) {
        let mut dropped = 0;
        if now.duration_since(self.since) >= Duration::from_secs(1) {
            dropped = std::mem::take(&mut self.dropped);
            self.since = now;
            self.passed = 0;
        }
        if self.passed < RATE {
            self.passed += 1;
            return (true, dropped);
        }
        self.dropped += 1;
        (false, dropped)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mask(pairs: &[(&str, &str)]) -> Mask {
        let pair = |&(name, value): &(&str, &str)| (name.to_owned(), value.to_owned());
        Mask::new(&pairs.iter().map(pair).collect())
    }

    #[test]
    fn secrets_are_masked_and_harmless_properties_are_not() {
        let mask = mask(&[
            ("sasl.password", "hunter2"),
            ("sasl.oauthbearer.client.secret", "hunter2-longer"),
            ("ssl.key.pem", "-----BEGIN\nMIIE\n-----END"),
            ("sasl.username", "alice"),
            ("ssl.key.password", ""),
        ]);
        assert_eq!(
            mask.apply("alice hunter2 hunter2-longer MIIE"),
            "alice *** *** ***"
        );
        assert!(mask.finds("x=hunter2") && mask.finds("MIIE") && !mask.finds("MIIEx"));
        assert!(!mask.finds("alice"));
    }

    #[test]
    fn details_are_no_errors_and_the_prefix_is_dropped() {
        let line = "%3|1796133120.245|FAIL|dup_exporter#consumer-1| [thrd:a|b]: refused";
        assert_eq!(parse(line), (Level::INFO, "[thrd:a|b]: refused"));
        assert_eq!(
            parse("thread 'main' panicked"),
            (Level::WARN, "thread 'main' panicked")
        );
        assert_eq!(parse("%7"), (Level::DEBUG, "%7"));
    }

    #[test]
    fn a_flood_is_counted_instead_of_logged() {
        let start = Instant::now();
        let mut gate = Gate::new(start);
        let passed = (0..1000).filter(|_| gate.pass(start).0).count();
        assert_eq!(passed, RATE as usize);
        let later = start + Duration::from_secs(1);
        assert_eq!(gate.pass(later), (true, 980));
        assert_eq!(gate.pass(later), (true, 0));
    }

    #[tokio::test]
    async fn a_line_without_end_is_cut_and_the_next_one_is_whole() {
        let mut text = vec![b'x'; 100_000];
        text.extend(b"\nshort\nlast");
        let mut input = BufReader::new(text.as_slice());
        assert_eq!(next_line(&mut input).await.unwrap().len(), LENGTH);
        assert_eq!(next_line(&mut input).await.unwrap(), "short");
        assert_eq!(next_line(&mut input).await.unwrap(), "last");
        assert_eq!(next_line(&mut input).await, None);
    }

    #[tokio::test]
    async fn no_secret_reaches_the_log() {
        let log = tempfile::NamedTempFile::new().unwrap();
        let subscriber = tracing_subscriber::fmt()
            .with_ansi(false)
            .with_writer(log.reopen().map(Arc::new).unwrap())
            .finish();
        let _guard = tracing::subscriber::set_default(subscriber);
        let stderr = b"%4|1.0|FAIL|c#consumer-1| password hunter2 refused\n".as_slice();
        let secret = mask(&[("sasl.password", "hunter2")]);
        relay(stderr, "main".to_owned(), secret).await;
        let written = std::fs::read_to_string(log.path()).unwrap();
        assert!(
            written.contains("INFO kafka: password *** refused"),
            "{written}"
        );
        assert!(!written.contains("hunter2"), "{written}");
    }
}
