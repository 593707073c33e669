//! The program itself: started with flags, watched, stopped by a signal.

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use crate::support::{PATIENCE, wait_for};

/// The program with these flags; not started yet.
pub fn command(flags: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dup_exporter"));
    command.args(flags);
    command
}

/// Runs the program to its end. Returns status, standard output and standard error.
pub fn run(command: &mut Command) -> (Option<i32>, String, String) {
    let output = command.output().expect("the program can be run");
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    (
        output.status.code(),
        text(output.stdout),
        text(output.stderr),
    )
}

/// The program while it serves; killed with the value.
pub struct Program {
    child: Child,
    log: Receiver<String>,
    /// What it logged so far, as far as it was waited for.
    pub seen: Vec<String>,
}

impl Program {
    /// Starts it with this configuration, on a port of its own, and these flags.
    pub fn start(config: &Path, flags: &[&str]) -> Self {
        let config = config.to_str().expect("a path in UTF-8");
        let mut all = vec![
            "--config.file",
            config,
            "--web.listen-address",
            "127.0.0.1:0",
        ];
        all.extend(flags);
        Program::spawn(&mut command(&all))
    }

    /// Starts a command made by [`command`].
    pub fn spawn(command: &mut Command) -> Self {
        let mut child = (command.stderr(Stdio::piped()).spawn()).expect("the program can be run");
        let stderr = BufReader::new(child.stderr.take().expect("a pipe"));
        let (tell, log) = channel();
        std::thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                if tell.send(line).is_err() {
                    return;
                }
            }
        });
        Program {
            child,
            log,
            seen: Vec::new(),
        }
    }

    /// Its process.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Starts a command whose log nobody reads.
    pub fn unread(command: &mut Command) -> Self {
        let child = (command.stderr(Stdio::piped()).spawn()).expect("the program can be run");
        Program {
            child,
            log: channel().1,
            seen: Vec::new(),
        }
    }

    /// Waits for a line of the log that holds these words.
    pub fn logged(&mut self, words: &str) -> String {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let line = self.log.recv_timeout(left);
            let line = line.unwrap_or_else(|_| panic!("{words} is not logged: {:#?}", self.seen));
            self.seen.push(line.clone());
            if line.contains(words) {
                return line;
            }
        }
    }

    /// Waits until it has ended; returns what it logged since the last wait.
    pub fn rest(&mut self) -> Vec<String> {
        let mut rest = Vec::new();
        while let Ok(line) = self.log.recv_timeout(PATIENCE) {
            rest.push(line);
        }
        rest
    }

    /// Waits until it listens, and returns where.
    pub fn address(&mut self) -> String {
        let line = self.logged("127.0.0.1:");
        let at = line.find("127.0.0.1:").expect("found before");
        let end = |c: char| !c.is_ascii_digit() && c != '.' && c != ':';
        line[at..].split(end).next().expect("an address").to_owned()
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal by its name.
    pub fn signal(&self, signal: &str) {
        let pid = self.pid().to_string();
        let sent = Command::new("kill").args([signal, &pid]).status();
        assert!(sent.expect("kill can be run").success());
    }

    /// Sends a signal by its name; returns how it ended and how long that took.
    pub fn stop(&mut self, signal: &str) -> (ExitStatus, Duration) {
        let start = Instant::now();
        self.signal(signal);
        let status = wait_for("the end of the program", || {
            self.child.try_wait().expect("a child of ours")
        });
        (status, start.elapsed())
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Sources that never answer: a listener that accepts and says nothing.
pub struct Hanging {
    folder: tempfile::TempDir,
    /// A Kafka source `k`, with its groups, and a ClickHouse source `ch`, with one table.
    pub yaml: String,
    _listener: TcpListener,
}

impl Hanging {
    pub fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let hanging = Hanging {
            folder: tempfile::tempdir().expect("a temporary folder"),
            yaml: format!(
                "kafka:\n  - {{name: k, bootstrap_servers: '{address}'}}\n\
                 clickhouse:\n  - name: ch\n    url: http://{address}\n    part_log: {{include: []}}\n    tables:\n      \
                 - {{database: d, table: t, key: [k], time: ts}}\n"
            ),
            _listener: listener,
        };
        std::fs::write(hanging.config(), &hanging.yaml).expect("a writable folder");
        hanging
    }

    /// The file that holds the configuration.
    pub fn config(&self) -> PathBuf {
        self.folder.path().join("c.yml")
    }

    /// The program with that file and these flags.
    pub fn start(&self, flags: &[&str]) -> Program {
        Program::start(&self.config(), flags)
    }
}

/// The processes that some thread of `pid` started.
pub fn children(pid: u32) -> Vec<u32> {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task"))
        .into_iter()
        .flatten();
    let lists = threads
        .filter_map(|thread| std::fs::read_to_string(thread.ok()?.path().join("children")).ok());
    let lists: Vec<String> = lists.collect();
    lists
        .iter()
        .flat_map(|list| list.split_whitespace())
        .filter_map(|c| c.parse().ok())
        .collect()
}

/// Resident memory of a process, in MB; 0 when it is gone.
pub fn resident(pid: u32) -> f64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes = line.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok());
    kilobytes.unwrap_or(0.0) / 1024.0
}
