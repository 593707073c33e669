//! The check of pipelines, on a real Kafka and on the versions of ClickHouse that log parts.

use crate::kafka::{Cluster, is_real_kafka};
use crate::support::{Database, Exporter, Page, Server, wait_for};

const ROWS_PER_MESSAGE: &str = "dup_pipeline_rows_per_message";
const PLAY: &[(&str, &str)] = &[("pipeline", "play"), ("window", "10m")];

/// A topic of two partitions, a group that reads it, and the table that it fills.
struct Flow {
    cluster: Cluster,
    topic: String,
    group: String,
    database: Database,
}

impl Flow {
    fn new(server: &str) -> Self {
        let cluster = Cluster::shared();
        let database = Server::named(server).database();
        for table in ["t", "other"] {
            database.run(&format!(
                "CREATE TABLE DB.{table} (id UInt64) ENGINE = MergeTree ORDER BY id"
            ));
        }
        let flow = Flow {
            topic: cluster.topic("playlog", 2, 500),
            group: cluster.name("audit-import"),
            cluster,
            database,
        };
        flow.pass_time();
        flow
    }

    fn yaml(&self, more: &str) -> String {
        format!(
            "{}clickhouse:\n{}pipelines:\n  - name: play\n    kafka: {{source: main, group: {}, \
             topics: [{}]}}\n    table: {{source: ch, database: {}, table: t}}\n    window: 10m\n    \
             interval: 1s\n    timeout: 50s\n{more}",
            self.cluster.source(""),
            self.database.server.source_with_part_log("ch")
                + &format!(
                    "    part_log: {{include: ['{}'], interval: 1s}}\n",
                    self.database.name
                ),
            self.group,
            self.topic,
            self.database.name,
        )
    }

    /// A worker reads up to these offsets.
    fn commit(&self, offsets: [i64; 2]) {
        let offsets = [(0, offsets[0]), (1, offsets[1])];
        self.cluster.commit(&self.group, &self.topic, &offsets);
    }

    fn write(&self, rows: u32) {
        self.database.run(&format!(
            "INSERT INTO DB.t SELECT number FROM numbers({rows})"
        ));
    }

    /// Somebody else writes to the server, so that its log goes on.
    fn pass_time(&self) {
        self.database.run("INSERT INTO DB.other SELECT 1");
        self.database.server.run("SYSTEM FLUSH LOGS");
    }

    /// An exporter that has seen the group twice, and the log go on.
    fn watch(&self) -> Exporter {
        let exporter = Exporter::start(&self.yaml(""));
        self.wait_for(&exporter, [0.0, 0.0]);
        exporter
    }

    /// Waits until these are the messages and rows of the pipeline.
    fn wait_for(&self, exporter: &Exporter, expected: [f64; 2]) -> Page {
        let mut last = [None; 2];
        wait_for(&format!("{expected:?} messages and rows"), || {
            self.pass_time();
            let page = exporter.scrape();
            last = ["messages", "rows"].map(|it| page.get(&format!("dup_pipeline_{it}"), PLAY));
            let is_beyond = last.iter().zip(expected).any(|(last, e)| *last > Some(e));
            assert!(!is_beyond, "{last:?} is more than {expected:?}");
            (last == expected.map(Some)).then_some(page)
        })
    }
}

#[test]
fn two_workers_on_one_group_write_each_message_twice() {
    for server in ["clickhouse", "clickhouse-18"] {
        let flow = Flow::new(server);
        flow.commit([0, 0]);
        let exporter = flow.watch();
        // The one is a batch of 50 behind the other, so that their commits go to and fro.
        flow.write(100);
        for offsets in [
            [50, 50],
            [100, 100],
            [50, 50],
            [150, 150],
            [100, 100],
            [150, 150],
        ] {
            flow.commit(offsets);
            exporter.fresh();
        }
        flow.write(200);
        flow.write(300);
        let page = flow.wait_for(&exporter, [300.0, 600.0]);
        assert_eq!(page.get(ROWS_PER_MESSAGE, PLAY), Some(2.0), "{server}");
        let batches = page.get("dup_pipeline_batches", PLAY);
        assert!(batches >= Some(1.0) && batches <= Some(3.0), "{batches:?}");
    }
}

#[test]
fn rows_that_are_lost_are_missing_and_failed_and_rejected_inserts_are_no_rows() {
    let flow = Flow::new("clickhouse");
    flow.database.run("DROP TABLE DB.t");
    flow.database.run(
        "CREATE TABLE DB.t (id UInt64) ENGINE = MergeTree ORDER BY id SETTINGS \
         non_replicated_deduplication_window = 100",
    );
    flow.commit([0, 0]);
    let exporter = flow.watch();
    // A worker that commits before it inserts, and fails at a tenth of the messages.
    for _ in 0..2 {
        flow.database
            .run("INSERT INTO DB.t SELECT number FROM numbers(90) ORDER BY ALL");
    }
    flow.commit([60, 40]);
    let page = flow.wait_for(&exporter, [100.0, 90.0]);
    assert_eq!(page.get(ROWS_PER_MESSAGE, PLAY), Some(0.9));
    assert_eq!(
        page.get("dup_pipeline_collapses", &[("pipeline", "play")]),
        Some(0.0)
    );
}

#[test]
fn a_reload_forgets_no_look_and_a_changed_pipeline_begins_anew() {
    let flow = Flow::new("clickhouse");
    flow.commit([0, 0]);
    let exporter = flow.watch();
    flow.write(10);
    flow.commit([5, 5]);
    flow.wait_for(&exporter, [10.0, 10.0]);
    assert_eq!(exporter.reload(&flow.yaml("    control: staging\n")).0, 200);
    let page = exporter.fresh();
    assert_eq!(page.get(ROWS_PER_MESSAGE, PLAY), Some(1.0));
    let control = [("pipeline", "play"), ("control", "staging")];
    assert_eq!(page.get("dup_control_info", &control), Some(1.0));
    let changed = flow.yaml("").replace("window: 10m", "window: 11m");
    assert_eq!(exporter.reload(&changed).0, 200);
    flow.pass_time();
    let page = exporter.fresh();
    assert!(
        page.all("dup_pipeline_messages")
            .values()
            .all(|messages| *messages == 0.0)
    );
}

#[test]
fn a_group_that_is_not_there_is_said_to_be_missing() {
    if !is_real_kafka("a_group_that_is_not_there_is_said_to_be_missing") {
        return;
    }
    let flow = Flow::new("clickhouse");
    let exporter = Exporter::start(&flow.yaml(""));
    wait_for("a look at the cluster, and a poll after it", || {
        let failed = [("check", "pipeline:play"), ("reason", "group_not_found")];
        (exporter.scrape().get("dup_check_failures_total", &failed) >= Some(1.0)).then_some(())
    });
    let words = format!("main has no group {} with commits", flow.group);
    exporter.assert_fails("pipeline:play", "group_not_found", &words);
    flow.commit([0, 0]);
    flow.wait_for(&exporter, [0.0, 0.0]);
}

#[test]
fn a_server_without_a_log_is_said_to_have_none() {
    let server = Server::named("clickhouse-nolog");
    let flow = Flow {
        database: server.database(),
        ..Flow::new("clickhouse")
    };
    flow.database
        .run("CREATE TABLE DB.t (id UInt64) ENGINE = MergeTree ORDER BY id");
    flow.commit([0, 0]);
    let exporter = Exporter::start(&flow.yaml(""));
    exporter.assert_fails("pipeline:play", "no_part_log", "system.part_log");
    assert_eq!(exporter.scrape().get("dup_pipeline_rows", PLAY), None);
}

#[test]
fn layers_are_told_from_the_start_by_the_labels_of_their_figures() {
    let yaml = "\
kafka:
  - {name: main, bootstrap_servers: '127.0.0.1:1'}
clickhouse:
  - name: logs
    url: http://127.0.0.1:1
    summaries:
      - database: audit
        table: summary
        count: total
        day: day
        raw: {database: audit, table: playlog, key: [id], day: day}
pipelines:
  - name: play
    kafka: {source: main, group: audit-import, topics: [playlog, playlog-eu]}
    table: {source: logs, database: audit, table: playlog}
    summary: {source: logs, database: audit, table: summary}
    collapses: true
";
    let page = Exporter::start(yaml).scrape();
    let info = page.all("dup_pipeline_info");
    let told: Vec<_> = info
        .keys()
        .map(|labels| {
            let names = ["layer", "source", "database", "table", "group", "topic"];
            names.map(|name| labels[name].as_str())
        })
        .collect();
    assert_eq!(
        told,
        [
            ["kafka", "main", "", "", "audit-import", "playlog"],
            ["kafka", "main", "", "", "audit-import", "playlog-eu"],
            ["summary", "logs", "audit", "summary", "", ""],
            ["table", "logs", "audit", "playlog", "", ""],
        ]
    );
    assert_eq!(
        page.get("dup_pipeline_collapses", &[("pipeline", "play")]),
        Some(1.0)
    );
    let stale_after = page.get(
        "dup_check_stale_after_seconds",
        &[("check", "pipeline:play")],
    );
    assert_eq!(stale_after, Some(180.0), "three intervals of a minute");
}
