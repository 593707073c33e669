//! Members: those that come and go, that are slow, and that only pretend to be there.

use std::time::Duration;

use rdkafka::consumer::BaseConsumer;

use super::*;
use crate::kafka::{Cluster, commit, is_real_kafka, settle};
use crate::support::{Exporter, wait_for};

const MODERN: (&str, &str) = ("group.protocol", "consumer");

/// The page once the group has this many members; until then it has some number of them.
fn has_members(exporter: &Exporter, group: &str, members: f64) -> Page {
    wait_for(&format!("{group} has {members} members"), || {
        let page = exporter.scrape();
        let now = page.get(MEMBERS, &[("group", group)]);
        assert!(now.is_some(), "the group is told all the while");
        (now == Some(members)).then_some(page)
    })
}

#[test]
fn a_static_member_is_counted_until_its_session_ends_and_once_however_often_it_restarts() {
    if !is_real_kafka(
        "a_static_member_is_counted_until_its_session_ends_and_once_however_often_it_restarts",
    ) {
        return;
    }
    let cluster = Cluster::shared();
    let topic = cluster.topic("t", 6, 10);
    let group = cluster.name("g");
    let instance = |id, session| {
        let more = [
            ("group.instance.id", id),
            ("session.timeout.ms", session),
            ("heartbeat.interval.ms", "500"),
        ];
        cluster.subscriber(&group, &topic, &more)
    };
    let (a, b) = (instance("a", "45000"), instance("b", "45000"));
    let c = instance("c", "10000");
    settle(&[&a, &b, &c]);
    let exporter = Exporter::start(&cluster.source(", memberless: {window: 5m}"));
    let page = exporter.fresh();
    assert_eq!(page.get(MEMBERS, &[("group", &group)]), Some(3.0));

    drop(b);
    let page = exporter.fresh();
    assert_eq!(page.get(MEMBERS, &[("group", &group)]), Some(3.0));

    let b = instance("b", "45000");
    settle(&[&a, &b, &c]);
    let page = exporter.fresh();
    assert_eq!(page.get(MEMBERS, &[("group", &group)]), Some(3.0));

    drop(c);
    let page = has_members(&exporter, &group, 2.0);
    assert_eq!(page.get(MEMBERLESS, &[("group", &group)]), Some(0.0));
}

#[test]
fn a_group_in_the_midst_of_a_rebalance_has_members() {
    if !is_real_kafka("a_group_in_the_midst_of_a_rebalance_has_members") {
        return;
    }
    let cluster = Cluster::shared();
    let topic = cluster.topic("t", 2, 10);
    let (preparing, completing) = (cluster.name("preparing"), cluster.name("completing"));
    let busy = cluster.member(&preparing, &topic, &[]);
    commit(&busy, &topic, &[(0, 1)]).unwrap();
    let exporter = Exporter::start(&cluster.source(", memberless: {window: 5m}"));
    exporter.fresh();

    // The first does not poll, so that the second waits for it. And one that never asks for its
    // share after it joined.
    let second = cluster.subscriber(&preparing, &topic, &[]);
    cluster.wire().join(&completing, "consumer");
    let in_state = |group: &str, state: &str| {
        wait_for(&format!("{group} is {state}"), || {
            let _ = second.poll(Duration::from_millis(20));
            let page = exporter.scrape();
            (states(&page, group) == [state]).then_some(())
        });
    };
    in_state(&preparing, "PreparingRebalance");
    in_state(&completing, "CompletingRebalance");
    for _ in 0..2 {
        let page = exporter.fresh();
        for (group, state) in [
            (&preparing, "PreparingRebalance"),
            (&completing, "CompletingRebalance"),
        ] {
            let of_group = [("group", &**group)];
            assert_eq!(states(&page, group), [state]);
            assert!(page.get(MEMBERS, &of_group) >= Some(1.0), "{state}");
            assert_eq!(page.get(MEMBERLESS, &of_group), Some(0.0), "{state}");
        }
    }
}

#[test]
fn a_kip_848_group_is_never_memberless_while_its_members_commit() {
    if !is_real_kafka("a_kip_848_group_is_never_memberless_while_its_members_commit") {
        return;
    }
    let cluster = Cluster::shared();
    let topic = cluster.topic("t", 3, 100);
    let group = cluster.name("g");
    let of_group = [("group", &*group)];
    let first = cluster.member(&group, &topic, &[MODERN]);
    commit(&first, &topic, &[(0, 10)]).unwrap();
    let exporter = Exporter::start(&cluster.source(", memberless: {window: 5m}"));
    exporter.fresh();
    let mut members: Vec<BaseConsumer> = vec![first];
    let mut offset = 10;
    // One, two, three members, two and one: the offsets move all the while.
    for count in [1, 2, 3, 2, 1] {
        while members.len() > count {
            members.pop();
        }
        if members.len() < count {
            members.push(cluster.subscriber(&group, &topic, &[MODERN]));
        }
        settle(&members.iter().collect::<Vec<_>>());
        offset += 10;
        wait_for("the members agree on who they are", || {
            let _ = members[0].poll(Duration::from_millis(20));
            commit(&members[0], &topic, &[(0, offset)]).ok()
        });
        let page = has_members(&exporter, &group, count as f64);
        assert_eq!(page.get(MEMBERLESS, &of_group), Some(0.0));
        let page = exporter.fresh();
        assert_eq!(page.get(MEMBERS, &of_group), Some(count as f64));
        assert_eq!(page.get(COMMITTED, &of_group), Some(offset as f64));
        assert_eq!(page.get(MEMBERLESS, &of_group), Some(0.0));
        assert_eq!(info(&page, &group)["protocol"], "consumer");
    }
    drop(members);
    let page = has_members(&exporter, &group, 0.0);
    assert_eq!(states(&page, &group), ["Empty"]);
    assert_eq!(page.get(COMMITTED, &of_group), Some(60.0));
    assert_eq!(moves(&page, &group), [Some(50.0), Some(0.0), Some(0.0)]);
    let info = info(&page, &group);
    assert_eq!((&*info["protocol"], &*info["simple"]), ("consumer", "0"));
}

#[test]
fn a_kip_848_group_that_shifts_its_partitions_has_members_and_no_state() {
    if !is_real_kafka("a_kip_848_group_that_shifts_its_partitions_has_members_and_no_state") {
        return;
    }
    let cluster = Cluster::shared();
    let topic = cluster.topic("t", 2, 10);
    let group = cluster.name("g");
    // The first does not poll, so that it does not give back what the second is to get.
    let _busy = cluster.member(&group, &topic, &[MODERN]);
    let exporter = Exporter::start(&cluster.source(", memberless: {window: 5m}"));
    assert_eq!(states(&exporter.fresh(), &group), ["Stable"]);
    let second = cluster.subscriber(&group, &topic, &[MODERN]);
    let mut wire = cluster.wire();
    wait_for("the broker calls the group Reconciling", || {
        let _ = second.poll(Duration::from_millis(20));
        let (_, state) = wire.groups().remove(&group).expect("the group is there");
        (state == "Reconciling").then_some(())
    });
    let page = exporter.fresh();
    assert_eq!(page.get(MEMBERS, &[("group", &group)]), Some(2.0));
    assert_eq!(page.get(MEMBERLESS, &[("group", &group)]), Some(0.0));
    assert!(states(&page, &group).is_empty());
    let stated = page.all("dup_consumer_group_state");
    assert!(stated.is_empty(), "a state that is not known has no series");
}

#[test]
fn commits_of_a_worker_beside_members_are_refused_and_leave_no_trace() {
    if !is_real_kafka("commits_of_a_worker_beside_members_are_refused_and_leave_no_trace") {
        return;
    }
    // The blind spot: the worker reads everything a second time, and nothing here can tell.
    let cluster = Cluster::shared();
    let topic = cluster.topic("t", 1, 100);
    let groups = [
        ("classic", cluster.name("classic")),
        ("consumer", cluster.name("modern")),
    ];
    let members = groups.each_ref().map(|(protocol, group)| {
        let member = cluster.member(group, &topic, &[("group.protocol", protocol)]);
        commit(&member, &topic, &[(0, 10)]).unwrap();
        member
    });
    let exporter = Exporter::start(&cluster.source(", memberless: {window: 5m}"));
    exporter.fresh();
    for (protocol, group) in &groups {
        let refused = commit(&cluster.worker(group), &topic, &[(0, 70)]).unwrap_err();
        let code = refused.rdkafka_error_code();
        let unknown = rdkafka::types::RDKafkaErrorCode::UnknownMemberId;
        assert_eq!(code, Some(unknown), "{protocol}: {refused}");
    }
    let page = exporter.fresh();
    for (protocol, group) in &groups {
        let of_group = [("group", &**group)];
        assert_eq!(page.get(MEMBERS, &of_group), Some(1.0), "{protocol}");
        assert_eq!(page.get(COMMITTED, &of_group), Some(10.0), "{protocol}");
        assert_eq!(page.get(MEMBERLESS, &of_group), Some(0.0), "{protocol}");
        assert_eq!(moves(&page, group), [Some(0.0); 3], "{protocol}");
    }
    drop(members);
}
