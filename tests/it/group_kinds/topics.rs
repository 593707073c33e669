//! Topics that are deleted and made anew under a group that has read them.

use super::*;
use crate::kafka::{Cluster, is_real_kafka};
use crate::support::{Exporter, wait_for};

/// A group that stands at 100 of a topic, and an exporter that has seen it there.
fn read_to_100(cluster: &Cluster) -> (String, String, Exporter) {
    let topic = cluster.topic("t", 1, 100);
    let group = cluster.name("g");
    cluster.commit(&group, &topic, &[(0, 100)]);
    // A topic that stays keeps the group.
    let other = cluster.topic("other", 1, 10);
    cluster.commit(&group, &other, &[(0, 1)]);
    let exporter = Exporter::start(&cluster.source(", memberless: {window: 5m}"));
    let page = exporter.fresh();
    let of_topic = [("group", &*group), ("topic", &*topic)];
    assert_eq!(page.get(COMMITTED, &of_topic), Some(100.0));
    (topic, group, exporter)
}

fn assert_nothing_moved(page: &Page, group: &str, topic: &str, committed: f64) {
    let of_topic = [("group", group), ("topic", topic)];
    assert_eq!(page.get(COMMITTED, &of_topic), Some(committed));
    for name in [REWINDS, REWOUND, MOVED] {
        assert_eq!(page.get(name, &of_topic), Some(0.0), "{name}");
    }
    assert_eq!(page.get(MEMBERLESS, &[("group", group)]), Some(0.0));
}

#[test]
fn a_deleted_topic_takes_its_series_along_and_comes_back_as_a_new_one() {
    if !is_real_kafka("a_deleted_topic_takes_its_series_along_and_comes_back_as_a_new_one") {
        return;
    }
    let cluster = Cluster::shared();
    let (topic, group, exporter) = read_to_100(&cluster);
    cluster.delete_topic(&topic);
    // Kafka deletes the commits along with the topic.
    wait_for("the series of the topic are gone", || {
        let page = exporter.scrape();
        assert_eq!(page.get(MEMBERS, &[("group", &group)]), Some(0.0));
        (!page.text.contains(&topic)).then_some(())
    });
    assert_eq!(cluster.topic("t", 1, 100), topic);
    cluster.commit(&group, &topic, &[(0, 40)]);
    assert_nothing_moved(&exporter.fresh(), &group, &topic, 40.0);
}

#[test]
fn a_topic_made_anew_between_two_looks_is_no_rewind() {
    if !is_real_kafka("a_topic_made_anew_between_two_looks_is_no_rewind") {
        return;
    }
    // The new topic is shorter than what was committed of the old one.
    made_anew_between_two_looks(60);
}

#[test]
fn a_topic_made_anew_and_filled_between_two_looks_is_no_rewind() {
    if !is_real_kafka("a_topic_made_anew_and_filled_between_two_looks_is_no_rewind") {
        return;
    }
    // The new one reaches as far as the old one's commit, though not as far as its end.
    made_anew_between_two_looks(100);
}

fn made_anew_between_two_looks(messages: usize) {
    let cluster = Cluster::shared();
    let exporter = Exporter::start(&cluster.source_every("8s", ", memberless: {window: 5m}"));
    let polls = || exporter.scrape().get("dup_check_polls_total", &[]);
    let look = |before: Option<f64>| {
        wait_for("the next look", || {
            Some(polls()).filter(|&now| now > before)
        })
    };
    // A look on a busy machine may come in the midst; then it is another topic's turn.
    let (group, topic) = (0..10)
        .find_map(|attempt| {
            let name = format!("t{attempt}");
            let topic = cluster.topic(&name, 1, 120);
            let group = cluster.name(&format!("g{attempt}"));
            cluster.commit(&group, &topic, &[(0, 100)]);
            let before = look(look(polls()));
            let page = exporter.scrape();
            assert_eq!(page.get(COMMITTED, &[("group", &group)]), Some(100.0));
            cluster.delete_topic(&topic);
            assert_eq!(cluster.topic(&name, 1, messages), topic);
            cluster.commit(&group, &topic, &[(0, 40)]);
            (polls() == before).then(|| {
                look(before);
                (group, topic)
            })
        })
        .expect("a topic made anew between two looks");
    assert_nothing_moved(&exporter.scrape(), &group, &topic, 40.0);
}
