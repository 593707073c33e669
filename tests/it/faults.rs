//! Servers that die, hang, lie or are asked too much; and secrets, which nobody may read.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::program::{Program, command, run};
use crate::support::{Exporter, OwnParts, Page, Server, part, wait_for};

// ---- A server of one's own making ----

/// Writes the answer to a request, whose body it is given; whatever it does not write, is missing.
type Answer = dyn Fn(&str, &mut TcpStream) -> io::Result<()> + Send + Sync;

/// A server that answers each request and then hangs up. It stays until the tests end.
struct Fake {
    address: SocketAddr,
}

impl Fake {
    fn new(
        answer: impl Fn(&str, &mut TcpStream) -> io::Result<()> + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let answer: Arc<Answer> = Arc::new(answer);
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let answer = answer.clone();
                std::thread::spawn(move || converse(stream, &*answer));
            }
        });
        Fake { address }
    }

    /// A ClickHouse with a table of seven rows and five keys, that lies when it is asked for them.
    fn lying(lie: impl Fn(&mut TcpStream) -> io::Result<()> + Send + Sync + 'static) -> Self {
        Fake::new(move |sql, stream| match sql {
            sql if sql.contains("dup_rows_0") => lie(stream),
            sql if sql.contains("dup_future") => stream.write_all(&ok(FUTURE)),
            sql if sql.contains("dup_shards") => stream.write_all(&ok(PARTS)),
            sql if sql.contains("system.settings") => stream.write_all(&ok(SETTINGS)),
            sql if sql.contains("system.columns") => stream.write_all(&ok(COLUMNS)),
            _ => stream.write_all(&ok(ABOUT)),
        })
    }

    /// The source of a configuration that watches that table.
    fn source(&self, name: &str) -> String {
        format!(
            "  - name: {name}\n    url: http://{}\n    part_log: {{include: []}}\n    tables:\n      \
             - {{database: d, table: t, key: [id], time: ts, windows: [10m], interval: 1s}}\n",
            self.address
        )
    }
}

const SETTINGS: &str = "{\"names\":\"['final']\",\"may_write\":1}\n";
const COLUMNS: &str =
    "{\"name\":\"id\",\"type\":\"UInt64\"}\n{\"name\":\"ts\",\"type\":\"DateTime\"}\n";
const ABOUT: &str =
    "{\"engine\":\"MergeTree\",\"engine_full\":\"MergeTree ORDER BY id\",\"sorting_key\":\"id\"}\n";
const PARTS: &str = "{\"dup_shards\":1,\"dup_rows\":7,\"dup_partitions\":1}\n";
const FUTURE: &str = "{\"dup_future\":0,\"dup_ahead\":0}\n";
const SEVEN: &str = "{\"rows_0\":7,\"keys_0\":5,\"duplicated_0\":2,\"null_0\":0,\"future\":0}\n";

fn converse(mut stream: TcpStream, answer: &Answer) -> io::Result<()> {
    let mut request = Vec::new();
    let mut byte = [0];
    while !request.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte)?;
        request.push(byte[0]);
    }
    let head = String::from_utf8_lossy(&request).to_lowercase();
    let length = head
        .lines()
        .find_map(|line| line.strip_prefix("content-length: "));
    let mut body = vec![0; length.and_then(|length| length.parse().ok()).unwrap_or(0)];
    stream.read_exact(&mut body)?;
    answer(&String::from_utf8_lossy(&body), &mut stream)
}

fn http(status: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}")
        .into()
}

fn ok(body: &str) -> Vec<u8> {
    http("200 OK", body)
}

/// Says no more, and does not hang up.
fn hang() -> io::Result<()> {
    loop {
        std::thread::park();
    }
}

// ---- Lies ----

#[test]
fn no_lie_of_a_server_becomes_a_figure() {
    let code = |code: u32| format!("Code: {code}. DB::Exception: Something. (SOMETHING)\n");
    let (cut, half) = (&SEVEN[..SEVEN.len() - 1], &SEVEN[..SEVEN.len() / 2]);
    let proxy = "<html><body><h1>502 Bad Gateway</h1></body></html>\n";
    let broken = |body: &str, length: usize| {
        format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n{body}").into_bytes()
    };
    let chunk = format!("{:x}\r\n{SEVEN}\r\n", SEVEN.len());
    let lies: Vec<(&str, &str, Vec<u8>)> = vec![
        ("an-error-behind-200", "protocol", ok(&code(159))),
        (
            "a-row-and-an-error",
            "protocol",
            ok(&(SEVEN.to_owned() + &code(241))),
        ),
        ("a-cut-body", "protocol", broken(SEVEN, 1000)),
        (
            "a-cut-chunked-body",
            "protocol",
            format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{chunk}").into(),
        ),
        ("half-a-row", "protocol", ok(half)),
        ("a-row-without-its-end", "protocol", ok(cut)),
        ("nothing", "protocol", ok("")),
        ("two-rows", "protocol", ok(&SEVEN.repeat(2))),
        ("other-columns", "protocol", ok(ABOUT)),
        ("a-null", "protocol", ok(&SEVEN.replace('5', "null"))),
        ("minus", "protocol", ok(&SEVEN.replace('5', "-5"))),
        ("a-fraction", "protocol", ok(&SEVEN.replace('5', "5.5"))),
        ("another-format", "protocol", ok("7\t5\t2\t0\t0\n")),
        ("a-proxy", "protocol", http("502 Bad Gateway", proxy)),
        ("a-proxy-behind-200", "protocol", ok(proxy)),
        ("a-redirect", "protocol", http("302 Found", "")),
        ("a-hang-up", "connection", Vec::new()),
        (
            "no-http",
            "connection",
            b"\x15\x03\x01\x00\x02\x02\x46".to_vec(),
        ),
        (
            "a-timeout",
            "timeout",
            http("408 Request Timeout", &code(159)),
        ),
        (
            "too-much-memory",
            "limit",
            http("500 Internal Server Error", &code(241)),
        ),
        (
            "an-unheard-of-error",
            "server",
            http("500 Internal Server Error", &code(9999)),
        ),
    ];
    let mut yaml = "clickhouse:\n".to_owned();
    yaml += &Fake::lying(|stream| stream.write_all(&ok(SEVEN))).source("honest");
    yaml += &Fake::lying(|stream| {
        stream.write_all(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")?;
        loop {
            stream.write_all(SEVEN.repeat(1000).as_bytes())?;
        }
    })
    .source("endless");
    for (name, _, bytes) in &lies {
        let bytes = bytes.clone();
        yaml += &Fake::lying(move |stream| stream.write_all(&bytes)).source(name);
    }
    let exporter = Exporter::start(&yaml);
    let page = exporter.fresh();
    let reasons = lies.iter().map(|(name, reason, _)| (*name, *reason));
    for (source, reason) in reasons.chain([("endless", "protocol")]) {
        let failures = |reason| {
            let labels = [("source", source), ("reason", reason)];
            page.get("dup_check_failures_total", &labels) >= Some(1.0)
        };
        let all = page.all("dup_check_failures_total");
        let said: Vec<_> = all
            .iter()
            .filter(|(labels, count)| labels["source"] == source && **count > 0.0)
            .collect();
        assert!(failures(reason) && said.len() == 1, "{source}: {said:?}");
        assert_eq!(
            page.get("dup_check_up", &[("source", source)]),
            Some(0.0),
            "{source}"
        );
    }
    assert_eq!(page.get("dup_factor", &[("source", "honest")]), Some(1.4));
    for name in ["dup_rows", "dup_keys", "dup_factor", "dup_future_rows"] {
        assert_eq!(page.all(name).len(), 1, "{name} is only of the honest one");
    }
    assert_eq!(exporter.get("/-/healthy").0, 200);
}

#[test]
fn what_is_no_clickhouse_at_all_is_a_source_that_is_down() {
    let proxy = Fake::new(|_, stream| stream.write_all(&http("502 Bad Gateway", "<html>")));
    let exporter = Exporter::start(&format!("clickhouse:\n{}", proxy.source("ch")));
    let page = exporter.polled();
    assert_eq!(page.get("dup_source_up", &[]), Some(0.0));
    exporter.assert_fails("table:d.t", "protocol", "<html>");
}

// ---- Death and silence ----

/// What a page says of the one table, after it was asked for in no time.
fn scrape_at_once(exporter: &Exporter) -> Page {
    let start = Instant::now();
    let page = exporter.scrape();
    let took = start.elapsed();
    assert!(took < Duration::from_secs(1), "a scrape took {took:?}");
    page
}

#[test]
fn r16_a_dead_server_freezes_no_figure_and_needs_no_restart_of_the_exporter() {
    let mut own = OwnParts::start(&["clickhouse-18"]);
    let database = Server::of(own.part("clickhouse-18")).database();
    database.run(
        "CREATE TABLE DB.t (id UInt64, ts DateTime DEFAULT now()) ENGINE = MergeTree ORDER BY id",
    );
    database.run("INSERT INTO DB.t (id) SELECT number % 5 FROM numbers(7)");
    let keys = "key: [id], time: ts, windows: [1h], interval: 1s, stale_after: 4s";
    let yaml = database.tables("ch", &[("t", keys)]);
    let exporter = Exporter::start(&format!("clickhouse:\n{yaml}"));
    assert_eq!(exporter.good().get("dup_factor", &[]), Some(1.4));

    own.kill("clickhouse-18");
    let mut page = wait_for("the failure", || {
        let page = scrape_at_once(&exporter);
        (page.get("dup_check_up", &[]) == Some(0.0)).then_some(page)
    });
    assert_eq!(page.get("dup_source_up", &[]), Some(0.0));
    let success = "dup_check_last_success_timestamp_seconds";
    let last_success = page.get(success, &[]).expect("a success");
    assert_eq!(page.get("dup_factor", &[]), Some(1.4), "until stale_after");
    wait_for("the end of the figure", || {
        page = scrape_at_once(&exporter);
        assert_eq!(page.get(success, &[]), Some(last_success));
        let factor = page.get("dup_factor", &[]);
        assert!(factor.is_none() || factor == Some(1.4), "{factor:?}");
        factor.is_none().then_some(())
    });
    for name in ["dup_rows", "dup_keys", "dup_future_rows"] {
        assert_eq!(page.get(name, &[]), None, "{name} is absent, and not 0");
    }
    exporter.assert_fails(&format!("table:{}.t", database.name), "connection", "");

    own.up(&["clickhouse-18"]);
    let page = wait_for("the figure", || {
        let page = scrape_at_once(&exporter);
        (page.get("dup_factor", &[]) == Some(1.4)).then_some(page)
    });
    assert_eq!(page.get("dup_check_up", &[]), Some(1.0));
    assert_eq!(page.get("dup_source_up", &[]), Some(1.0));
    assert!(page.get(success, &[]) > Some(last_success));
}

#[test]
fn a_server_that_never_answers_delays_nobody() {
    let database = Server::named("clickhouse-18").database();
    database.run(
        "CREATE TABLE DB.t (id UInt64, ts DateTime DEFAULT now()) ENGINE = MergeTree ORDER BY id",
    );
    database.run("INSERT INTO DB.t (id) SELECT number % 5 FROM numbers(7)");
    let silent = Fake::new(|_, _| hang());
    let halting = Fake::lying(|stream| {
        stream.write_all(&ok(SEVEN)[..80])?;
        hang()
    });
    let keys = "key: [id], time: ts, windows: [1h], interval: 1s";
    let exporter = Exporter::start(&format!(
        "timeout: 2s\nclickhouse:\n{}{}{}",
        silent.source("silent"),
        halting.source("halting"),
        database.tables("well", &[("t", keys)]),
    ));
    let is = |page: &Page, source, reason| {
        let labels = [("source", source), ("reason", reason)];
        page.get("dup_check_failures_total", &labels)
    };
    let page = wait_for("two timeouts of each", || {
        let page = scrape_at_once(&exporter);
        let twice = |source| is(&page, source, "timeout") >= Some(2.0);
        (twice("silent") && twice("halting")).then_some(page)
    });
    // The other one was polled each second meanwhile, and once at the very start.
    let polls = page.get("dup_check_polls_total", &[("source", "well")]);
    assert!(polls >= Some(3.0), "{polls:?}");
    assert_eq!(page.get("dup_factor", &[("source", "well")]), Some(1.4));
    assert_eq!(page.all("dup_factor").len(), 1);
    for (source, up) in [("silent", 0.0), ("well", 1.0)] {
        assert_eq!(
            page.get("dup_source_up", &[("source", source)]),
            Some(up),
            "{source}"
        );
    }
    let start = Instant::now();
    drop(exporter);
    let took = start.elapsed();
    assert!(took < Duration::from_secs(1), "the end took {took:?}");
}

/// The tables that a match finds in the server of the test below.
fn six_tables() -> String {
    let row = |i| format!("{{\"name\":\"t{i}\",\"engine\":\"MergeTree\"}}\n");
    (0..6).map(row).collect()
}

#[test]
fn of_many_slow_tables_each_has_its_turn_and_none_takes_the_source_down() {
    let slow = Fake::new(|sql, stream| match sql {
        sql if sql.contains("dup_rows_0") => {
            std::thread::sleep(Duration::from_millis(700));
            stream.write_all(&ok(SEVEN))
        }
        sql if sql.contains("SELECT name, engine FROM") => stream.write_all(&ok(&six_tables())),
        sql if sql.contains("dup_future") => stream.write_all(&ok(FUTURE)),
        sql if sql.contains("dup_shards") => stream.write_all(&ok(PARTS)),
        sql if sql.contains("system.settings") => stream.write_all(&ok(SETTINGS)),
        sql if sql.contains("system.columns") => stream.write_all(&ok(COLUMNS)),
        _ => stream.write_all(&ok(ABOUT)),
    });
    // A poll begins with tables for one second, which is time enough for two.
    let exporter = Exporter::start(&format!(
        "clickhouse:\n  - name: ch\n    url: http://{}\n    part_log: {{include: []}}\n    tables:\n      \
         - {{database: d, match: t, engines: [MergeTree], key: [id], time: ts, windows: [10m], \
         interval: 2s, timeout: 2s, stale_after: 2m}}\n",
        slow.address
    ));
    wait_for("figures of all six", || {
        let page = exporter.scrape();
        let up = page.get("dup_source_up", &[]);
        assert_ne!(up, Some(0.0), "nothing is wrong with the source");
        (page.all("dup_factor").len() == 6).then_some(())
    });
}

// ---- Too long a query ----

/// A table that is read for ever, without work for anybody: a wait stands before each block.
const ENDLESS: &str = "CREATE VIEW DB.t AS SELECT number % 5 AS id, now() AS ts \
                       FROM system.numbers WHERE sleep(0.1) = 0";

/// How many queries of exporters on this table run on the server.
fn running(server: &Server, database: &str) -> u32 {
    let count = server.run(&format!(
        "SELECT count() FROM system.processes WHERE query LIKE '%FROM `{database}`.`t`%' \
         AND query_id LIKE 'dup_exporter-%'"
    ));
    count.parse().expect("a count")
}

fn assert_ends_within_five_seconds(server: &Server, database: &str) {
    let start = Instant::now();
    wait_for("the end of the query", || {
        (running(server, database) == 0).then_some(())
    });
    let took = start.elapsed();
    assert!(
        took < Duration::from_secs(5),
        "the query went on for {took:?}"
    );
}

#[test]
fn a_poll_that_runs_out_of_time_leaves_nothing_running() {
    let server = Server::named("clickhouse-18");
    // The server keeps the limit of the one; it was told none by the other, who may set none.
    let reader = server.as_user(&part("clickhouse-18")["ro1"]);
    for (user, limits) in [(&server, Some(1.0)), (&reader, Some(0.0))] {
        let mut database = server.database();
        database.run(ENDLESS);
        database.server = user.clone();
        let yaml = database.tables("ch", &[("t", "key: [id], time: ts")]);
        let yaml = yaml.replace("timeout: 50s", "timeout: 3s");
        let exporter = Exporter::start(&format!("clickhouse:\n{yaml}"));
        wait_for("the query", || {
            (running(&server, &database.name) > 0).then_some(())
        });
        exporter.assert_fails(&format!("table:{}.t", database.name), "timeout", "");
        assert_ends_within_five_seconds(&server, &database.name);
        let page = exporter.scrape();
        assert_eq!(
            page.get("dup_source_limits_enforced", &[]),
            limits,
            "{}",
            user.user
        );
        assert!(page.all("dup_factor").is_empty());
        database.server = server.clone();
    }
}

#[test]
fn a_shutdown_leaves_nothing_running() {
    let server = Server::named("clickhouse-18");
    let mut database = server.database();
    database.run(ENDLESS);
    database.server = server.as_user(&part("clickhouse-18")["ro1"]);
    let yaml = database.tables("ch", &[("t", "key: [id], time: ts")]);
    let exporter = Exporter::start(&format!("clickhouse:\n{yaml}"));
    wait_for("the query", || {
        (running(&server, &database.name) > 0).then_some(())
    });
    let start = Instant::now();
    drop(exporter);
    let took = start.elapsed();
    assert!(took < Duration::from_secs(1), "the end took {took:?}");
    assert_ends_within_five_seconds(&server, &database.name);
    database.server = server;
}

// ---- Secrets ----

#[test]
fn r21_no_secret_is_told_to_anybody() {
    let real = Server::named("clickhouse-18").url;
    let beside = real.trim_start_matches("http://");
    let table = "tables: [{database: d, table: t, key: [id], time: ts}]";
    let yaml = format!(
        "timeout: 3s
clickhouse:
  - {{name: in-url, url: 'http://mon:S3cr3t-1@{beside}', {table}}}
  - {{name: in-place, url: '{real}', user: dup, password: S3cr3t-2, {table}}}
  - {{name: of-nobody, url: 'http://mon:S3cr3t-3@127.0.0.1:1/S3cr3t-4/', {table}}}
  - {{name: no-tls, url: 'https://mon:S3cr3t-5@{beside}', {table}}}
  - {{name: no-host, url: 'http://mon:S3cr3t-6@no-host.invalid', {table}}}
kafka:
  - name: sasl
    bootstrap_servers: 127.0.0.1:1
    properties:
      security.protocol: SASL_PLAINTEXT
      sasl.mechanism: PLAIN
      sasl.username: mon
      sasl.password: S3cr3t-7
      debug: all
  - {{name: pem, bootstrap_servers: '127.0.0.1:1', properties: {{security.protocol: SSL, ssl.certificate.pem: S3cr3t-10, ssl.key.pem: S3cr3t-8, ssl.key.password: S3cr3t-9}}}}
"
    );
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (config, stdout) = (folder.path().join("c.yml"), folder.path().join("stdout"));
    std::fs::write(&config, yaml).expect("a writable folder");
    let flags = [
        "--web.listen-address=127.0.0.1:0",
        "--log.level=trace",
        "--config.file",
    ];
    let mut program = Program::spawn(
        command(&flags)
            .arg(&config)
            .stdout(File::create(&stdout).expect("a writable folder")),
    );
    let address = program.address();
    let get = |path: &str| {
        let answer = ureq::get(format!("http://{address}{path}"))
            .config()
            .http_status_as_error(false)
            .build()
            .call();
        let mut answer = answer.expect("the exporter answers");
        let text = answer.body_mut().read_to_string().expect("a text");
        (answer.status().as_u16(), text)
    };
    wait_for("a poll of every check", || {
        (get("/-/ready").0 == 200).then_some(())
    });
    let (metrics, landing) = (get("/metrics").1, get("/").1);
    let (status, took) = program.stop("-TERM");
    assert!(status.success(), "{status}");
    assert!(took < Duration::from_secs(1), "the end took {took:?}");
    let log = [program.seen.clone(), program.rest()].concat().join("\n");

    let up = Page::parse(&metrics).all("dup_check_up");
    assert_eq!(up.len(), 12);
    assert!(
        up.values().all(|up| *up == 0.0),
        "every check has something to tell"
    );
    assert!(
        log.contains("poll failed") && log.contains("level=debug"),
        "{log}"
    );
    assert!(
        landing.contains("auth: ") && landing.contains("connection: "),
        "{landing}"
    );
    let stdout = std::fs::read_to_string(&stdout).expect("a readable file");
    for (place, text) in [
        ("stdout", stdout),
        ("stderr", log),
        ("/metrics", metrics),
        ("/", landing),
    ] {
        let leak = text.lines().find(|line| line.contains("S3cr3t"));
        assert_eq!(leak, None, "{place}");
    }
}

#[test]
fn r21_the_secret_of_a_misspelt_property_is_told_to_nobody() {
    let config = tempfile::NamedTempFile::new().expect("a temporary file");
    let path = config.path().to_str().expect("UTF-8");
    for property in [
        "sasl.pasword: S3cr3t",
        "sasl.password: S3cr3t, sasl.mechanism: SCRAM",
        "sasl.oauthbearer.assertion.algorithm: S3cr3t",
    ] {
        let source = "kafka: [{name: k, bootstrap_servers: '127.0.0.1:1', properties: ";
        // By the environment, as a secret should be: what is written down can be read anyway.
        let yaml = format!(
            "{source}{{{}}}}}]\n",
            property.replace("S3cr3t", "'${DUP_SECRET}'")
        );
        std::fs::write(config.path(), yaml).expect("a writable file");
        for flags in [
            &["--config.check"][..],
            &["--web.listen-address=127.0.0.1:0"],
        ] {
            let (status, out, log) = run(command(&["--log.level=trace", "--config.file", path])
                .args(flags)
                .env("DUP_SECRET", "S3cr3t"));
            assert_eq!(status, Some(1), "{property}: {log}");
            assert!(log.contains(":1:"), "{property}: {log}");
            assert!(!(out + &log).contains("S3cr3t"), "{property}");
        }
    }
}

// ---- Abuse ----

#[test]
fn an_endless_error_is_not_collected() {
    let sent = Arc::new(AtomicUsize::new(0));
    let most = sent.clone();
    let fake = Fake::new(move |_, stream| {
        stream.write_all(b"HTTP/1.1 500 No\r\nTransfer-Encoding: chunked\r\n\r\n")?;
        let chunk = format!("10000\r\n{}\r\n", "x".repeat(0x10000));
        for chunks in 1.. {
            stream.write_all(chunk.as_bytes())?;
            most.fetch_max(chunks * chunk.len(), Ordering::Relaxed);
        }
        Ok(())
    });
    let exporter = Exporter::start(&format!("clickhouse:\n{}", fake.source("ch")));
    let page = exporter.fresh();
    assert_eq!(
        page.get("dup_check_up", &[("check", "table:d.t")]),
        Some(0.0)
    );
    let sent = sent.load(Ordering::Relaxed);
    // The bound of 32 MiB, and what lies in the buffers of two sockets.
    assert!(
        sent > 30 << 20 && sent < 48 << 20,
        "{sent} bytes were taken"
    );
}

#[test]
fn clients_that_say_nothing_do_not_keep_prometheus_out() {
    let fake = Fake::new(|_, _| hang());
    let exporter = Exporter::start(&format!("clickhouse:\n{}", fake.source("ch")));
    let address = exporter.url("").replace("http://", "");
    let silent: Vec<_> = (0..300)
        .map(|i| {
            let mut stream = TcpStream::connect(&address).expect("a connection");
            if i % 2 == 0 {
                stream.write_all(b"GET /metrics HTT").expect("a start");
            }
            stream
        })
        .collect();
    // A client may be silent for 10 s, and 256 are served at once.
    let asked = Instant::now();
    assert_eq!(exporter.get("/-/healthy").0, 200);
    assert!(
        asked.elapsed() < Duration::from_secs(20),
        "{:?}",
        asked.elapsed()
    );
    drop(silent);
}

#[test]
fn a_log_that_nobody_reads_holds_up_nothing() {
    let mut yaml = String::from(
        "clickhouse:\n  - name: ch\n    url: http://127.0.0.1:1\n    part_log: {include: []}\n    tables:\n",
    );
    for i in 0..100 {
        yaml +=
            &format!("      - {{database: d, table: t{i}, key: [k], time: ts, interval: 1s}}\n");
    }
    let config = tempfile::NamedTempFile::new().expect("a temporary file");
    std::fs::write(config.path(), yaml).expect("a writable file");
    let free = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = free.local_addr().expect("an address").to_string();
    drop(free);
    let config = config.path().to_str().expect("UTF-8");
    let mut unread = Program::unread(&mut command(&[
        "--log.level=trace",
        "--config.file",
        config,
        "--web.listen-address",
        &address,
    ]));
    // Each poll logs far more than 100 bytes, and a pipe takes 64 KiB.
    wait_for("more log than the pipe takes", || {
        let mut page = ureq::get(format!("http://{address}/metrics")).call().ok()?;
        let page = Page::parse(&page.body_mut().read_to_string().ok()?);
        let polls: f64 = page.all("dup_check_polls_total").values().sum();
        (polls > 1000.0).then_some(())
    });
    let (status, took) = unread.stop("-TERM");
    assert_eq!(status.code(), Some(0));
    assert!(took < Duration::from_secs(1), "{took:?}");
}

#[test]
fn a_check_that_waits_too_long_for_its_turn_has_failed() {
    let fake = Fake::new(|_, _| hang());
    let mut yaml = format!(
        "clickhouse:\n  - name: ch\n    url: http://{}\n    part_log: {{include: []}}\n    tables:\n",
        fake.address
    );
    for i in 0..10 {
        yaml += &format!(
            "      - {{database: d, table: t{i}, key: [k], time: ts, interval: 1s, timeout: 30s}}\n"
        );
    }
    let exporter = Exporter::start(&yaml);
    wait_for(
        "all but the two that are under way are written down",
        || {
            let polls = exporter.scrape().all("dup_check_polls_total");
            let waited = polls.values().filter(|polls| **polls > 0.0).count();
            (waited == 8).then_some(())
        },
    );
    let page = exporter.scrape();
    assert!(page.all("dup_check_up").values().all(|up| *up == 0.0));
}
