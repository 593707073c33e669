//! What is served: the pages, how they travel, and the whole metrics page of a real run.

use std::io::{Read, Write};
use std::process::{Command, Stdio};

use crate::kafka::{Cluster, is_real_kafka};
use crate::program::Hanging;
use crate::support::{Database, Exporter, Page, Server, part, wait_for};

const TEXT_FORMAT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// An answer, whatever its status: status, headers, and the body as it came.
struct Answer {
    status: u16,
    headers: ureq::http::HeaderMap,
    body: Vec<u8>,
}

impl Answer {
    fn to(exporter: &Exporter, method: &str, path: &str, headers: &[(&str, &str)]) -> Self {
        let mut request = ureq::http::Request::builder()
            .method(method)
            .uri(exporter.url(path));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(()).expect("a request");
        let agent = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .allow_non_standard_methods(true)
            .build()
            .new_agent();
        let mut answer = agent.run(request).expect("the exporter answers");
        let mut body = Vec::new();
        let read = answer.body_mut().as_reader().read_to_end(&mut body);
        read.expect("a whole body");
        Answer {
            status: answer.status().as_u16(),
            headers: answer.headers().clone(),
            body,
        }
    }

    fn header(&self, name: &str) -> &str {
        let value = self.headers.get(name).map(|value| value.to_str());
        value.transpose().expect("ASCII").unwrap_or_default()
    }

    fn text(&self) -> &str {
        std::str::from_utf8(&self.body).expect("UTF-8")
    }
}

/// Runs a program with this on its standard input; what it writes to both outputs, and whether it
/// liked it.
fn pipe(command: &mut Command, input: &[u8]) -> (bool, String) {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program is there");
    let mut stdin = child.stdin.take().expect("a pipe");
    let input = input.to_owned();
    let writer = std::thread::spawn(move || stdin.write_all(&input));
    let output = child.wait_with_output().expect("it ends");
    writer.join().expect("no panic").expect("it reads");
    let words = [output.stdout, output.stderr].concat();
    (
        output.status.success(),
        String::from_utf8(words).expect("UTF-8"),
    )
}

/// The page without what changes from scrape to scrape.
fn still(page: &str) -> String {
    let lines = page.lines().filter(|line| !line.starts_with("process_"));
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn metrics_come_as_prometheus_wants_them() {
    let exporter = Exporter::start(&Hanging::new().yaml);
    for accept in [
        "*/*",
        "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5",
    ] {
        let plain = Answer::to(&exporter, "GET", "/metrics", &[("Accept", accept)]);
        assert_eq!(plain.status, 200);
        assert_eq!(plain.header("Content-Type"), TEXT_FORMAT);
        assert_eq!(plain.header("Content-Encoding"), "");
        assert!(plain.text().ends_with('\n'));
    }
}

#[test]
fn gzip_is_sent_to_who_asks_for_it_and_holds_the_same_text() {
    let exporter = Exporter::start(&Hanging::new().yaml);
    let asked = [("Accept-Encoding", "gzip")];
    let zipped = Answer::to(&exporter, "GET", "/metrics", &asked);
    assert_eq!(zipped.header("Content-Type"), TEXT_FORMAT);
    assert_eq!(zipped.header("Content-Encoding"), "gzip");
    let (ok, text) = pipe(Command::new("gzip").arg("-dc"), &zipped.body);
    assert!(ok, "{text}");
    let plain = Answer::to(&exporter, "GET", "/metrics", &[]);
    assert_eq!(still(&text), still(plain.text()));
}

#[test]
fn head_is_answered_like_get_without_a_body() {
    let exporter = Exporter::start(&Hanging::new().yaml);
    for path in ["/metrics", "/", "/-/healthy"] {
        let (get, head) = (
            Answer::to(&exporter, "GET", path, &[]),
            Answer::to(&exporter, "HEAD", path, &[]),
        );
        assert_eq!(head.status, get.status, "{path}");
        assert_eq!(head.header("Content-Type"), get.header("Content-Type"));
        assert!(head.body.is_empty(), "{path}");
    }
}

#[test]
fn what_is_not_served_is_not_found_and_nothing_can_be_posted() {
    let exporter = Exporter::start(&Hanging::new().yaml);
    for path in ["/metric", "/-/", "/metrics/", "/favicon.ico"] {
        assert_eq!(exporter.get(path).0, 404, "{path}");
    }
    for path in ["/metrics", "/", "/-/ready"] {
        assert_eq!(Answer::to(&exporter, "POST", path, &[]).status, 405);
    }
}

#[test]
fn the_landing_page_names_every_check_and_links_the_metrics() {
    let exporter = Exporter::start(&Hanging::new().yaml);
    let page = Answer::to(&exporter, "GET", "/", &[]);
    assert_eq!(page.header("Content-Type"), "text/html; charset=utf-8");
    for words in ["groups", "table:d.t", "not polled yet", "href=\"metrics\""] {
        assert!(page.text().contains(words), "{words}: {}", page.text());
    }
}

#[test]
fn it_is_healthy_at_once_and_ready_when_every_check_was_polled_even_in_vain() {
    let hanging = Hanging::new();
    let exporter = Exporter::start(&format!("timeout: 2s\n{}", hanging.yaml));
    assert_eq!(exporter.get("/-/healthy").0, 200);
    assert_eq!(exporter.get("/-/ready").0, 503);
    wait_for("readiness", || {
        (exporter.get("/-/ready").0 == 200).then_some(())
    });
    let page = exporter.scrape();
    for check in ["groups", "table:d.t"] {
        assert_eq!(page.get("dup_check_up", &[("check", check)]), Some(0.0));
        let polls = page.get("dup_check_polls_total", &[("check", check)]);
        assert!(polls >= Some(1.0), "{check}: {polls:?}");
    }
}

#[test]
fn self_metrics_are_there_from_the_first_second_and_nothing_is_made_up() {
    let exporter = Exporter::start(&Hanging::new().yaml);
    let page = exporter.scrape();
    for (source, check) in [("k", "groups"), ("ch", "table:d.t")] {
        let labels = [("source", source), ("check", check)];
        assert_eq!(page.get("dup_check_up", &labels), Some(0.0));
        assert_eq!(page.get("dup_check_polls_total", &labels), Some(0.0));
        let timeouts = [labels[0], labels[1], ("reason", "timeout")];
        assert_eq!(page.get("dup_check_failures_total", &timeouts), Some(0.0));
    }
    assert_eq!(page.get("dup_exporter_series_dropped", &[]), Some(0.0));
    assert!(page.names().contains("process_start_time_seconds"));
    let known = [
        "dup_check_up",
        "dup_check_polls_total",
        "dup_check_failures_total",
        "dup_check_stale_after_seconds",
    ];
    for name in page.names() {
        let own = known.contains(&name) || name.starts_with("dup_exporter_");
        assert!(
            own || name.starts_with("process_"),
            "{name} can't be known yet"
        );
    }
}

// ---- A whole page ----

/// An exporter over one table of 1000 keys, each written twice, its summary that counted rows, and
/// one group; with the names that are its own.
struct Scene {
    exporter: Exporter,
    _database: Database,
    names: [(String, &'static str); 2],
}

impl Scene {
    fn set() -> Self {
        let database = Server::named("clickhouse").database();
        database.run(
            "CREATE TABLE DB.playlog (device_id UInt32, event_id UInt32, ts DateTime, \
             inserted_at DateTime) ENGINE = ReplacingMergeTree ORDER BY (device_id, event_id)",
        );
        database.run("SYSTEM STOP MERGES DB.playlog");
        database.run(
            "CREATE TABLE DB.playlog_summary (day Date, total UInt64) ENGINE = SummingMergeTree \
             ORDER BY day",
        );
        for _ in 0..2 {
            database.run("INSERT INTO DB.playlog SELECT number % 10, number, now(), now() FROM numbers(1000)");
        }
        database.run("INSERT INTO DB.playlog_summary SELECT toDate(ts), count() FROM DB.playlog GROUP BY toDate(ts)");
        // What was written so far is nothing that a part_log check would count, once it is logged.
        database.run("SYSTEM FLUSH LOGS");
        let cluster = Cluster::shared();
        let topic = cluster.topic("playlog", 1, 10);
        cluster.commit(&cluster.name("audit-import"), &topic, &[(0, 7)]);
        let exporter = Exporter::start(&format!(
            "{kafka}clickhouse:\n{logs}    \
             part_log: {{include: ['^{db}\\.'], interval: 1s, stale_after: 1m}}\n    tables:\n      - database: {db}\n        \
             table: playlog\n        key: [device_id, event_id]\n        time: inserted_at\n        \
             interval: 1s\n    summaries:\n      - database: {db}\n        \
             table: playlog_summary\n        count: total\n        day: day\n        \
             raw: {{database: {db}, table: playlog, key: [device_id, event_id], day: toDate(ts)}}\n        \
             periods: [this_month]\n        keys: exact\n        min_coverage: 0\n        \
             interval: 1s\n",
            kafka = cluster.source(", expected_members: {audit-import: 1}"),
            logs = database.server.source_with_part_log("logs"),
            db = database.name,
        ));
        let names = [
            (database.name.clone(), "audit"),
            (format!("{}.", cluster.prefix), ""),
        ];
        Scene {
            exporter,
            _database: database,
            names,
        }
    }

    /// The page once every figure that the scene has is on it.
    fn page(&self) -> Page {
        // The log of written parts comes late; a verdict on the group needs two looks.
        wait_for("the whole page", || {
            let page = self.exporter.fresh();
            let written = page.get("dup_summary_part_log_rows", &[]);
            let verdict = page.get("dup_consumer_group_memberless_commits", &[]);
            (written == Some(2000.0) && verdict.is_some()).then_some(page)
        })
    }

    /// The page with `N` for every number that no two runs share, and with names that all do.
    fn masked(&self) -> String {
        let mut text = self.page().text;
        for (own, common) in &self.names {
            text = text.replace(own.as_str(), common);
        }
        let version = concat!("version=\"", env!("CARGO_PKG_VERSION"), "\"");
        let text = text.replace(version, "version=\"V\"");
        let lines = text.lines().map(|line| match line.rsplit_once(' ') {
            Some((series, _)) if !line.starts_with('#') && is_volatile(series) => {
                format!("{series} N\n")
            }
            _ => format!("{line}\n"),
        });
        lines.collect()
    }
}

fn is_volatile(series: &str) -> bool {
    let name = series.split('{').next().unwrap_or_default();
    name.starts_with("process_")
        || name.ends_with("_timestamp_seconds")
        || [
            "dup_check_duration_seconds",
            "dup_check_polls_total",
            "dup_summary_part_log_coverage_ratio",
        ]
        .contains(&name)
}

#[test]
fn the_whole_metrics_page_is_as_it_was() {
    if !is_real_kafka("the_whole_metrics_page_is_as_it_was") {
        return;
    }
    insta::assert_snapshot!(Scene::set().masked());
}

/// What promtool 2.42 says of names that are ours to keep: a summary table is no summary metric,
/// and its total is the sum of a column.
fn is_known(complaint: &str) -> bool {
    complaint.starts_with("dup_summary_")
        && (complaint.ends_with("metric name should not include type 'summary'")
            || complaint.starts_with("dup_summary_total non-counter metrics should not have"))
}

#[test]
fn promtool_finds_nothing_else_to_say_about_a_live_page() {
    let promtool = part("prometheus")["promtool"].as_str().expect("a path");
    let says = |page: &str| {
        let mut check = Command::new(promtool);
        let (_, words) = pipe(check.args(["check", "metrics"]), page.as_bytes());
        let lines = words.lines().filter(|line| !is_known(line));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    let page = Scene::set().page().text;
    assert_eq!(says(&page), [""; 0]);
    let unhelpful = page.replace("# HELP dup_factor", "# help dup_factor");
    assert_eq!(says(&unhelpful), ["dup_factor no help text"], "it is heard");
}
