//! The check of consumer groups, on a real Kafka.

use std::process::{Command, Stdio};

use crate::kafka::{Cluster, commit, is_real_kafka};
use crate::program::children;
use crate::support::{Exporter, OwnParts, Page, Server, wait_for};

pub const MEMBERS: &str = "dup_consumer_group_members";
pub const MEMBERLESS: &str = "dup_consumer_group_memberless_commits";
pub const COMMITTED: &str = "dup_consumer_group_committed_offset";
pub const MOVED: &str = "dup_consumer_group_committed_messages_total";

/// The states of a group that are 1.
pub fn states(page: &Page, group: &str) -> Vec<String> {
    let all = page.all("dup_consumer_group_state");
    let of_group = all
        .iter()
        .filter(|(l, v)| l["group"] == group && **v == 1.0);
    of_group
        .map(|(labels, _)| labels["state"].clone())
        .collect()
}

#[test]
fn r09_commits_of_assign_workers_show_as_an_empty_group_that_moves() {
    commits_of_assign_workers(&Cluster::shared());
}

pub fn commits_of_assign_workers(cluster: &Cluster) {
    let topic = cluster.topic("playlog", 6, 100);
    let group = cluster.name("audit-import");
    let at = |offset| (0..6).map(|p| (p, offset)).collect::<Vec<_>>();
    cluster.commit(&group, &topic, &at(10));
    let exporter = Exporter::start(&cluster.source(", memberless: {window: 5m}"));

    let page = exporter.fresh();
    let of_group = [("group", &*group)];
    assert_eq!(page.get(MEMBERS, &of_group), Some(0.0));
    assert_eq!(states(&page, &group), ["Empty"]);
    assert_eq!(
        page.get(MEMBERLESS, &of_group),
        Some(0.0),
        "nothing moved yet"
    );

    cluster.commit(&group, &topic, &at(70));
    let page = exporter.fresh();
    assert_eq!(page.get(MEMBERLESS, &of_group), Some(1.0));
    assert_eq!(page.get(COMMITTED, &of_group), Some(420.0));
    assert_eq!(page.get("dup_consumer_group_lag", &of_group), Some(180.0));
    assert_eq!(page.get(MOVED, &of_group), Some(360.0));
}

#[test]
fn a_group_that_exists_by_its_commits_alone_is_simple() {
    if !is_real_kafka("a_group_that_exists_by_its_commits_alone_is_simple") {
        return;
    }
    let cluster = Cluster::shared();
    let topic = cluster.topic("t", 1, 10);
    let group = cluster.name("g");
    cluster.commit(&group, &topic, &[(0, 1)]);
    let exporter = Exporter::start(&cluster.source(""));
    let page = exporter.fresh();
    let info = page.all("dup_consumer_group_info");
    let (labels, _) = info.iter().find(|(l, _)| l["group"] == group).unwrap();
    assert_eq!((&*labels["simple"], &*labels["protocol"]), ("1", "classic"));
}

#[test]
fn a_subscribed_worker_is_a_member_whatever_its_protocol() {
    if !is_real_kafka("a_subscribed_worker_is_a_member_whatever_its_protocol") {
        return;
    }
    a_subscribed_worker_is_a_member(&Cluster::shared(), &["classic", "consumer"]);
}

pub fn a_subscribed_worker_is_a_member(cluster: &Cluster, protocols: &[&str]) {
    let topic = cluster.topic("playlog", 6, 10);
    let member = |protocol: &&str| {
        let more = [("group.protocol", *protocol)];
        cluster.member(&cluster.name(protocol), &topic, &more)
    };
    let _members: Vec<_> = protocols.iter().map(member).collect();
    let exporter = Exporter::start(&cluster.source(", memberless: {window: 5m}"));
    let page = exporter.fresh();
    let info = page.all("dup_consumer_group_info");
    for &protocol in protocols {
        let group = cluster.name(protocol);
        let of_group = [("group", &*group)];
        assert_eq!(page.get(MEMBERS, &of_group), Some(1.0), "{protocol}");
        assert_eq!(states(&page, &group), ["Stable"], "{protocol}");
        assert_eq!(page.get(MEMBERLESS, &of_group), Some(0.0), "{protocol}");
        let (labels, _) = info.iter().find(|(l, _)| l["group"] == group).unwrap();
        assert_eq!((&*labels["simple"], &*labels["protocol"]), ("0", protocol));
        assert_ne!(labels["assignor"], "", "{protocol}");
    }
}

#[test]
fn r12_partitions_without_a_commit_are_in_no_sum() {
    let cluster = Cluster::shared();
    let topic = cluster.topic("t", 3, 1);
    let group = cluster.name("g");
    cluster.commit(&group, &topic, &[(2, 4388)]);
    let exporter = Exporter::start(&cluster.source(""));
    let of_group = [("group", &*group)];
    assert_eq!(exporter.fresh().get(COMMITTED, &of_group), Some(4388.0));

    cluster.commit(&group, &topic, &[(0, 4388)]);
    let page = exporter.fresh();
    assert_eq!(page.get(COMMITTED, &of_group), Some(8776.0));
    assert_eq!(
        page.get(MOVED, &of_group),
        Some(0.0),
        "a first commit is no advance"
    );
    assert_eq!(page.get(MEMBERLESS, &of_group), Some(0.0));
}

#[test]
fn r14_a_deleted_group_vanishes_and_one_without_members_stays() {
    if !is_real_kafka("r14_a_deleted_group_vanishes_and_one_without_members_stays") {
        return;
    }
    a_deleted_group_vanishes(&Cluster::shared());
}

pub fn a_deleted_group_vanishes(cluster: &Cluster) {
    let topic = cluster.topic("t", 1, 10);
    let (a, b) = (cluster.name("a"), cluster.name("b"));
    cluster.commit(&a, &topic, &[(0, 1)]);
    cluster.commit(&b, &topic, &[(0, 1)]);
    let exporter = Exporter::start(&cluster.source(""));
    assert!(exporter.fresh().text.contains(&a));

    cluster.delete_group(&a);
    let page = exporter.fresh();
    assert!(
        !page.text.contains(&a),
        "no series of the deleted group is left"
    );
    assert_eq!(page.get(MEMBERS, &[("group", &b)]), Some(0.0));
    assert_eq!(page.get(COMMITTED, &[("group", &b)]), Some(1.0));
}

#[test]
fn a_group_that_its_last_member_left_is_empty_and_keeps_its_commits() {
    if !is_real_kafka("a_group_that_its_last_member_left_is_empty_and_keeps_its_commits") {
        return;
    }
    let cluster = Cluster::shared();
    let topic = cluster.topic("t", 1, 10);
    let group = cluster.name("g");
    let member = cluster.member(&group, &topic, &[]);
    let exporter = Exporter::start(&cluster.source(""));
    let of_group = [("group", &*group)];
    assert_eq!(exporter.fresh().get(MEMBERS, &of_group), Some(1.0));
    // Before it leaves: an empty group that has no commits is deleted.
    commit(&member, &topic, &[(0, 7)]).unwrap();
    drop(member);
    let page = wait_for("the member is gone", || {
        let page = exporter.scrape();
        (page.get(MEMBERS, &of_group) == Some(0.0)).then_some(page)
    });
    assert_eq!(states(&page, &group), ["Empty"]);
    let page = exporter.fresh();
    assert_eq!(page.get(COMMITTED, &of_group), Some(7.0));
    let info = page.all("dup_consumer_group_info");
    let (labels, _) = info.iter().find(|(l, _)| l["group"] == group).unwrap();
    assert_eq!(labels["simple"], "0", "it once had a member");
}

#[test]
fn r19_any_group_name_round_trips_and_harms_no_other() {
    if !is_real_kafka("r19_any_group_name_round_trips_and_harms_no_other") {
        return;
    }
    let cluster = Cluster::shared();
    let topic = cluster.topic("t", 1, 10);
    let names = [
        "a\"b",
        "c\\d",
        "two\nlines",
        "группа-✓",
        "plain",
        "{x=\"y\"} 1",
    ];
    let groups = names.map(|name| cluster.name(name));
    for (i, group) in groups.iter().enumerate() {
        cluster.commit(group, &topic, &[(0, i as i64 + 1)]);
    }
    let exporter = Exporter::start(&cluster.source(""));
    let page = exporter.fresh();
    for (i, group) in groups.iter().enumerate() {
        let committed = page.get(COMMITTED, &[("group", group)]);
        assert_eq!(committed, Some(i as f64 + 1.0), "{group:?}");
    }
}

#[test]
fn a_rewind_is_counted_with_its_size() {
    let cluster = Cluster::shared();
    let topic = cluster.topic("t", 2, 200);
    let group = cluster.name("g");
    cluster.commit(&group, &topic, &[(0, 100), (1, 50)]);
    let exporter = Exporter::start(&cluster.source(""));
    exporter.fresh();
    cluster.commit(&group, &topic, &[(0, 40), (1, 60)]);
    let page = exporter.fresh();
    let of_group = [("group", &*group)];
    assert_eq!(
        page.get("dup_consumer_group_rewinds_total", &of_group),
        Some(1.0)
    );
    assert_eq!(
        page.get("dup_consumer_group_rewound_messages_total", &of_group),
        Some(60.0)
    );
    assert_eq!(page.get(MOVED, &of_group), Some(10.0));
}

#[test]
fn groups_over_the_limit_are_counted_and_those_left_out_by_pattern_are_not_asked() {
    let cluster = Cluster::shared();
    let topic = cluster.topic("t", 1, 10);
    for i in 0..5 {
        cluster.commit(&cluster.name(&format!("g{i}")), &topic, &[(0, 1)]);
    }
    let exporter = Exporter::start(&cluster.source(", max_groups: 3"));
    let page = exporter.fresh();
    assert_eq!(page.all(MEMBERS).len(), 3);
    let limit = [("check", "groups"), ("reason", "limit")];
    assert_eq!(page.get("dup_check_unreadable", &limit), Some(2.0));
    assert_eq!(page.get("dup_check_up", &[("check", "groups")]), Some(1.0));
}

#[test]
fn r15_kafka_that_goes_away_takes_nothing_along_and_comes_back_by_itself() {
    if !is_real_kafka("r15_kafka_that_goes_away_takes_nothing_along_and_comes_back_by_itself") {
        return;
    }
    let mut own = OwnParts::start(&["kafka"]);
    let cluster = Cluster::at(own.part("kafka")["bootstrap"].as_str().unwrap());
    let topic = cluster.topic("t", 1, 10);
    let group = cluster.name("g");
    let _member = cluster.member(&group, &topic, &[]);
    let database = Server::named("clickhouse").database();
    database.run("CREATE TABLE DB.t (k UInt32, at DateTime) ENGINE = MergeTree ORDER BY k");
    let exporter = Exporter::start(&format!(
        "{}clickhouse:\n{}    tables:\n      - {{database: {}, table: t, key: [k], time: at, \
         interval: 1s}}\n",
        cluster.source(", timeout: 5s, stale_after: 8s"),
        database.server.source("ch"),
        database.name
    ));
    let of_group = [("group", &*group)];
    assert_eq!(exporter.fresh().get(MEMBERS, &of_group), Some(1.0));

    own.kill("kafka");
    let never_zero = |page: &Page| assert_ne!(page.get(MEMBERS, &of_group), Some(0.0));
    wait_for("the figures of the dead broker vanish", || {
        let asked = std::time::Instant::now();
        let page = exporter.scrape();
        assert!(asked.elapsed().as_secs() < 1, "a scrape waits for nobody");
        never_zero(&page);
        page.get(MEMBERS, &of_group).is_none().then_some(())
    });
    let page = exporter.scrape();
    assert_eq!(page.get("dup_source_up", &[("source", "main")]), Some(0.0));
    assert_eq!(page.get("dup_check_up", &[("source", "ch")]), Some(1.0));

    own.up(&["kafka"]);
    wait_for("the figures are back", || {
        let page = exporter.scrape();
        never_zero(&page);
        (page.get("dup_source_up", &[("source", "main")]) == Some(1.0)).then_some(())
    });
}

#[test]
fn the_worker_ends_with_an_exporter_that_was_killed() {
    let cluster = Cluster::shared();
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), cluster.source("")).unwrap();
    let mut exporter = Command::new(env!("CARGO_BIN_EXE_dup_exporter"))
        .arg("--config.file")
        .arg(file.path())
        .args(["--web.listen-address", "127.0.0.1:0"])
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let pid = exporter.id();
    let worker = wait_for("the worker starts", || children(pid).pop());
    exporter.kill().unwrap();
    exporter.wait().unwrap();
    wait_for("the worker is gone", || {
        (!std::path::Path::new(&format!("/proc/{worker}")).exists()).then_some(())
    });
}
