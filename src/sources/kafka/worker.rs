//! The child's side: what the hidden subcommand `kafka-worker` runs. As plain as can be, since it
//! may be killed at any time: lines in on stdin, lines out on stdout, two threads, no runtime.
//!
//! The first line is a [`Setup`]; each later one is a [`Question`], answered by one [`Reply`].
//! Nothing else is written to stdout; librdkafka logs to stderr. When stdin ends, so does the
//! process, whatever it was doing: a worker never outlives its exporter.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::admin::{self, Librdkafka};
use super::{Filter, Snapshot, look, properties};
use crate::error::{Error, Reason};

/// The first line of stdin. Its values may be secrets.
#[derive(Serialize, Deserialize)]
pub(super) struct Setup {
    /// librdkafka's, `bootstrap.servers` among them.
    pub properties: BTreeMap<String, String>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Question {
    /// Comes back in the reply, so that no late one is taken for another.
    pub id: u64,
    pub filter: Filter,
    /// Groups of the look before: they are gone only if their coordinators say so.
    pub known: Vec<String>,
    /// Time that the question has, in milliseconds; the reply comes a little before.
    pub limit_ms: u64,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Reply {
    pub id: u64,
    /// Requests are left on their way in librdkafka; the worker ends after this reply.
    pub spent: bool,
    pub result: Result<Snapshot, Error>,
}

/// Runs the worker until stdin ends or a look leaves requests on their way.
pub fn main() -> ! {
    let (sender, lines) = mpsc::channel();
    thread::spawn(move || {
        for line in io::stdin().lines() {
            let Ok(line) = line else { break };
            if sender.send(line).is_err() {
                break;
            }
        }
        admin::leave(0)
    });
    let mut kafka = match lines.recv() {
        Ok(line) => connect(&line),
        Err(_) => admin::leave(0),
    };
    while let Ok(line) = lines.recv() {
        let Ok(question) = serde_json::from_str::<Question>(&line) else {
            eprintln!("the Kafka worker was asked what it can't read");
            admin::leave(2)
        };
        let reply = answer(&mut kafka, &question);
        if write(&reply).is_err() || reply.spent {
            admin::leave(0)
        }
    }
    admin::leave(0)
}

fn connect(line: &str) -> Result<Librdkafka, Error> {
    let setup: Setup = serde_json::from_str(line).map_err(|_| {
        // serde's own words could quote a secret.
        Error::new(Reason::Worker, "the Kafka worker can't read its properties")
    })?;
    Librdkafka::new(&properties::complete(setup.properties))
}

fn answer(kafka: &mut Result<Librdkafka, Error>, question: &Question) -> Reply {
    let limit = Duration::from_millis(question.limit_ms);
    let outcome = match kafka {
        Ok(kafka) => look::look(kafka, &question.filter, &question.known, limit),
        Err(error) => look::Outcome {
            spent: false,
            result: Err(error.clone()),
        },
    };
    Reply {
        id: question.id,
        spent: outcome.spent,
        result: outcome.result,
    }
}

fn write(reply: &Reply) -> io::Result<()> {
    let mut line = serde_json::to_vec(reply)?;
    line.push(b'\n');
    let mut stdout = io::stdout().lock();
    stdout.write_all(&line)?;
    stdout.flush()
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command, Stdio};
    use std::time::Instant;

    use super::*;

    const ACT: &str = "DUP_EXPORTER_TEST_ACTS_AS_WORKER";

    /// Not a test: what the tests below run as a process of its own.
    #[test]
    fn acts_as_the_worker() {
        if std::env::var_os(ACT).is_some() {
            main()
        }
    }

    fn spawn() -> Child {
        let name = "sources::kafka::worker::tests::acts_as_the_worker";
        Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "--nocapture", name])
            .env(ACT, "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap()
    }

    fn ends(mut child: Child) {
        let start = Instant::now();
        while child.try_wait().unwrap().is_none() {
            if start.elapsed() > Duration::from_secs(10) {
                child.kill().unwrap();
                panic!("the worker outlives its stdin");
            }
            thread::sleep(Duration::from_millis(10));
        }
    }

    #[test]
    fn a_worker_whose_exporter_is_gone_ends() {
        let mut child = spawn();
        drop(child.stdin.take());
        ends(child);
    }

    #[test]
    fn a_worker_ends_in_the_midst_of_a_look() {
        let mut child = spawn();
        let mut stdin = child.stdin.take().unwrap();
        let properties = [("bootstrap.servers", "127.0.0.1:1")];
        let properties = properties.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let setup = Setup {
            properties: properties.into(),
        };
        let question = Question {
            id: 1,
            filter: Filter {
                groups_include: vec![],
                groups_exclude: vec![],
                topics_include: vec![],
                topics_exclude: vec![],
                max_groups: 1,
            },
            known: vec![],
            limit_ms: 600_000,
        };
        let setup = serde_json::to_string(&setup).unwrap();
        let question = serde_json::to_string(&question).unwrap();
        writeln!(stdin, "{setup}\n{question}").unwrap();
        drop(stdin);
        ends(child);
    }
}
