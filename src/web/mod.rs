//! What the exporter serves: the metrics, a page for people, and whether it is well. Everything is
//! answered from memory.

mod landing;
mod serve;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::get;
use prometheus::{Registry, TextEncoder};
use tokio::time::Instant;
use tower_http::compression::CompressionLayer;
use tracing::{error, warn};

pub use self::serve::serve;
use crate::sample::gather;
use crate::self_metrics::{Health, series_dropped};
use crate::snapshot::Snapshot;

/// Prometheus 3 fails a scrape whose Content-Type is not exactly one that it knows.
const TEXT_FORMAT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// What the pages are made from.
pub struct Pages {
    pub health: Health,
    pub snapshot: Arc<Snapshot>,
    /// `process_*`.
    pub process: Registry,
    pub telemetry_path: String,
    /// Series that did not fit at the last scrape.
    pub dropped: AtomicUsize,
}

/// The routes of the exporter.
pub fn router(pages: Arc<Pages>) -> Router {
    Router::new()
        .route(&pages.telemetry_path.clone(), get(metrics))
        .route("/", get(landing_page))
        .route("/-/healthy", get(async || "dup_exporter is healthy.\n"))
        .route("/-/ready", get(ready))
        .layer(CompressionLayer::new())
        .with_state(pages)
}

async fn metrics(State(pages): State<Arc<Pages>>) -> Response {
    match pages.exposition() {
        Ok(text) => ([(header::CONTENT_TYPE, TEXT_FORMAT)], text).into_response(),
        Err(error) => {
            error!(%error, "the metrics page can't be written");
            (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response()
        }
    }
}

async fn ready(State(pages): State<Arc<Pages>>) -> Response {
    if pages.health.all_polled() {
        return "dup_exporter is ready.\n".into_response();
    }
    let words = "Some check was not polled yet.\n";
    (StatusCode::SERVICE_UNAVAILABLE, words).into_response()
}

async fn landing_page(State(pages): State<Arc<Pages>>) -> Html<String> {
    Html(landing::page(&pages.health, &pages.telemetry_path))
}

impl Pages {
    /// The whole metrics page, in text format 0.0.4.
    fn exposition(&self) -> Result<String, prometheus::Error> {
        // The health first: a poll that ends in between may show newer figures than its time, never
        // a newer time than its figures.
        let mut samples = self.health.samples();
        let (figures, dropped) = self.snapshot.read(Instant::now());
        let before = self.dropped.swap(dropped, Ordering::Relaxed);
        if dropped > 0 && before == 0 {
            warn!(dropped, "max_series is reached: raise it, or watch less");
        }
        samples.push(series_dropped(dropped));
        samples.extend(figures);
        let mut families = gather(&samples);
        families.extend(self.process.gather());
        TextEncoder::new().encode_to_string(&families)
    }
}
