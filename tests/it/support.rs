//! What the tests stand on: the servers of this run, an exporter of one's own, and its page.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use dup_exporter::Config;
use serde_json::Value;
use tempfile::NamedTempFile;
use tokio_util::sync::CancellationToken;

/// How long a condition may take to come true on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until `probe` gives something, and says what was waited for when it never does.
pub fn wait_for<T>(what: &str, mut probe: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = probe() {
            return found;
        }
        assert!(start.elapsed() < PATIENCE, "never came true: {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// A name that no other test uses, now or at the same time.
pub fn unique(prefix: &str) -> String {
    format!("{prefix}_{:016x}", fastrand::u64(..))
}

// ---- Servers ----

/// Every version of ClickHouse that is supported, from the oldest to the newest.
pub const SERVERS: [&str; 3] = ["clickhouse-18", "clickhouse-23", "clickhouse"];

/// The servers of this test run, as `dev/up` printed them.
fn parts() -> &'static Value {
    static PARTS: OnceLock<Value> = OnceLock::new();
    PARTS.get_or_init(|| {
        let file = std::env::var("DUP_TEST_PARTS")
            .expect("DUP_TEST_PARTS names the servers: run these tests by `make test`");
        let text = std::fs::read_to_string(&file).expect("DUP_TEST_PARTS is a readable file");
        serde_json::from_str(&text).expect("DUP_TEST_PARTS is what dev/up printed")
    })
}

/// What `dev/up` printed of one part.
pub fn part(name: &str) -> &'static Value {
    let part = &parts()[name];
    assert!(part.is_object(), "part {name} runs in this test run");
    part
}

/// Servers of one test alone, which it may kill; ended with the value.
pub struct OwnParts {
    folder: tempfile::TempDir,
    printed: Value,
}

impl OwnParts {
    /// Starts the named parts of `dev/up`.
    pub fn start(names: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut parts = OwnParts {
            folder,
            printed: Value::Null,
        };
        parts.up(names);
        parts
    }

    /// Starts parts, or starts them again where they were.
    pub fn up(&mut self, names: &[&str]) {
        let output = self
            .dev("up")
            .args(names)
            .output()
            .expect("dev/up can be run");
        let log = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "dev/up {names:?}: {log}");
        self.printed = serde_json::from_slice(&output.stdout).expect("dev/up prints JSON");
    }

    /// Starts the 26.9 engine anew, with this in the profile and in the section of its one user.
    pub fn restrict(&mut self, profile: &str, user: &str) -> Server {
        let users = format!(
            "<clickhouse><profiles><default>{profile}</default></profiles>\
             <quotas><default></default></quotas><users><default><password></password>\
             <networks><ip>::/0</ip></networks><profile>default</profile><quota>default</quota>\
             {user}</default></users></clickhouse>"
        );
        let status = self.dev("down").arg("clickhouse").status();
        assert!(status.expect("dev/down can be run").success());
        let folder = self.folder.path().join("clickhouse");
        std::fs::write(folder.join("users.xml"), users).expect("a writable folder");
        self.up(&["clickhouse"]);
        Server::of(self.part("clickhouse"))
    }

    /// Kills one part, as a crash would.
    pub fn kill(&self, name: &str) {
        let status = self.dev("down").args(["--kill", name]).status();
        assert!(status.expect("dev/down can be run").success());
    }

    /// What `dev/up` printed of one part.
    pub fn part(&self, name: &str) -> &Value {
        &self.printed[name]
    }

    fn dev(&self, script: &str) -> Command {
        let mut command = Command::new(root().join("dev").join(script));
        command.arg("--data").arg(self.folder.path());
        // A part of this name is for the shipped routes.
        let routes = root().join("alerts/alertmanager.example.yml");
        command.env("DUP_ALERTMANAGER_CONFIG", routes);
        command
    }
}

impl Drop for OwnParts {
    fn drop(&mut self) {
        let _ = self.dev("down").status();
    }
}

/// The folder of the project.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// A ClickHouse server to fill with rows.
#[derive(Clone)]
pub struct Server {
    pub url: String,
    pub user: String,
    pub password: String,
}

impl Server {
    pub fn of(part: &Value) -> Self {
        let text = |key: &str| part[key].as_str().expect("a text").to_owned();
        Server {
            url: text("url"),
            user: text("user"),
            password: text("password"),
        }
    }

    /// The shared server of that name.
    pub fn named(name: &str) -> Self {
        Server::of(part(name))
    }

    /// Runs a statement; a failure fails the test.
    pub fn run(&self, sql: &str) -> String {
        let mut answer = ureq::post(&self.url)
            .header("X-ClickHouse-User", &self.user)
            .header("X-ClickHouse-Key", &self.password)
            .config()
            .http_status_as_error(false)
            .build()
            .send(sql)
            .unwrap_or_else(|error| panic!("{sql}: {error}"));
        let text = answer.body_mut().read_to_string().expect("a text");
        assert!(answer.status().is_success(), "{sql}: {text}");
        text.trim_end().to_owned()
    }

    /// The same server, seen by another user of `dev/up`.
    pub fn as_user(&self, user: &Value) -> Self {
        let text = |key: &str| user[key].as_str().expect("a text").to_owned();
        Server {
            url: self.url.clone(),
            user: text("user"),
            password: text("password"),
        }
    }

    /// A new database, dropped with the value.
    pub fn database(&self) -> Database {
        self.database_named(&unique("t"))
    }

    /// A new database of this name, which must be unique.
    pub fn database_named(&self, name: &str) -> Database {
        let database = Database {
            server: self.clone(),
            name: name.to_owned(),
        };
        database.run("CREATE DATABASE DB");
        database
    }

    /// The source of a configuration, up to its checks, which the caller appends with an indent of
    /// four. It has none, not even that of the part_log.
    pub fn source(&self, name: &str) -> String {
        self.source_with_part_log(name) + "    part_log: {include: []}\n"
    }

    /// The same, but for the check of the part_log, which every source has by itself.
    pub fn source_with_part_log(&self, name: &str) -> String {
        format!(
            "  - name: {name}\n    url: {}\n    user: {}\n    password: {}\n",
            self.url, self.user, self.password
        )
    }
}

/// A database of one test.
pub struct Database {
    pub server: Server,
    pub name: String,
}

impl Database {
    /// Runs a statement in which `DB` stands for the database.
    pub fn run(&self, sql: &str) -> String {
        self.server.run(&sql.replace("DB", &self.quoted()))
    }

    fn quoted(&self) -> String {
        format!("`{}`", self.name.replace('\\', r"\\").replace('`', r"\`"))
    }

    /// A source of a configuration that watches these tables: their names, and the keys of their
    /// checks. The caller may append keys of the source, with an indent of four.
    pub fn tables(&self, source: &str, tables: &[(&str, &str)]) -> String {
        let mut yaml = self.server.source(source) + "    tables:\n";
        for (table, keys) in tables {
            yaml += &format!(
                "      - {{database: {}, table: {}, timeout: 50s, {keys}}}\n",
                Value::from(&*self.name),
                Value::from(*table)
            );
        }
        yaml
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        // Best effort: the server may be gone, and the whole instance goes with the run.
        let _ = ureq::post(&self.server.url)
            .header("X-ClickHouse-User", &self.server.user)
            .header("X-ClickHouse-Key", &self.server.password)
            .send(format!("DROP DATABASE IF EXISTS {}", self.quoted()));
    }
}

// ---- The exporter ----

/// An exporter on a port of its own, inside the test's process; stopped with the value.
pub struct Exporter {
    address: SocketAddr,
    file: NamedTempFile,
    shutdown: CancellationToken,
    thread: Option<JoinHandle<()>>,
}

impl Exporter {
    /// Starts one with this configuration.
    pub fn start(yaml: &str) -> Self {
        let (config, file) = config(yaml);
        let shutdown = CancellationToken::new();
        let stop = shutdown.clone();
        let (tell, told) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Runtime::new().expect("a runtime");
            runtime.block_on(async {
                let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
                    .await
                    .expect("a port");
                tell.send(listener.local_addr().expect("an address"))
                    .expect("somebody listens");
                dup_exporter::run(config, listener, stop, Default::default())
                    .await
                    .expect("a clean run");
            });
        });
        Exporter {
            address: told.recv().expect("the exporter listens"),
            file,
            shutdown,
            thread: Some(thread),
        }
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// Asks it to read this configuration in place of the one before; status and words of the answer.
    pub fn reload(&self, yaml: &str) -> (u16, String) {
        std::fs::write(self.file.path(), yaml).expect("a writable file");
        let request = ureq::post(self.url("/-/reload")).config();
        let mut answer = (request.http_status_as_error(false).build().send_empty())
            .expect("the exporter answers");
        let words = answer.body_mut().read_to_string().expect("a text");
        (answer.status().as_u16(), words)
    }

    /// The body of a page, whatever its status.
    pub fn get(&self, path: &str) -> (u16, String) {
        get(&self.url(path))
    }

    /// The metrics right now.
    pub fn scrape(&self) -> Page {
        Page::parse(&self.get("/metrics").1)
    }

    /// The metrics once every check was polled.
    pub fn polled(&self) -> Page {
        wait_for("a poll of every check", || {
            (self.get("/-/ready").0 == 200).then_some(())
        });
        self.scrape()
    }

    /// The metrics once every check was polled and found in order.
    pub fn good(&self) -> Page {
        let page = self.polled();
        let up = page.all("dup_check_up").values().all(|up| *up == 1.0);
        assert!(up, "every check is up: {}", self.get("/").1);
        page
    }

    /// The row of a check on the landing page, as a reader sees it.
    pub fn row(&self, check: &str) -> String {
        let mut page = self.get("/").1;
        for (escaped, sign) in [
            ("&lt;", "<"),
            ("&gt;", ">"),
            ("&#39;", "'"),
            ("&quot;", "\""),
            ("&amp;", "&"),
        ] {
            page = page.replace(escaped, sign);
        }
        let row = page
            .lines()
            .find(|line| line.contains(&format!("<td>{check}</td>")));
        row.unwrap_or_else(|| panic!("{check} is on {page}"))
            .to_owned()
    }

    /// The last poll of a check failed for this reason, and in these words.
    pub fn assert_fails(&self, check: &str, reason: &str, words: &str) {
        let (page, row) = (self.polled(), self.row(check));
        let failures = [("check", check), ("reason", reason)];
        assert_eq!(
            page.get("dup_check_up", &[("check", check)]),
            Some(0.0),
            "{row}"
        );
        assert!(
            page.get("dup_check_failures_total", &failures) >= Some(1.0),
            "{row}"
        );
        assert!(
            row.contains(&format!("<td>{reason}: ")) && row.contains(words),
            "{words}: {row}"
        );
    }

    /// The metrics once every check has had a poll that began after this call.
    pub fn fresh(&self) -> Page {
        let before = self.scrape().all("dup_check_polls_total");
        wait_for("two more polls of every check", || {
            let page = self.scrape();
            let after = page.all("dup_check_polls_total");
            // The first of the two may have begun before the call.
            let passed = after
                .iter()
                .all(|(labels, polls)| *polls >= before[labels] + 2.0);
            passed.then_some(page)
        })
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        self.shutdown.cancel();
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            assert!(
                ended.is_ok() || std::thread::panicking(),
                "the exporter ends without a panic"
            );
        }
    }
}

/// Status code and text of a page, whatever its status.
pub fn get(url: &str) -> (u16, String) {
    let mut answer = ureq::get(url)
        .config()
        .http_status_as_error(false)
        .build()
        .call()
        .expect("the exporter answers");
    let text = answer.body_mut().read_to_string().expect("a text");
    (answer.status().as_u16(), text)
}

/// A configuration from text, whose Kafka worker is the real program, and its file.
pub fn config(yaml: &str) -> (Config, NamedTempFile) {
    let file = NamedTempFile::new().expect("a temporary file");
    std::fs::write(file.path(), yaml).expect("a writable file");
    let mut config = Config::load(file.path()).unwrap_or_else(|error| panic!("{error}\n{yaml}"));
    config.worker_program = PathBuf::from(env!("CARGO_BIN_EXE_dup_exporter"));
    (config, file)
}

// ---- The page ----

/// A scraped page: names, labels and values.
#[derive(Debug)]
pub struct Page {
    samples: Vec<(String, BTreeMap<String, String>, f64)>,
    pub text: String,
}

impl Page {
    pub fn parse(text: &str) -> Self {
        let lines = text
            .lines()
            .filter(|line| !line.is_empty() && !line.starts_with('#'));
        Page {
            samples: lines.map(parse_sample).collect(),
            text: text.to_owned(),
        }
    }

    /// The value of the one series with these labels, among others; `None` when there is none.
    pub fn get(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let found: Vec<_> = self
            .samples
            .iter()
            .filter(|(n, l, _)| {
                n == name
                    && labels
                        .iter()
                        .all(|(k, v)| l.get(*k).is_some_and(|found| found == v))
            })
            .collect();
        assert!(
            found.len() <= 1,
            "{name}{labels:?} names one series: {found:?}"
        );
        found.first().map(|sample| sample.2)
    }

    /// Every series of a name.
    pub fn all(&self, name: &str) -> BTreeMap<BTreeMap<String, String>, f64> {
        let named = self.samples.iter().filter(|(n, _, _)| n == name);
        named
            .map(|(_, labels, value)| (labels.clone(), *value))
            .collect()
    }

    /// The names that have series.
    pub fn names(&self) -> std::collections::BTreeSet<&str> {
        self.samples
            .iter()
            .map(|(name, _, _)| name.as_str())
            .collect()
    }
}

fn parse_sample(line: &str) -> (String, BTreeMap<String, String>, f64) {
    let mut labels = BTreeMap::new();
    let (head, value) = line.rsplit_once(' ').expect("a value");
    let (name, mut rest) = head.split_once('{').unwrap_or((head, ""));
    while let Some((label, after)) = rest.split_once("=\"") {
        let mut text = String::new();
        let mut chars = after.char_indices();
        let end = loop {
            match chars.next().expect("a closing quote") {
                (at, '"') => break at,
                (_, '\\') => text.push(match chars.next().expect("an escaped character").1 {
                    'n' => '\n',
                    c => c,
                }),
                (_, c) => text.push(c),
            }
        };
        labels.insert(label.trim_start_matches(',').to_owned(), text);
        rest = &after[end + 1..];
    }
    (name.to_owned(), labels, value.parse().expect("a number"))
}
