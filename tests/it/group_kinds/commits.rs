//! Commits without members: by assign(), by jobs that come and go, slow ones, and ones that expire.

use std::time::{Duration, Instant};

use super::*;
use crate::kafka::{Cluster, commit, is_real_kafka};
use crate::support::{Exporter, wait_for};

/// A job that subscribes, commits and leaves.
fn job(cluster: &Cluster, group: &str, topic: &str, offset: i64) {
    let member = cluster.member(group, topic, &[]);
    commit(&member, topic, &[(0, offset)]).unwrap();
}

#[test]
fn a_job_that_comes_and_goes_between_two_looks_commits_without_members_but_is_not_simple() {
    if !is_real_kafka(
        "a_job_that_comes_and_goes_between_two_looks_commits_without_members_but_is_not_simple",
    ) {
        return;
    }
    let cluster = Cluster::shared();
    let topic = cluster.topic("t", 1, 100);
    // A look on a busy machine may come in the midst of a job; then it is another group's turn.
    let attempt = |attempt| {
        let group = cluster.name(&format!("job{attempt}"));
        job(&cluster, &group, &topic, 10);
        let yaml = cluster.source_every("5s", ", memberless: {window: 5m}");
        let exporter = Exporter::start(&yaml);
        let polls = || exporter.scrape().get("dup_check_polls_total", &[]);
        let look = |before: Option<f64>| {
            wait_for("the next look", || {
                Some(polls()).filter(|&now| now > before)
            })
        };
        let (before, start) = (look(look(polls())), Instant::now());
        job(&cluster, &group, &topic, 30);
        let between = start.elapsed() < Duration::from_secs(4) && polls() == before;
        between.then(|| {
            look(before);
            (group, exporter.scrape())
        })
    };
    let (group, page) = (0..10).find_map(attempt).expect("a job between two looks");
    assert_eq!(page.get(MEMBERLESS, &[("group", &group)]), Some(1.0));
    assert_eq!(page.get(MOVED, &[("group", &group)]), Some(20.0));
    assert_eq!(info(&page, &group)["simple"], "0");
}

#[test]
fn only_a_group_that_never_had_a_member_is_simple() {
    if !is_real_kafka("only_a_group_that_never_had_a_member_is_simple") {
        return;
    }
    only_a_group_without_members_is_simple(&Cluster::shared());
}

/// Workers that used to subscribe, and workers that never did: both commit by assign() now.
pub fn only_a_group_without_members_is_simple(cluster: &Cluster) {
    let topic = cluster.topic("t", 1, 100);
    let (once, never) = (cluster.name("once"), cluster.name("never"));
    job(cluster, &once, &topic, 10);
    cluster.commit(&never, &topic, &[(0, 10)]);
    let exporter = Exporter::start(&cluster.source(", memberless: {window: 5m}"));
    exporter.fresh();
    cluster.commit(&once, &topic, &[(0, 20)]);
    cluster.commit(&never, &topic, &[(0, 20)]);
    let page = exporter.fresh();
    for (group, simple) in [(&once, "0"), (&never, "1")] {
        assert_eq!(page.get(MEMBERS, &[("group", group)]), Some(0.0));
        assert_eq!(page.get(MEMBERLESS, &[("group", group)]), Some(1.0));
        assert_eq!(info(&page, group)["simple"], simple, "{group}");
    }
}

#[test]
fn two_assign_workers_that_commit_in_turn_zig_zag() {
    // Workers A and B read the same partition, B behind A. The committed offset goes
    //   100 (A) → 40 (B) → 160 (A) → 90 (B) → 170 (A):
    // back by 60 and by 70: 2 rewinds, 130 messages; forward by 120 and by 80: 200 messages.
    // The group came from 100 to 170: 70 = 200 - 130.
    let cluster = Cluster::shared();
    let topic = cluster.topic("t", 1, 200);
    let group = cluster.name("g");
    let (a, b) = (cluster.worker(&group), cluster.worker(&group));
    commit(&a, &topic, &[(0, 100)]).unwrap();
    let exporter = Exporter::start(&cluster.source(", memberless: {window: 5m}"));
    let steps = [
        (&b, 40, [0.0, 1.0, 60.0]),
        (&a, 160, [120.0, 1.0, 60.0]),
        (&b, 90, [120.0, 2.0, 130.0]),
        (&a, 170, [200.0, 2.0, 130.0]),
    ];
    assert_eq!(moves(&exporter.fresh(), &group), [Some(0.0); 3]);
    for (worker, offset, so_far) in steps {
        commit(worker, &topic, &[(0, offset)]).unwrap();
        let page = exporter.fresh();
        assert_eq!(moves(&page, &group), so_far.map(Some), "at {offset}");
        let memberless = f64::from(u8::from(so_far[0] > 0.0));
        let of_group = [("group", &*group)];
        assert_eq!(page.get(MEMBERLESS, &of_group), Some(memberless));
        assert_eq!(page.get(COMMITTED, &of_group), Some(offset as f64));
    }
}

#[test]
fn r10_the_first_commit_is_no_verdict_and_neither_is_a_restart() {
    let cluster = Cluster::shared();
    let topic = cluster.topic("t", 1, 10);
    let group = cluster.name("g");
    let of_group = [("group", &*group)];
    let yaml = cluster.source(", memberless: {window: 5m}");
    let exporter = Exporter::start(&yaml);
    assert!(!exporter.fresh().text.contains(&group), "nothing at first");

    cluster.commit(&group, &topic, &[(0, 9_000_000)]);
    for _ in 0..2 {
        let page = exporter.fresh();
        assert_eq!(page.get(COMMITTED, &of_group), Some(9_000_000.0));
        assert_eq!(page.get(MEMBERLESS, &of_group), Some(0.0));
    }
    cluster.commit(&group, &topic, &[(0, 9_000_500)]);
    assert_eq!(exporter.fresh().get(MEMBERLESS, &of_group), Some(1.0));
    drop(exporter);

    let exporter = Exporter::start(&yaml);
    let page = wait_for("the first look", || {
        let page = exporter.scrape();
        page.get(COMMITTED, &of_group).map(|_| page)
    });
    assert_ne!(page.get(MEMBERLESS, &of_group), Some(1.0), "first sight");
    assert_eq!(exporter.fresh().get(MEMBERLESS, &of_group), Some(0.0));
    cluster.commit(&group, &topic, &[(0, 9_001_000)]);
    let page = exporter.fresh();
    assert_eq!(page.get(MEMBERLESS, &of_group), Some(1.0));
    assert_eq!(page.get(MOVED, &of_group), Some(500.0));
}

#[test]
fn r11_a_committer_slower_than_the_looks_does_not_flap_within_the_window() {
    let cluster = Cluster::shared();
    let topic = cluster.topic("t", 1, 100);
    let (slow, by_design) = (cluster.name("slow"), cluster.name("flink"));
    let both = [&slow, &by_design];
    let at = |offset| both.map(|group| cluster.commit(group, &topic, &[(0, offset)]));
    at(10);
    let more = format!(
        ", memberless: {{window: 20s, ignore: ['^{}[.]flink']}}",
        cluster.prefix
    );
    let exporter = Exporter::start(&cluster.source(&more));
    exporter.fresh();
    at(60);
    let page = exporter.fresh();
    let moved = Instant::now();
    assert_eq!(page.get(MEMBERLESS, &[("group", &slow)]), Some(1.0));
    assert_eq!(page.get(MEMBERLESS, &[("group", &by_design)]), None);
    assert_eq!(page.get(MEMBERS, &[("group", &by_design)]), Some(0.0));
    assert_eq!(states(&page, &by_design), ["Empty"]);
    assert_eq!(page.get(COMMITTED, &[("group", &by_design)]), Some(60.0));

    // Many looks that find nothing new, until the window has passed: 1 and then 0, once.
    let mut scrapes = 0;
    wait_for("the flag falls", || {
        let page = exporter.scrape();
        let flag = page.get(MEMBERLESS, &[("group", &slow)]);
        scrapes += u32::from(flag == Some(1.0));
        assert!(flag.is_some(), "known all the while");
        assert!(flag == Some(1.0) || moved.elapsed() > Duration::from_secs(10));
        (flag == Some(0.0)).then_some(())
    });
    assert!(scrapes > 20, "{scrapes} scrapes showed the flag");
    assert_eq!(
        exporter.fresh().get(MEMBERLESS, &[("group", &slow)]),
        Some(0.0)
    );
}

#[test]
fn an_expired_offset_that_returns_is_seen_for_the_first_time() {
    if !is_real_kafka("an_expired_offset_that_returns_is_seen_for_the_first_time") {
        return;
    }
    let cluster = Cluster::shared();
    let topic = cluster.topic("t", 3, 500);
    let (part, whole) = (cluster.name("part"), cluster.name("whole"));
    let of_part = [("group", &*part)];
    let mut wire = cluster.wire();
    assert_eq!(wire.commit(&part, &topic, &[(2, 5)], -1), 0);
    let exporter = Exporter::start(&cluster.source(", memberless: {window: 5m}"));
    exporter.fresh();
    // The broker looks for expired offsets every second; these are seen for some of them.
    let soon = 4000;
    assert_eq!(wire.commit(&part, &topic, &[(0, 100), (1, 100)], soon), 0);
    assert_eq!(wire.commit(&whole, &topic, &[(0, 100)], soon), 0);
    wait_for("the offsets are seen", || {
        let page = exporter.scrape();
        let whole = page.get(COMMITTED, &[("group", &whole)]);
        (page.get(COMMITTED, &of_part) == Some(205.0) && whole.is_some()).then_some(())
    });
    wait_for("the offsets expire", || {
        let page = exporter.scrape();
        let gone = page.get(COMMITTED, &of_part) == Some(5.0);
        (gone && !page.text.contains(&whole)).then_some(())
    });
    // One returns behind where it was, one ahead.
    assert_eq!(wire.commit(&part, &topic, &[(0, 40), (1, 300)], -1), 0);
    assert_eq!(wire.commit(&whole, &topic, &[(0, 300)], -1), 0);
    let page = exporter.fresh();
    for (group, committed) in [(&part, 345.0), (&whole, 300.0)] {
        let of_group = [("group", &**group)];
        assert_eq!(page.get(COMMITTED, &of_group), Some(committed));
        assert_eq!(moves(&page, group), [Some(0.0); 3], "{group}");
        assert_eq!(page.get(MEMBERLESS, &of_group), Some(0.0), "{group}");
    }
}
