//! Several tables of one database under one entry of the configuration.

use crate::support::{Exporter, Page, SERVERS, Server, wait_for};

/// The tables that have figures.
fn tables(page: &Page) -> Vec<String> {
    let rows = page.all("dup_rows");
    rows.keys().map(|labels| labels["table"].clone()).collect()
}

/// An entry for several tables of the database, with these keys of its own.
fn entry(database: &str, keys: &str) -> String {
    format!(
        "      - {{database: {database}, key: sorting_key, time: ts, windows: [1h], interval: 4s, \
         timeout: 10s, {keys}}}\n"
    )
}

#[test]
fn tables_that_match_are_watched_as_they_come_and_go() {
    for server in SERVERS {
        let database = Server::named(server).database();
        let create = |table: &str, engine: &str| {
            database.run(&format!(
                "CREATE TABLE DB.{table} (id UInt64, ts DateTime DEFAULT now()) ENGINE = {engine}"
            ));
            database.run(&format!(
                "INSERT INTO DB.{table} (id) SELECT number % 2 FROM numbers(3)"
            ));
        };
        create("events_a", "ReplacingMergeTree ORDER BY id");
        create("events_b", "ReplacingMergeTree ORDER BY id");
        create("events_plain", "MergeTree ORDER BY id");
        create("other", "ReplacingMergeTree ORDER BY id");
        database.run(
            "CREATE TABLE DB.events_undated (id UInt64) ENGINE = ReplacingMergeTree ORDER BY id",
        );
        let yaml = format!(
            "clickhouse:\n{}    tables:\n{}",
            database.server.source("ch"),
            entry(&database.name, "match: '^events_'")
        );
        let exporter = Exporter::start(&yaml);
        let undated = [("reason", "unknown_column")];
        wait_for("a poll that reached every table", || {
            let page = exporter.scrape();
            let all = tables(&page) == ["events_a", "events_b"];
            (all && page.get("dup_check_unreadable", &undated) == Some(1.0)).then_some(())
        });
        let check = format!("tables:{}/^events_", database.name);
        let row = exporter.row(&check);
        assert!(
            row.contains("column ts of") && row.contains("events_undated"),
            "{row}"
        );

        database.run("DROP TABLE DB.events_a");
        create("events_c", "ReplacingMergeTree ORDER BY id");
        wait_for("the new table in place of the old one", || {
            (tables(&exporter.scrape()) == ["events_b", "events_c"]).then_some(())
        });
    }
}

#[test]
fn no_table_is_watched_by_two_entries() {
    let database = Server::named("clickhouse-18").database();
    for table in ["a", "b", "c"] {
        database.run(&format!(
            "CREATE TABLE DB.{table} (id UInt64, other UInt64, ts DateTime DEFAULT now()) \
             ENGINE = ReplacingMergeTree ORDER BY id"
        ));
        database.run(&format!(
            "INSERT INTO DB.{table} (id, other) SELECT number, 1 FROM numbers(4)"
        ));
    }
    let own = format!(
        "      - {{database: {}, table: a, key: [other], time: ts, windows: [1h]}}\n",
        database.name
    );
    let yaml = [
        "clickhouse:\n".to_owned() + &database.server.source("ch") + "    tables:\n",
        entry(&database.name, "match: '^[ab]$'"),
        entry(&database.name, "match: '.*'"),
        own,
    ]
    .concat();
    let page = Exporter::start(&yaml).good();
    assert_eq!(tables(&page), ["a", "b", "c"]);
    let keys = |table| page.get("dup_keys", &[("table", table)]);
    assert_eq!(keys("a"), Some(1.0), "its own entry decides");
    assert_eq!((keys("b"), keys("c")), (Some(4.0), Some(4.0)));
}

#[test]
fn tables_over_the_limit_are_counted_and_none_at_all_is_a_failure() {
    let database = Server::named("clickhouse-18").database();
    for table in ["a", "b", "c"] {
        database.run(&format!(
            "CREATE TABLE DB.{table} (id UInt64, ts DateTime DEFAULT now()) ENGINE = MergeTree \
             ORDER BY id"
        ));
    }
    let yaml = |keys| {
        let source = database.server.source("ch");
        format!(
            "clickhouse:\n{source}    tables:\n{}",
            entry(&database.name, keys)
        )
    };
    let page = Exporter::start(&yaml("match: '.*', engines: [MergeTree], max_tables: 2")).good();
    assert_eq!(tables(&page), ["a", "b"]);
    let limit = [("reason", "limit")];
    assert_eq!(page.get("dup_check_unreadable", &limit), Some(1.0));

    let exporter = Exporter::start(&yaml("match: 'nothing'"));
    let check = format!("tables:{}/nothing", database.name);
    exporter.assert_fails(&check, "unknown_table", "no table of database");
}
