//! A ClickHouse server that answers queries as JSON rows, under limits that the server keeps.
//!
//! A query whose answer is no longer waited for is killed by its id, since old servers go on with
//! it. Settings that could make an answer wrong without an error are pinned.

mod cluster;
mod fault;
mod rows;
mod shape;
pub mod sql;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hyper_rustls::{FixedServerNameResolver, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client as HttpClient;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioIo};
use secrecy::{ExposeSecret, SecretString};
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};
use tokio_util::task::TaskTracker;
use tower::util::MapResponse;
use tracing::{debug, warn};

use self::fault::Fault;
pub use self::rows::Row;
pub use self::shape::{Shape, base_type, is_real_uuid, plain_engine, replacing_columns};
use crate::config::{ClickHouseSource, Limits};
use crate::error::{Error, Reason};
use crate::self_metrics::SourceHealth;
use crate::sources::bounded::Bounded;
use crate::sources::tls;

/// The server gives up this long before we do, so that its word arrives.
const SERVER_GIVES_UP_BEFORE: Duration = Duration::from_secs(2);
const KILL_TIMEOUT: Duration = Duration::from_secs(5);
/// Our answers are a few rows. What is longer is not an answer to what we asked.
const MAX_ANSWER_BYTES: usize = 16 << 20;

type Setting = (&'static str, &'static str);

/// Settings of a profile that would make an answer wrong, each pinned where the server knows it.
/// All are defaults, which a user who may set nothing may still send.
const PINNED: &[Setting] = &[
    // Partial answers in place of an error.
    ("timeout_overflow_mode", "throw"),
    ("timeout_overflow_mode_leaf", "throw"),
    ("read_overflow_mode", "throw"),
    ("read_overflow_mode_leaf", "throw"),
    ("group_by_overflow_mode", "throw"),
    ("result_overflow_mode", "throw"),
    ("set_overflow_mode", "throw"),
    ("distinct_overflow_mode", "throw"),
    ("sort_overflow_mode", "throw"),
    ("join_overflow_mode", "throw"),
    ("transfer_overflow_mode", "throw"),
    ("partial_result_on_first_cancel", "0"),
    ("limit", "0"),
    ("skip_unavailable_shards", "0"),
    // Rows that a shard or a replica does not show, or shows twice.
    ("distributed_group_by_no_merge", "0"),
    ("optimize_skip_unused_shards", "0"),
    ("prefer_global_in_and_join", "0"),
    ("allow_experimental_parallel_reading_from_replicas", "0"),
    ("parallel_replicas_count", "0"),
    // Rows hidden from us alone, or shown to us alone.
    ("final", "0"),
    ("additional_table_filters", "{}"),
    ("apply_deleted_mask", "1"),
    ("apply_patch_parts", "1"),
    ("apply_mutations_on_fly", "0"),
    ("ignore_cold_parts_seconds", "0"),
    // Old answers, NULL where 0 is meant, and days that begin elsewhere.
    ("use_query_cache", "0"),
    ("aggregate_functions_null_for_empty", "0"),
    ("empty_result_for_aggregation_by_empty_set", "0"),
    ("session_timezone", ""),
];

/// What is better than the default, where the server knows it and our user may set it.
const PREFERRED: &[Setting] = &[
    // A shard that lags too far behind is no shard to count.
    ("fallback_to_stale_replicas_for_distributed_queries", "0"),
    ("max_parallel_replicas", "1"),
    // Bigger is lower. It matters where queries are given priorities at all.
    ("priority", "1000"),
];

/// For a user who may write: limits may still be set under it, and nothing be written.
const HARMLESS: Setting = ("readonly", "2");

/// Why a question may fail.
pub const REASONS: &[Reason] = &[
    Reason::Timeout,
    Reason::Connection,
    Reason::Tls,
    Reason::Auth,
    Reason::Authorization,
    Reason::UnknownTable,
    Reason::UnknownColumn,
    Reason::NoPartLog,
    Reason::Unsupported,
    Reason::Protocol,
    Reason::Server,
    Reason::Limit,
];

/// What goes with each question, by what the server and our user are.
struct Terms {
    /// What of [`PINNED`] the server knows.
    pinned: Vec<Setting>,
    /// What of [`PREFERRED`] it knows, and [`HARMLESS`] where our user could do harm.
    preferred: Vec<Setting>,
}

/// A client of one server.
pub struct ClickHouse {
    client: clickhouse::Client,
    /// Scheme, host and port, for people. A proxy's path may be a secret.
    address: String,
    password: Option<SecretString>,
    limits: Limits,
    cluster: Option<String>,
    health: Arc<SourceHealth>,
    /// Asked for again when another server may answer.
    terms: Mutex<Option<Arc<Terms>>>,
    /// Kills under way, so that a shutdown can wait for them.
    kills: TaskTracker,
    /// Queries are dropped because we want it so.
    leaving: AtomicBool,
}

impl ClickHouse {
    /// A client; nothing is connected yet.
    ///
    /// # Errors
    /// `tls`, when the certificates can't be used.
    pub fn new(source: &ClickHouseSource, health: Arc<SourceHealth>) -> Result<Arc<Self>, Error> {
        let mut client = http_client(source)?
            .with_url(source.url.as_str())
            .with_product_info("dup_exporter", env!("CARGO_PKG_VERSION"));
        if let Some(user) = &source.user {
            client = client.with_user(user);
        }
        if let Some(password) = &source.password {
            client = client.with_password(password.expose_secret());
        }
        Ok(Arc::new(ClickHouse {
            client,
            password: source.password.clone(),
            address: source.url.origin().ascii_serialization(),
            limits: source.limits.clone(),
            cluster: source.cluster.clone(),
            health,
            terms: Mutex::default(),
            kills: TaskTracker::new(),
            leaving: AtomicBool::new(false),
        }))
    }

    /// How the source fares.
    pub fn health(&self) -> Arc<SourceHealth> {
        self.health.clone()
    }

    /// The cluster whose replicas are all to be asked.
    pub fn cluster(&self) -> Option<&str> {
        self.cluster.as_deref()
    }

    /// From now on queries may be dropped without the server being at fault.
    pub fn leave(&self) {
        self.leaving.store(true, Ordering::Relaxed);
    }

    /// Waits until the kills under way have ended.
    pub async fn settle(&self) {
        self.kills.close();
        self.kills.wait().await;
    }

    /// The rows that a query gives.
    ///
    /// # Errors
    /// `connection`, `tls`, `auth` and `protocol` for a server that can't be talked to; the rest by
    /// the code of ClickHouse's error, `server` where it has no reason of its own.
    pub async fn rows(self: &Arc<Self>, sql: &str, deadline: Instant) -> Result<Vec<Row>, Error> {
        let terms = self.terms().await?;
        let owned = |settings: &[Setting]| -> Vec<(&'static str, String)> {
            settings.iter().map(|&(k, v)| (k, v.to_owned())).collect()
        };
        let mut settings = owned(&terms.pinned);
        settings.extend(owned(&terms.preferred));
        settings.extend(self.limit_settings(deadline));
        match self.ask(sql, &settings).await {
            Err(fault) if fault.refuses_settings() => {
                // readonly=1 lets nobody set limits. The pinned settings stay: what equals the
                // profile is accepted, and what differs must fail.
                settings.truncate(terms.pinned.len());
                let rows = self
                    .ask(sql, &settings)
                    .await
                    .map_err(|fault| self.error(fault))?;
                if self.health.limits_enforced(false) {
                    warn!(
                        source = self.health.name,
                        "the server refuses our query limits (readonly=1, or a constraint): set them \
                         in the user's profile, or let the user change them"
                    );
                }
                Ok(rows)
            }
            outcome => {
                if outcome.is_ok() {
                    self.health.limits_enforced(true);
                }
                outcome.map_err(|fault| self.error(fault))
            }
        }
    }

    /// The row of a query that gives exactly one.
    ///
    /// # Errors
    /// As [`rows`](Self::rows), and `protocol` when it is not one row.
    pub async fn row(self: &Arc<Self>, sql: &str, deadline: Instant) -> Result<Row, Error> {
        Self::only(self.rows(sql, deadline).await?)
    }

    fn only(rows: Vec<Row>) -> Result<Row, Error> {
        match <[Row; 1]>::try_from(rows) {
            Ok([row]) => Ok(row),
            Err(rows) => {
                let message = format!("one row was asked for, {} came", rows.len());
                Err(Error::new(Reason::Protocol, message))
            }
        }
    }

    /// What can't be talked to is named by its address, and what echoes our password is masked.
    fn error(&self, fault: Fault) -> Error {
        let answered = fault.is_answer();
        let of_a_shard = fault.is_of_another_server() && self.cluster.is_some();
        let mut error = fault.into_error();
        if of_a_shard {
            error = Error::new(Reason::Connection, error.to_string());
        }
        let words = match answered {
            true => error.to_string(),
            false => format!("{}: {error}", self.address),
        };
        let password = self.password.as_ref().map(ExposeSecret::expose_secret);
        let words = match password.filter(|password| !password.is_empty()) {
            Some(password) => words.replace(password, "***"),
            None => words,
        };
        Error::new(error.reason(), words)
    }

    fn limit_settings(&self, deadline: Instant) -> Vec<(&'static str, String)> {
        let left = deadline.saturating_duration_since(Instant::now());
        let seconds = left.saturating_sub(SERVER_GIVES_UP_BEFORE).as_secs();
        let limits = &self.limits;
        vec![
            ("max_execution_time", seconds.max(1).to_string()),
            ("max_threads", limits.max_threads.to_string()),
            ("max_memory_usage", limits.max_memory_usage.0.to_string()),
            ("max_rows_to_read", limits.max_rows_to_read.to_string()),
        ]
    }

    /// Looks up what the server knows. It is one row without conditions, since a profile may cut
    /// lists, and this query alone goes without what is pinned.
    async fn terms(self: &Arc<Self>) -> Result<Arc<Terms>, Error> {
        if let Some(terms) = self.remembered().clone() {
            return Ok(terms);
        }
        let query = "SELECT toString(groupArray(name)) AS names, \
                     countIf(name = 'readonly' AND value = '0') AS may_write \
                     FROM system.settings";
        let rows = self
            .ask(query, &[])
            .await
            .map_err(|fault| self.error(fault))?;
        let row = Self::only(rows)?;
        let names = row.text("names")?;
        let knows = |name: &str| names.contains(&format!("'{name}'"));
        let known = |settings: &[Setting]| -> Vec<Setting> {
            let known = settings.iter().filter(|(name, _)| knows(name));
            known.copied().collect()
        };
        let may_write = row.count("may_write")? > 0;
        let terms = Arc::new(Terms {
            pinned: known(PINNED),
            preferred: (known(PREFERRED).into_iter())
                .chain(may_write.then_some(HARMLESS))
                .collect(),
        });
        *self.remembered() = Some(terms.clone());
        Ok(terms)
    }

    fn remembered(&self) -> MutexGuard<'_, Option<Arc<Terms>>> {
        self.terms.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whoever answers next may be another server, or a younger one.
    fn lost(&self) {
        self.health.contact(false);
        *self.remembered() = None;
    }

    /// One request. Writes down whether the contact worked; kills the query when it is not
    /// answered.
    async fn ask(
        self: &Arc<Self>,
        sql: &str,
        settings: &[(&str, String)],
    ) -> Result<Vec<Row>, Fault> {
        let mut in_flight = InFlight::new(self);
        let mut query = self
            .client
            .query_raw(sql)
            .with_setting("query_id", &in_flight.query_id)
            .with_setting("wait_end_of_query", "1");
        for (name, value) in settings {
            query = query.with_setting(*name, value);
        }
        debug!(target: "dup_exporter::sql", query_id = in_flight.query_id, sql, "query");
        let answer = async {
            let mut cursor = query.fetch_bytes("JSONEachRow")?;
            let mut body = Vec::new();
            while let Some(chunk) = cursor.next().await.map_err(|e| Fault::of(e, &body))? {
                body.extend_from_slice(&chunk);
                if body.len() > MAX_ANSWER_BYTES {
                    return Err(Fault::nonsense("the answer is endless"));
                }
            }
            Ok(body)
        };
        let answer = answer
            .await
            .and_then(|body| rows::parse(&body).map_err(Fault::Nonsense));
        // What is not answered is left to the drop of what is in flight.
        in_flight.answered = answer.as_ref().map_or_else(Fault::is_answer, |_| true);
        if in_flight.answered {
            let let_in = answer.as_ref().map_or_else(Fault::let_us_in, |_| true);
            self.health.contact(let_in);
        }
        if answer.as_ref().is_err_and(Fault::is_unknown_setting) {
            *self.remembered() = None;
        }
        answer
    }
}

/// A query that the server may be working on. Dropped before the answer came, it is killed.
struct InFlight {
    source: Arc<ClickHouse>,
    query_id: String,
    answered: bool,
}

impl InFlight {
    fn new(source: &Arc<ClickHouse>) -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        InFlight {
            source: source.clone(),
            query_id: format!("dup_exporter-{:016x}-{count}", fastrand::u64(..)),
            answered: false,
        }
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        if self.answered {
            return;
        }
        if !self.source.leaving.load(Ordering::Relaxed) {
            self.source.lost();
        }
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            return;
        };
        let sql = format!(
            "KILL QUERY WHERE query_id = {} ASYNC",
            sql::string(&self.query_id)
        );
        let kill = self
            .source
            .client
            .query_raw(&sql)
            .fetch_bytes("JSONEachRow");
        let query_id = std::mem::take(&mut self.query_id);
        let kill = async move {
            let Ok(mut answer) = kill else { return };
            match timeout(KILL_TIMEOUT, answer.collect()).await {
                Ok(Ok(_)) => debug!(query_id, "asked the server to end an unanswered query"),
                Ok(Err(error)) => debug!(query_id, %error, "an unanswered query was not killed"),
                Err(_) => debug!(query_id, "an unanswered query was not killed in time"),
            }
        };
        self.source.kills.spawn_on(kill, &runtime);
    }
}

fn http_client(source: &ClickHouseSource) -> Result<clickhouse::Client, Error> {
    let config = tls::client_config(&source.tls, source.url.scheme() == "https")?;
    let mut builder = HttpsConnectorBuilder::new()
        .with_tls_config(config)
        .https_or_http();
    if let Some(name) = &source.tls.server_name {
        builder = builder.with_server_name_resolver(FixedServerNameResolver::new(name.clone()));
    }
    let mut http = HttpConnector::new();
    http.enforce_http(false);
    let http = MapResponse::new(http, |stream: TokioIo<TcpStream>| {
        TokioIo::new(Bounded::new(stream.into_inner()))
    });
    let connector = builder.enable_http1().wrap_connector(http);
    // Servers close idle connections after 3 s; one that is about to close must not be reused.
    let http = HttpClient::builder(TokioExecutor::new())
        .pool_idle_timeout(Duration::from_secs(2))
        .build(connector);
    Ok(clickhouse::Client::with_http_client(http))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    #[test]
    fn a_proxy_that_echoes_our_password_does_not_get_it_into_the_log() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let yaml = "clickhouse: [{name: ch, url: 'http://mon:S3cr3t@ch:8123'}]\n";
        std::fs::write(file.path(), yaml).unwrap();
        let config = Config::load(file.path()).unwrap();
        let clickhouse = ClickHouse::new(&config.clickhouse[0], SourceHealth::new("ch")).unwrap();
        let error = clickhouse.error(Fault::nonsense("bad header X-ClickHouse-Key: S3cr3t"));
        assert_eq!(
            error.to_string(),
            "http://ch:8123: bad header X-ClickHouse-Key: ***"
        );
    }
}
