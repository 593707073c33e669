//! Groups of other kinds than consumer groups, and names of every kind.

use super::*;
use crate::kafka::{Cluster, is_real_kafka, settle};
use crate::kafka_wire::{JOIN, LEAVE, Wire};
use crate::support::{Exporter, wait_for};

const SHARE: &str = "share";
const STREAMS: &str = "streams";

/// One heartbeat of the one member of a group of this kind.
fn heartbeat(wire: &mut Wire, kind: &str, group: &str, epoch: i32, topic: &str) {
    match kind {
        SHARE => wire.share(group, "the-member", epoch, topic),
        _ => wire.streams(group, "the-member", epoch, topic),
    }
}

/// The type of a group and its state, as the broker lists it.
fn listed(wire: &mut Wire, group: &str) -> Option<(String, String)> {
    wire.groups().remove(group)
}

#[test]
fn share_and_streams_groups_have_no_series_and_harm_no_other() {
    if !is_real_kafka("share_and_streams_groups_have_no_series_and_harm_no_other") {
        return;
    }
    let cluster = Cluster::shared();
    let topic = cluster.topic("t", 2, 10);
    let (consumer, assign) = (cluster.name("consumer"), cluster.name("assign"));
    let _member = cluster.member(&consumer, &topic, &[]);
    cluster.commit(&assign, &topic, &[(0, 3)]);
    let mut wire = cluster.wire();
    let others = [SHARE, STREAMS].map(|kind| (kind, cluster.name(kind)));
    // So that the group stays when its member has left. (Share groups commit in another way.)
    cluster.commit(&others[1].1, &topic, &[(0, 3)]);
    heartbeat(&mut wire, STREAMS, &others[1].1, JOIN, &topic);
    let exporter = Exporter::start(&cluster.source(", memberless: {window: 5m}"));
    let told_right = |wire: &mut Wire, states: &[&str]| {
        let page = exporter.fresh();
        for (kind, group) in &others {
            let (is, state) = listed(wire, group).expect("the group is there");
            assert_eq!(&is, kind);
            assert!(states.contains(&&*state), "{kind}: {state}");
            assert!(!page.text.contains(group), "{kind}: {}", page.text);
        }
        assert_eq!(unreadable(&page), 0.0);
        assert_eq!(page.get(MEMBERS, &[("group", &consumer)]), Some(1.0));
        assert_eq!(page.get(COMMITTED, &[("group", &assign)]), Some(3.0));
    };

    heartbeat(&mut wire, SHARE, &others[0].1, JOIN, &topic);
    told_right(
        &mut wire,
        &["Stable", "Assigning", "Reconciling", "NotReady"],
    );
    for (kind, group) in &others {
        heartbeat(&mut wire, kind, group, LEAVE, &topic);
    }
    told_right(&mut wire, &["Empty"]);
}

#[test]
fn a_consumer_group_made_anew_as_another_kind_is_gone_and_never_dead() {
    if !is_real_kafka("a_consumer_group_made_anew_as_another_kind_is_gone_and_never_dead") {
        return;
    }
    let cluster = Cluster::shared();
    let topic = cluster.topic("t", 1, 10);
    let mut wire = cluster.wire();
    let groups = [SHARE, STREAMS, "connect"].map(|kind| (kind, cluster.name(kind)));
    for (_, group) in &groups {
        cluster.commit(group, &topic, &[(0, 3)]);
    }
    let exporter = Exporter::start(&cluster.source(""));
    let page = exporter.fresh();
    for (kind, group) in &groups {
        assert_eq!(page.get(MEMBERS, &[("group", group)]), Some(0.0), "{kind}");
        // At once, so that the exporter sees no time between without such a group.
        cluster.delete_group(group);
        match *kind {
            "connect" => wire.join(group, kind),
            _ => heartbeat(&mut wire, kind, group, JOIN, &topic),
        }
    }
    let page = exporter.fresh();
    for (kind, group) in &groups {
        assert!(listed(&mut wire, group).is_some(), "{kind} is there");
        assert!(!page.text.contains(group), "{kind}: {}", page.text);
    }
    assert_eq!(unreadable(&page), 0.0, "{}", page.text);
}

#[test]
fn a_group_of_kafka_connect_is_no_consumer_group() {
    if !is_real_kafka("a_group_of_kafka_connect_is_no_consumer_group") {
        return;
    }
    let cluster = Cluster::shared();
    let (connect, consumer) = (cluster.name("connect"), cluster.name("consumer"));
    let mut wire = cluster.wire();
    wire.join(&connect, "connect");
    wire.join(&consumer, "consumer");
    let exporter = Exporter::start(&cluster.source(""));
    let page = exporter.fresh();
    let kind = listed(&mut wire, &connect).expect("it is there").0;
    assert_eq!(kind, "classic");
    assert!(!page.text.contains(&connect));
    assert_eq!(unreadable(&page), 0.0);
    assert_eq!(page.get(MEMBERS, &[("group", &consumer)]), Some(1.0));
}

#[test]
fn r19_a_group_with_members_may_have_any_name() {
    if !is_real_kafka("r19_a_group_with_members_may_have_any_name") {
        return;
    }
    let cluster = Cluster::shared();
    let topic = cluster.topic("t", 1, 10);
    let odd = "a \"quoted\"\nname\\n, {x=\"y\"} ✓";
    let [classic, modern] = ["classic", "consumer"].map(|p| cluster.name(&format!("{p}{odd}")));
    let members = [
        cluster.subscriber(&classic, &topic, &[]),
        cluster.subscriber(&modern, &topic, &[("group.protocol", "consumer")]),
    ];
    settle(&members.each_ref());
    let exporter = Exporter::start(&cluster.source(""));
    let page = exporter.fresh();
    for (group, protocol) in [(&classic, "classic"), (&modern, "consumer")] {
        let alive = page.get(MEMBERS, &[("group", group)]);
        assert_eq!(alive, Some(1.0), "{protocol}");
        assert_eq!(states(&page, group), ["Stable"], "{protocol}");
        assert_eq!(info(&page, group)["protocol"], protocol);
    }
    assert_eq!(page.all(MEMBERS).len(), 2, "and nothing else is told");
}

#[test]
fn r19_a_group_without_a_name_is_told_as_unreadable() {
    if !is_real_kafka("r19_a_group_without_a_name_is_told_as_unreadable") {
        return;
    }
    let cluster = Cluster::shared();
    let topic = cluster.topic("t", 1, 10);
    // Kafka takes commits from old consumers that name no group, to this day.
    assert_eq!(cluster.wire().commit("", &topic, &[(0, 1)], -1), 0);
    let named = cluster.name("named");
    cluster.commit(&named, &topic, &[(0, 1)]);
    let include = format!("include: ['^{}']", cluster.prefix);
    let both = format!("include: ['^$', '^{}']", cluster.prefix);
    let exporter = Exporter::start(&cluster.source("").replace(&include, &both));
    let page = exporter.fresh();
    assert_eq!(page.all(MEMBERS).len(), 1, "{}", page.text);
    assert_eq!(page.get(COMMITTED, &[("group", &named)]), Some(1.0));
    let reason = [("reason", "unsupported")];
    assert_eq!(page.get("dup_check_unreadable", &reason), Some(1.0));
    let row = exporter.row("groups");
    assert!(row.contains("empty name"), "{row}");

    // It is one group for the whole broker; what this test commits goes with its topic.
    cluster.delete_topic(&topic);
    wait_for("the group without a name is gone", || {
        let page = exporter.scrape();
        (unreadable(&page) == 0.0).then_some(())
    });
}
