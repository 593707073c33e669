//! Traps of ClickHouse that no other module shows; docs/clickhouse.md lists them all.

use crate::support::{Database, Exporter, SERVERS, Server};

fn watch(database: &Database, tables: &[(&str, &str)]) -> Exporter {
    Exporter::start(&format!("clickhouse:\n{}", database.tables("ch", tables)))
}

#[test]
fn copies_within_one_insert_are_gone_before_anybody_can_count_them() {
    for (server, rows) in [
        ("clickhouse-18", 1000.0),
        ("clickhouse-23", 500.0),
        ("clickhouse", 500.0),
    ] {
        let database = Server::named(server).database();
        database.run(
            "CREATE TABLE DB.t (k UInt64, ts DateTime) ENGINE = ReplacingMergeTree ORDER BY k",
        );
        database.run(
            "CREATE MATERIALIZED VIEW DB.counted ENGINE = SummingMergeTree ORDER BY day \
             AS SELECT toDate(ts) AS day, count() AS total FROM DB.t GROUP BY day",
        );
        // `optimize_on_insert`, which 18.16 does not have, collapses the block on its way to disk.
        database.run("INSERT INTO DB.t SELECT number % 500, now() FROM numbers(1000)");
        let page = watch(&database, &[("t", "key: [k], time: ts, windows: [1h]")]).good();
        assert_eq!(page.get("dup_rows", &[]), Some(rows), "{server}");
        assert_eq!(page.get("dup_factor", &[]), Some(rows / 500.0), "{server}");
        // The view saw them all the same: what it counted is double where the table shows nothing.
        let total = database.run("SELECT sum(total) FROM DB.counted");
        assert_eq!(total, "1000", "{server}");
    }
}

#[test]
fn float_keys_are_told_apart_by_their_bits() {
    for server in SERVERS {
        let database = Server::named(server).database();
        database.run("CREATE TABLE DB.t (f Float64, ts DateTime) ENGINE = MergeTree ORDER BY f");
        // Two rows that are no number, one key; 0 and -0, two keys here and one for a merge.
        database.run("INSERT INTO DB.t SELECT arrayJoin([nan, nan, 0., -0., 1.]), now()");
        let page = watch(&database, &[("t", "key: [f], time: ts, windows: [1h]")]).good();
        assert_eq!(page.get("dup_rows", &[]), Some(5.0), "{server}");
        assert_eq!(page.get("dup_keys", &[]), Some(4.0), "{server}");
    }
}

#[test]
fn an_attached_partition_is_read_like_any_other() {
    for server in SERVERS {
        let database = Server::named(server).database();
        for table in ["t", "copy"] {
            database.run(&format!(
                "CREATE TABLE DB.{table} (k UInt64, ts DateTime) ENGINE = MergeTree \
                 PARTITION BY toYYYYMM(ts) ORDER BY k"
            ));
            database.run(&format!(
                "INSERT INTO DB.{table} SELECT number, now() FROM numbers(3)"
            ));
        }
        // The month in which the rows lie, whatever month it is by now.
        let month = database.run("SELECT any(toYYYYMM(ts)) FROM DB.t");
        database.run(&format!("ALTER TABLE DB.t DETACH PARTITION {month}"));
        let page = watch(&database, &[("t", "key: [k], time: ts, windows: [1h]")]).good();
        assert_eq!(page.get("dup_rows", &[]), Some(0.0), "{server}");
        database.run(&format!("ALTER TABLE DB.t ATTACH PARTITION {month}"));
        let page = watch(&database, &[("t", "key: [k], time: ts, windows: [1h]")]).good();
        assert_eq!(page.get("dup_rows", &[]), Some(3.0), "{server}");
    }
}

#[test]
fn a_deleted_row_is_counted_until_its_part_is_rewritten_or_its_mark_is_seen() {
    let database = Server::named("clickhouse").database();
    database.run("CREATE TABLE DB.t (k UInt64, ts DateTime) ENGINE = MergeTree ORDER BY k");
    for _ in 0..2 {
        database.run("INSERT INTO DB.t SELECT number, now() FROM numbers(10)");
    }
    let keys = "key: [k], time: ts, windows: [1h], interval: 1s";
    let exporter = watch(&database, &[("t", keys)]);
    assert_eq!(exporter.good().get("dup_rows", &[]), Some(20.0));
    database.run("DELETE FROM DB.t WHERE k < 5");
    assert_eq!(exporter.fresh().get("dup_rows", &[]), Some(10.0));
    database.run("ALTER TABLE DB.t DELETE WHERE k < 8 SETTINGS mutations_sync = 2");
    assert_eq!(exporter.fresh().get("dup_rows", &[]), Some(4.0));
}
