//! The check of a table, on every version of ClickHouse that is supported.

use crate::support::{Database, Exporter, Page, Server};

/// Every kind of server, from the oldest to the newest.
const SERVERS: [&str; 3] = ["clickhouse-18", "clickhouse-23", "clickhouse"];

/// The page of an exporter that polled table `t` of the database with these keys of its
/// configuration.
fn poll(database: &Database, check: &str) -> Page {
    let exporter = Exporter::start(&format!(
        "clickhouse:\n{}    tables:\n      - {{database: {}, table: t, interval: 1s, {check}}}\n",
        database.server.source("ch"),
        database.name
    ));
    exporter.fresh()
}

#[test]
fn r01_one_message_stored_139_times_is_a_factor_of_139() {
    for server in SERVERS {
        let database = Server::named(server).database();
        database.run("CREATE TABLE DB.t (dev UInt32, ts DateTime) ENGINE = MergeTree PARTITION BY toYYYYMM(ts) ORDER BY (dev, ts)");
        database.run("INSERT INTO DB.t SELECT 7, now() FROM numbers(139)");
        let page = poll(&database, "key: [dev, ts], time: ts, windows: [10m]");
        let table = [("table", "t"), ("window", "10m")];
        assert_eq!(page.get("dup_rows", &table), Some(139.0), "{server}");
        assert_eq!(page.get("dup_keys", &table), Some(1.0), "{server}");
        assert_eq!(page.get("dup_factor", &table), Some(139.0), "{server}");
    }
}
