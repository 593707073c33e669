//! The same on the last Kafka 3, where the groups are coordinated by code of its own.

use super::*;
use crate::groups;
use crate::kafka::{Cluster, is_real};
use crate::kafka_wire::{JOIN, LEAVE};
use crate::support::Exporter;

/// The Kafka of the major before, or nothing where it can't be had.
fn old(test: &str) -> Option<Cluster> {
    is_real("kafka-39", test).then(Cluster::old)
}

#[test]
fn kafka_3_tells_commits_of_assign_workers() {
    if let Some(cluster) = old("kafka_3_tells_commits_of_assign_workers") {
        groups::commits_of_assign_workers(&cluster);
    }
}

#[test]
fn kafka_3_tells_members_of_a_classic_group() {
    if let Some(cluster) = old("kafka_3_tells_members_of_a_classic_group") {
        groups::a_subscribed_worker_is_a_member(&cluster, &["classic"]);
    }
}

#[test]
fn kafka_3_tells_kip_848_members_that_come_and_go() {
    let Some(cluster) = old("kafka_3_tells_kip_848_members_that_come_and_go") else {
        return;
    };
    let topic = cluster.topic("t", 2, 10);
    let group = cluster.name("g");
    // The commits of an assign() worker, whose group becomes that of two members: they stay.
    cluster.commit(&group, &topic, &[(0, 7)]);
    let exporter = Exporter::start(&cluster.source(", memberless: {window: 5m}"));
    let has = |members: f64, kind: [&str; 2]| {
        let page = exporter.fresh();
        let of_group = [("group", &*group)];
        assert_eq!(page.get(MEMBERS, &of_group), Some(members));
        assert_eq!(page.get(COMMITTED, &of_group), Some(7.0));
        assert_eq!(page.get(MEMBERLESS, &of_group), Some(0.0));
        assert_eq!(
            states(&page, &group).contains(&"Empty".into()),
            members == 0.0
        );
        let info = info(&page, &group);
        assert_eq!(["protocol", "simple"].map(|label| &*info[label]), kind);
    };
    has(0.0, ["classic", "1"]);
    let mut wire = cluster.wire();
    let members = [(); 2].map(|()| wire.consumer(&group, "", JOIN, &topic));
    has(2.0, ["consumer", "0"]);
    for (member, left) in members.iter().zip([1.0, 0.0]) {
        wire.consumer(&group, member, LEAVE, &topic);
        has(left, ["consumer", "0"]);
    }
}

#[test]
fn kafka_3_tells_groups_that_never_had_a_member() {
    if let Some(cluster) = old("kafka_3_tells_groups_that_never_had_a_member") {
        commits::only_a_group_without_members_is_simple(&cluster);
    }
}

#[test]
fn kafka_3_tells_that_a_group_was_deleted() {
    if let Some(cluster) = old("kafka_3_tells_that_a_group_was_deleted") {
        groups::a_deleted_group_vanishes(&cluster);
    }
}
