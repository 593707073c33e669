//! What the exporter serves: the metrics, a page for people, whether it is well, and the wish to
//! read the configuration again. All but the last is answered from memory.

mod landing;
mod serve;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use arc_swap::ArcSwap;
use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::{get, post};
use prometheus::{Registry, TextEncoder};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use tower_http::compression::CompressionLayer;
use tracing::{error, warn};

pub use self::serve::serve;
use crate::generation::View;
use crate::sample::encode;
use crate::self_metrics::series_dropped;

/// Prometheus 3 fails a scrape whose Content-Type is not exactly one that it knows.
const TEXT_FORMAT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// A wish to read the configuration again; answered with why it can't be used.
pub type Reload = oneshot::Sender<Result<(), String>>;

/// What the pages are made from.
pub struct Pages {
    /// Of the generation that is at work.
    pub view: ArcSwap<View>,
    pub reloads: mpsc::Sender<Reload>,
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
        .route("/-/reload", post(reload).put(reload))
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
    if pages.view.load().health.all_polled() {
        return "dup_exporter is ready.\n".into_response();
    }
    let words = "Some check was not polled yet.\n";
    (StatusCode::SERVICE_UNAVAILABLE, words).into_response()
}

async fn reload(State(pages): State<Arc<Pages>>) -> Response {
    let (answer, answered) = oneshot::channel();
    // Whoever answers is gone at the end of the program only.
    let _ = pages.reloads.send(answer).await;
    match answered.await {
        Ok(Ok(())) => "The configuration was read again.\n".into_response(),
        Ok(Err(words)) => (StatusCode::INTERNAL_SERVER_ERROR, words + "\n").into_response(),
        Err(_) => (
            StatusCode::SERVICE_UNAVAILABLE,
            "dup_exporter is stopping.\n",
        )
            .into_response(),
    }
}

async fn landing_page(State(pages): State<Arc<Pages>>) -> Html<String> {
    let view = pages.view.load();
    Html(landing::page(&view.health, &pages.telemetry_path))
}

impl Pages {
    /// The whole metrics page, in text format 0.0.4.
    fn exposition(&self) -> Result<String, prometheus::Error> {
        // The health first: a poll that ends in between may show newer figures than its time, never
        // a newer time than its figures.
        let view = self.view.load();
        let mut samples = view.health.samples();
        let (figures, dropped) = view.snapshot.read(Instant::now());
        let before = self.dropped.swap(dropped, Ordering::Relaxed);
        if dropped > 0 && before == 0 {
            warn!(dropped, "max_series is reached: raise it, or watch less");
        }
        samples.push(series_dropped(dropped));
        samples.extend_from_slice(&view.facts);
        samples.extend(figures);
        let mut text = String::new();
        encode(&samples, &mut text)?;
        TextEncoder::new().encode_utf8(&self.process.gather(), &mut text)?;
        Ok(text)
    }
}
