//! Serves a router over HTTP/1, with a bound on connections and on how long one may stay silent:
//! clients that connect and say nothing must not keep Prometheus out.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

/// Connections at once; those beyond wait to be accepted.
const CONNECTIONS: usize = 256;
/// How long a client may take for the head of a request, or stay idle before the next one.
const SILENCE: Duration = Duration::from_secs(10);
/// How long to wait when there is no file descriptor left for a connection.
const EXHAUSTED: Duration = Duration::from_millis(200);

/// Serves until `shutdown`, and then for at most `grace` what is under way.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    shutdown: CancellationToken,
    grace: Duration,
) {
    let graceful = GracefulShutdown::new();
    let accept = async {
        let room = Arc::new(Semaphore::new(CONNECTIONS));
        // The semaphore is never closed.
        while let Ok(permit) = room.clone().acquire_owned().await {
            match listener.accept().await {
                Ok((stream, _)) => talk(stream, &router, graceful.watcher(), permit),
                Err(error) => {
                    failed_to_accept(&error);
                    sleep(EXHAUSTED).await;
                }
            }
        }
    };
    let _: Option<()> = shutdown.run_until_cancelled(accept).await;
    drop(listener);
    let _ = timeout(grace, graceful.shutdown()).await;
}

fn talk(stream: TcpStream, router: &Router, watcher: Watcher, permit: OwnedSemaphorePermit) {
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(SILENCE);
    let service = TowerToHyperService::new(router.clone());
    let connection = http.serve_connection(TokioIo::new(stream), service);
    tokio::spawn(async move {
        if let Err(error) = watcher.watch(connection).await {
            debug!(%error, "a client hung up, or was too slow");
        }
        drop(permit);
    });
}

fn failed_to_accept(error: &io::Error) {
    let client = [
        io::ErrorKind::ConnectionAborted,
        io::ErrorKind::ConnectionReset,
    ];
    if !client.contains(&error.kind()) {
        warn!(%error, "can't accept connections");
    }
}
