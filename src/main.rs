//! The command line of dup_exporter: flags, logging, signals. All else is the library.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use dup_exporter::{Config, run, worker};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::{Layer, fmt, prelude::*};

/// Tells Prometheus whether anything in a data pipeline was processed twice.
#[derive(Parser)]
#[command(version)]
struct Flags {
    /// The configuration, in YAML.
    #[arg(
        long = "config.file",
        value_name = "FILE",
        default_value = "dup_exporter.yml"
    )]
    config_file: PathBuf,
    /// Check the configuration, say what is wrong with it, and exit.
    #[arg(long = "config.check")]
    config_check: bool,
    /// Where to listen.
    #[arg(
        long = "web.listen-address",
        value_name = "HOST:PORT",
        default_value = "0.0.0.0:9977"
    )]
    listen_address: String,
    /// The path that serves the metrics.
    #[arg(long = "web.telemetry-path", value_name = "PATH", default_value = "/metrics", value_parser = telemetry_path)]
    telemetry_path: String,
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

fn main() -> ExitCode {
    // The exporter starts itself like this, to keep librdkafka in a process that it may kill.
    if std::env::args_os()
        .nth(1)
        .is_some_and(|arg| arg == "kafka-worker")
    {
        worker::main();
    }
    match start(Flags::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("dup_exporter: {error}");
            ExitCode::FAILURE
        }
    }
}

fn start(flags: Flags) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let runtime = tokio::runtime::Runtime::new()?;
    let outcome = runtime.block_on(serve(flags));
    // Not dropped: that would wait for a look-up of a name that hangs.
    runtime.shutdown_background();
    outcome
}

async fn serve(flags: Flags) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let mut config = Config::load(&flags.config_file)?;
    if flags.config_check {
        eprintln!("{}: valid", flags.config_file.display());
        return Ok(());
    }
    log_to_stderr(&flags);
    config.telemetry_path = flags.telemetry_path;
    let listener = TcpListener::bind(&flags.listen_address)
        .await
        .map_err(|error| format!("can't listen on {}: {error}", flags.listen_address))?;
    let shutdown = CancellationToken::new();
    let (mut terminate, mut interrupt) = (
        signal(SignalKind::terminate())?,
        signal(SignalKind::interrupt())?,
    );
    let stop = shutdown.clone();
    tokio::spawn(async move {
        tokio::select! { _ = terminate.recv() => {}, _ = interrupt.recv() => {} }
        tracing::info!("stopping");
        stop.cancel();
    });
    run(config, listener, shutdown).await
}

/// Libraries are heard from warnings up only: what they trace may hold secrets.
fn log_to_stderr(flags: &Flags) {
    let level: LevelFilter = flags.log_level.parse().unwrap_or(LevelFilter::INFO);
    let heard = Targets::new()
        .with_default(level.min(LevelFilter::WARN))
        .with_targets([("dup_exporter", level), ("kafka", level)]);
    let layer = match &*flags.log_format {
        "json" => fmt::layer().json().with_writer(std::io::stderr).boxed(),
        _ => tracing_logfmt::builder()
            .layer()
            .with_writer(std::io::stderr)
            .boxed(),
    };
    tracing_subscriber::registry()
        .with(layer.with_filter(heard))
        .init();
}
