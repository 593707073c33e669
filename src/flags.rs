//! The flags of the command line, and the logging that two of them are about.

use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;
use tracing::level_filters::LevelFilter;
use tracing_appender::non_blocking::WorkerGuard;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::{Layer, fmt, prelude::*};

/// How long the end of the program waits for whoever reads its log.
const LAST_WORDS: Duration = Duration::from_millis(300);

/// Tells Prometheus whether anything in a data pipeline was processed twice.
#[derive(Parser)]
#[command(version)]
pub struct Flags {
    /// The configuration, in YAML.
    #[arg(
        long = "config.file",
        value_name = "FILE",
        default_value = "dup_exporter.yml"
    )]
    pub config_file: PathBuf,
    /// Check the configuration, say what is wrong with it, and exit.
    #[arg(long = "config.check")]
    pub config_check: bool,
    /// Where to listen.
    #[arg(
        long = "web.listen-address",
        value_name = "HOST:PORT",
        default_value = "0.0.0.0:9977"
    )]
    pub listen_address: String,
    /// The path that serves the metrics.
    #[arg(long = "web.telemetry-path", value_name = "PATH", default_value = "/metrics", value_parser = telemetry_path)]
    pub telemetry_path: String,
    /// The least severe messages that are logged.
    #[arg(long = "log.level", value_name = "LEVEL", default_value = "info", value_parser = ["error", "warn", "info", "debug", "trace"])]
    log_level: String,
    /// How messages are written.
    #[arg(long = "log.format", value_name = "FORMAT", default_value = "logfmt", value_parser = ["logfmt", "json"])]
    log_format: String,
}

fn telemetry_path(path: &str) -> Result<String, String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/-_.".contains(c);
    match path.strip_prefix('/') {
        Some(rest) if !rest.is_empty() && !rest.starts_with("-/") && rest.chars().all(plain) => {
            Ok(path.into())
        }
        _ => Err("write a path like /metrics, other than / and /-/…".into()),
    }
}

impl Flags {
    /// `:9977` means every address of the machine, as with other exporters.
    pub fn socket_address(&self) -> String {
        match self.listen_address.strip_prefix(':') {
            Some(port) => format!("0.0.0.0:{port}"),
            None => self.listen_address.clone(),
        }
    }

    /// What to say when that address can't be had.
    pub fn cannot_listen(&self, error: &std::io::Error) -> String {
        let mend = "free it, or give another --web.listen-address";
        format!("can't listen on {}: {error}: {mend}", self.listen_address)
    }

    /// Libraries are heard from warnings up only: what they trace may hold secrets. A log that
    /// nobody reads loses messages and holds up nothing. Ends with what it returns.
    pub fn log_to_stderr(&self) -> Log {
        let (stderr, guard) = tracing_appender::non_blocking(std::io::stderr());
        let level: LevelFilter = self.log_level.parse().unwrap_or(LevelFilter::INFO);
        let heard = Targets::new()
            .with_default(level.min(LevelFilter::WARN))
            .with_targets([("dup_exporter", level), ("kafka", level)]);
        let layer = match &*self.log_format {
            "json" => fmt::layer().json().with_writer(stderr).boxed(),
            _ => tracing_logfmt::builder()
                .layer()
                .with_writer(stderr)
                .boxed(),
        };
        tracing_subscriber::registry()
            .with(layer.with_filter(heard))
            .init();
        Log(Some(guard))
    }
}

/// The log while it is written. Its end waits a little for the last messages to be taken.
pub struct Log(Option<WorkerGuard>);

impl Drop for Log {
    fn drop(&mut self) {
        let guard = self.0.take();
        let (tell, told) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            drop(guard);
            // Nobody listens any more when this took too long.
            let _ = tell.send(());
        });
        let _ = told.recv_timeout(LAST_WORDS);
    }
}
