//! The parent's side: keeps one worker process, asks it one question at a time, and trusts it
//! with nothing. A worker that overruns its time, dies, floods or answers nonsense costs one
//! failed look: it is killed, reaped, and replaced at the next question.
//!
//! The worker is taken out of [`WorkerClient`] for the time of a question and put back after a
//! good answer only. So a look that is dropped half-way drops the worker, too, and with it dies
//! the process: half an answer is never there to be read as the next one.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use secrecy::{ExposeSecret, SecretString};
use serde::Serialize;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time::{Instant, timeout, timeout_at};

use super::relay::{self, Mask};
use super::worker::{Question, Reply, Setup};
use super::{Filter, GroupReader, Snapshot};
use crate::error::{Error, Reason};

/// Looks after which a worker is replaced: librdkafka leaks a little.
const LOOKS_PER_WORKER: u64 = 500;
/// A longer answer is a flood, not an answer (10,000 groups with 100 partitions each take 20 MB).
const MAX_ANSWER: u64 = 256 * 1024 * 1024;
/// Pause before a restart after the first failure; doubled after each further one, up to the
/// last. The poller backs off, too.
const PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// A killed process is gone at once, unless the kernel holds it; then it is left to the kernel.
const REAPING: Duration = Duration::from_secs(2);

/// A Kafka cluster, seen through a supervised worker process. The process is started at the first
/// look, and dies with this value.
pub struct WorkerClient {
    source: String,
    program: PathBuf,
    arguments: Vec<OsString>,
    setup: SecretString,
    mask: Mask,
    worker: Option<Worker>,
    /// Groups of the last good look. Kept here, since workers come and go.
    known: Vec<String>,
    asked: u64,
    failures: u32,
    not_before: Option<Instant>,
    looks_per_worker: u64,
    max_answer: u64,
}

struct Worker {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
    looks: u64,
}

impl WorkerClient {
    /// A client of the cluster that these librdkafka properties lead to (`bootstrap.servers`
    /// among them). `program` is this very program: it is run as `program kafka-worker`. `source`
    /// names the cluster in the log. Secrets reach the worker through its stdin alone, and are
    /// taken out of everything that it writes.
    pub fn new(
        source: impl Into<String>,
        program: PathBuf,
        properties: BTreeMap<String, SecretString>,
    ) -> Self {
        let plain = |(name, value): (&String, &SecretString)| {
            (name.clone(), value.expose_secret().to_owned())
        };
        let setup = Setup {
            properties: properties.iter().map(plain).collect(),
        };
        WorkerClient {
            source: source.into(),
            program,
            arguments: vec!["kafka-worker".into()],
            mask: Mask::new(&setup.properties),
            setup: line(&setup).into(),
            worker: None,
            known: vec![],
            asked: 0,
            failures: 0,
            not_before: None,
            looks_per_worker: LOOKS_PER_WORKER,
            max_answer: MAX_ANSWER,
        }
    }

    /// Starts a worker and hands it the properties.
    async fn start(&mut self) -> Result<Worker, Error> {
        if let Some(due) = self.not_before
            && due > Instant::now()
        {
            let wait = due.saturating_duration_since(Instant::now()).as_secs_f32();
            return Err(failure(format!(
                "the Kafka worker is restarted in {wait:.1}s (failures in a row: {})",
                self.failures
            )));
        }
        let mut command = Command::new(&self.program);
        // So that a list of processes tells whose it is.
        command.arg0("dup_exporter").args(&self.arguments);
        for name in self.revealing_variables() {
            command.env_remove(name);
        }
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // Ctrl-C is for the exporter, which then ends the worker.
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| failure(format!("the Kafka worker can't be started: {error}")))?;
        let pipes = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let (Some(mut stdin), Some(stdout), Some(stderr)) = pipes else {
            return Err(failure("the Kafka worker has no pipes"));
        };
        tokio::spawn(relay::relay(stderr, self.source.clone(), self.mask.clone()));
        // A worker that dies at once is noticed when it is asked.
        let _ = stdin.write_all(self.setup.expose_secret().as_bytes()).await;
        Ok(Worker {
            child,
            stdin,
            stdout: BufReader::new(stdout),
            looks: 0,
        })
    }

    /// The environment is inherited, save for what holds one of our secrets: everybody who may
    /// see the process may read it.
    fn revealing_variables(&self) -> Vec<OsString> {
        std::env::vars_os()
            .filter(|(_, value)| self.mask.finds(&value.to_string_lossy()))
            .map(|(name, _)| name)
            .collect()
    }

    /// The worker, out of its place for the time of one question.
    async fn ready(&mut self, deadline: Instant) -> Result<Worker, Error> {
        if let Some(worker) = self.worker.take() {
            return Ok(worker);
        }
        let started = timeout_at(deadline, self.start()).await;
        started.unwrap_or_else(|_| {
            self.failed();
            Err(failure("the Kafka worker took no properties in time"))
        })
    }

    fn question(&mut self, filter: &Filter, deadline: Instant) -> Question {
        self.asked += 1;
        let left = deadline.saturating_duration_since(Instant::now());
        Question {
            id: self.asked,
            filter: filter.clone(),
            known: self.known.clone(),
            limit_ms: u64::try_from(left.as_millis()).unwrap_or(u64::MAX),
        }
    }

    /// Words of librdkafka's may quote what it was given.
    fn without_secrets(&self, error: &Error) -> Error {
        Error::new(error.reason(), self.mask.apply(&error.to_string()))
    }

    fn read(&mut self, reply: Reply) -> Result<Snapshot, Error> {
        let mut snapshot = reply.result.map_err(|error| self.without_secrets(&error))?;
        let failed = snapshot
            .groups
            .values_mut()
            .filter_map(|it| it.as_mut().err());
        for error in failed.chain(&mut snapshot.listing_errors) {
            *error = self.without_secrets(error);
        }
        self.known = snapshot.groups.keys().cloned().collect();
        Ok(snapshot)
    }

    fn failed(&mut self) {
        let pause = PAUSE.saturating_mul(1 << self.failures.min(16));
        self.failures = self.failures.saturating_add(1);
        self.not_before = Some(Instant::now() + pause.min(LONGEST_PAUSE));
    }
}

#[async_trait::async_trait]
impl GroupReader for WorkerClient {
    fn remember(&mut self, groups: Vec<String>) {
        self.known = groups;
    }

    async fn look(&mut self, filter: &Filter, limit: Duration) -> Result<Snapshot, Error> {
        let deadline = Instant::now() + limit;
        let mut worker = self.ready(deadline).await?;
        let question = self.question(filter, deadline);
        let answer = timeout_at(deadline, worker.ask(&question, self.max_answer)).await;
        let answer = answer.unwrap_or_else(|_| {
            Err(failure(format!(
                "the Kafka worker did not answer within {limit:?} and was killed"
            )))
        });
        match answer {
            Ok(reply) => {
                self.failures = 0;
                self.not_before = None;
                if reply.spent || worker.looks >= self.looks_per_worker {
                    worker.end().await;
                } else {
                    self.worker = Some(worker);
                }
                self.read(reply)
            }
            Err(error) => {
                self.failed();
                worker.end().await;
                Err(error)
            }
        }
    }
}

impl Worker {
    async fn ask(&mut self, question: &Question, max_answer: u64) -> Result<Reply, Error> {
        self.looks += 1;
        // What a dead worker does not read is told by the answer that does not come.
        let _ = self.stdin.write_all(line(question).as_bytes()).await;
        let mut answer = Vec::new();
        let mut bounded = (&mut self.stdout).take(max_answer);
        bounded
            .read_until(b'\n', &mut answer)
            .await
            .map_err(|error| failure(format!("the Kafka worker can't be read: {error}")))?;
        if answer.last() != Some(&b'\n') {
            return Err(failure(match answer.len() {
                length if length as u64 >= max_answer => "the Kafka worker floods".to_owned(),
                _ => self.obituary().await,
            }));
        }
        match serde_json::from_slice::<Reply>(&answer) {
            Ok(reply) if reply.id == question.id && self.stdout.buffer().is_empty() => Ok(reply),
            _ => Err(failure("the Kafka worker answered nonsense")),
        }
    }

    /// How the worker ended, if it did.
    async fn obituary(&mut self) -> String {
        match timeout(REAPING, self.child.wait()).await {
            Ok(Ok(status)) => format!("the Kafka worker ended: {status}"),
            _ => "the Kafka worker closed its stdout".to_owned(),
        }
    }

    async fn end(mut self) {
        let _ = timeout(REAPING, self.child.kill()).await;
    }
}

fn failure(words: impl Into<String>) -> Error {
    Error::new(Reason::Worker, words)
}

/// One line of JSON. Our own types always serialize.
fn line(value: &impl Serialize) -> String {
    let mut line = serde_json::to_string(value).unwrap_or_default();
    line.push('\n');
    line
}

#[cfg(test)]
mod tests;
