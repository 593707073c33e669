//! The command line of dup_exporter: flags and signals. All else is the library.

mod flags;

use std::process::ExitCode;
use std::sync::Arc;

use clap::Parser;
use dup_exporter::{Config, run, worker};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::flags::Flags;

fn main() -> ExitCode {
    // The exporter starts itself like this, to keep librdkafka in a process that it may kill.
    if std::env::args_os().nth(1) == Some("kafka-worker".into()) {
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
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut hangup = signal(SignalKind::hangup())?;
    let mut config = Config::load(&flags.config_file)?;
    if flags.config_check {
        eprintln!("{}: valid", flags.config_file.display());
        return Ok(());
    }
    let _log = flags.log_to_stderr();
    let listener = TcpListener::bind(flags.socket_address()).await;
    let listener = listener.map_err(|error| flags.cannot_listen(&error))?;
    config.telemetry_path = flags.telemetry_path;
    let shutdown = CancellationToken::new();
    let stop = shutdown.clone();
    tokio::spawn(async move {
        tokio::select! { _ = terminate.recv() => {}, _ = interrupt.recv() => {} }
        stop.cancel();
        tracing::info!("stopping");
    });
    let reload = Arc::new(Notify::new());
    let again = reload.clone();
    tokio::spawn(async move {
        while hangup.recv().await.is_some() {
            again.notify_one();
        }
    });
    run(config, listener, shutdown, reload).await
}
