//! Reading the configuration again, without a restart.

use std::time::Duration;

use crate::kafka::Cluster;
use crate::program::children;
use crate::program::{Hanging, Program};
use crate::support::{Exporter, Page, Server, get, wait_for};

const MOVED: &str = "dup_consumer_group_committed_messages_total";
const MEMBERLESS: &str = "dup_consumer_group_memberless_commits";
const SUCCESSFUL: &str = "dup_exporter_config_last_reload_successful";
const READ_AT: &str = "dup_exporter_config_last_reload_success_timestamp_seconds";
const POLLS: &str = "dup_check_polls_total";

#[test]
fn counters_and_the_memory_of_checks_survive_a_reload() {
    let cluster = Cluster::shared();
    let topic = cluster.topic("t", 1, 1000);
    let group = cluster.name("g");
    let of_group = [("group", &*group)];
    cluster.commit(&group, &topic, &[(0, 100)]);
    let exporter = Exporter::start(&cluster.source(", memberless: {window: 5m}"));
    exporter.fresh();
    cluster.commit(&group, &topic, &[(0, 150)]);
    assert_eq!(exporter.fresh().get(MOVED, &of_group), Some(50.0));
    let failures = Page::parse(&exporter.get("/metrics").1).all("dup_check_failures_total");

    // What moves while nobody looks is not lost either.
    let polls = exporter.scrape().get(POLLS, &[]);
    let more = ", memberless: {window: 5m}, expected_members: {'g$': 2}";
    let (status, words) = exporter.reload(&cluster.source(more));
    assert_eq!(status, 200, "{words}");
    let page = exporter.scrape();
    assert_eq!(page.get(MOVED, &of_group), Some(50.0), "there is no gap");
    assert!(page.get(POLLS, &[]) >= polls);
    assert_eq!(page.all("dup_check_failures_total"), failures);
    assert_eq!(exporter.get("/-/ready").0, 200);

    cluster.commit(&group, &topic, &[(0, 180)]);
    let page = exporter.fresh();
    assert_eq!(page.get(MOVED, &of_group), Some(80.0));
    assert_eq!(page.get(MEMBERLESS, &of_group), Some(1.0));
    let expected = page.get("dup_consumer_group_expected_members", &of_group);
    assert_eq!(expected, Some(2.0), "the new configuration is at work");
    assert!(page.get(POLLS, &[]) > polls);
}

#[test]
fn a_configuration_that_can_not_be_used_changes_nothing() {
    let database = Server::named("clickhouse-18").database();
    database.run("CREATE TABLE DB.t (k UInt32, at DateTime) ENGINE = MergeTree ORDER BY k");
    let good = format!(
        "clickhouse:\n{}",
        database.tables("ch", &[("t", "key: [k], time: at, interval: 1s")])
    );
    let exporter = Exporter::start(&good);
    let before = exporter.good();
    assert_eq!(before.get(SUCCESSFUL, &[]), Some(1.0));
    let read_at = before.get(READ_AT, &[]).expect("a time");

    // One that says what can't be, and one that names a certificate that is not there.
    let no_file = good.replace(
        "name: ch\n",
        "name: ch\n    tls: {ca_file: /no/such/file}\n",
    );
    for (bad, words) in [
        (good.replace("interval: 1s", "intervall: 1s"), "unknown key"),
        (no_file.replace("http:", "https:"), "/no/such/file"),
    ] {
        let (status, said) = exporter.reload(&bad);
        assert_eq!(status, 500);
        assert!(said.contains(words), "{said}");
        let page = exporter.fresh();
        assert_eq!(page.get(SUCCESSFUL, &[]), Some(0.0));
        assert_eq!(page.get(READ_AT, &[]), Some(read_at));
        assert_eq!(page.get("dup_rows", &[("window", "10m")]), Some(0.0));
        let landing = exporter.get("/").1;
        assert!(landing.contains("The last reload failed"), "{landing}");
    }

    assert_eq!(exporter.reload(&good).0, 200);
    let page = exporter.scrape();
    assert_eq!(page.get(SUCCESSFUL, &[]), Some(1.0));
    assert!(page.get(READ_AT, &[]) > Some(read_at));
    assert!(!exporter.get("/").1.contains("The last reload failed"));
}

#[test]
fn what_is_no_longer_configured_leaves_and_what_is_new_comes() {
    let database = Server::named("clickhouse-18").database();
    for table in ["a", "b"] {
        database.run(&format!(
            "CREATE TABLE DB.{table} (k UInt32, at DateTime) ENGINE = MergeTree ORDER BY k"
        ));
    }
    let keys = "key: [k], time: at, interval: 1s";
    let watching =
        |source, table| format!("clickhouse:\n{}", database.tables(source, &[(table, keys)]));
    let exporter = Exporter::start(&watching("old", "a"));
    exporter.good();
    assert_eq!(exporter.reload(&watching("new", "b")).0, 200);
    let page = exporter.good();
    for name in ["dup_rows", "dup_check_up", "dup_source_up", POLLS] {
        let all = page.all(name);
        assert!(!all.is_empty(), "{name}");
        for labels in all.keys() {
            assert_eq!(labels["source"], "new", "{name}");
            let of_b = |label: &str, b| labels.get(label).is_none_or(|value| *value == b);
            assert!(of_b("table", "b".into()), "{labels:?}");
            assert!(
                of_b("check", format!("table:{}.b", database.name)),
                "{labels:?}"
            );
        }
    }
}

#[test]
fn a_reload_leaves_no_worker_behind() {
    let cluster = Cluster::shared();
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), cluster.source("")).unwrap();
    let mut program = Program::start(file.path(), &[]);
    let pid = program.pid();
    let first = wait_for("the worker starts", || children(pid).pop());
    program.address();
    program.signal("-HUP");
    program.logged("the configuration was read again");
    wait_for("another worker took its place, alone", || {
        let now = children(pid);
        (now.len() == 1 && now[0] != first).then_some(())
    });
}

#[test]
fn a_hangup_reads_the_configuration_again_whatever_hangs() {
    let hanging = Hanging::new();
    let mut program = hanging.start(&[]);
    let page = format!("http://{}/metrics", program.address());
    program.signal("-HUP");
    program.logged("the configuration was read again");
    std::fs::write(hanging.config(), "kafka: [{}]\n").expect("a writable file");
    program.signal("-HUP");
    let line = program.logged("the one before it stays");
    assert!(line.contains("c.yml:1:9"), "{line}");
    assert_eq!(Page::parse(&get(&page).1).get(SUCCESSFUL, &[]), Some(0.0));
    let (status, took) = program.stop("-TERM");
    assert!(status.success(), "{status}");
    assert!(took < Duration::from_secs(1), "{took:?}");
}

#[test]
fn a_reload_is_asked_for_by_post_or_put_alone() {
    let hanging = Hanging::new();
    let mut program = hanging.start(&[]);
    let url = format!("http://{}/-/reload", program.address());
    assert_eq!(get(&url).0, 405);
    assert_eq!(ureq::put(&url).send_empty().unwrap().status(), 200);
    assert_eq!(ureq::post(&url).send_empty().unwrap().status(), 200);
}
