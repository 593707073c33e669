//! Names of databases, tables and columns that only quotes hold, through both checks of ClickHouse.

use serde_json::Value;

use crate::support::{Database, Exporter, SERVERS, Server, unique, wait_for};

/// What ClickHouse takes for a name, and SQL, YAML, HTML or the metrics page might not.
const ODD: &str = "a`b\\c\"d'e. f-$g;--ж🙂{\nx\ty/*";

fn quoted(name: &str) -> String {
    format!("`{}`", name.replace('\\', r"\\").replace('`', r"\`"))
}

fn json(name: &str) -> Value {
    Value::from(name)
}

/// A table with five keys, each twice, and a summary that counted it; every name of them is odd.
fn create(database: &Database) -> (String, String) {
    let (raw, summary) = (format!("raw{ODD}"), format!("{ODD}summary"));
    let (id, at) = (quoted(&format!("id{ODD}")), quoted(&format!("at{ODD}")));
    let (day, count) = (quoted(&format!("day{ODD}")), quoted(&format!("count{ODD}")));
    database.run(&format!(
        "CREATE TABLE DB.{} ({id} UInt64, {at} DateTime DEFAULT now()) ENGINE = MergeTree ORDER BY {id}",
        quoted(&raw)
    ));
    database.run(&format!(
        "INSERT INTO DB.{} ({id}) SELECT number % 5 FROM numbers(10)",
        quoted(&raw)
    ));
    database.run(&format!(
        "CREATE TABLE DB.{} ({day} Date, {count} UInt64) ENGINE = SummingMergeTree ORDER BY {day}",
        quoted(&summary)
    ));
    database.run(&format!(
        "INSERT INTO DB.{} SELECT toDate(now()), 10",
        quoted(&summary)
    ));
    (raw, summary)
}

fn keep_off_midnight(server: &Server) {
    wait_for("a while without midnight", || {
        let near = server.run("SELECT toDate(now() + 45) != toDate(now())");
        (near == "0").then_some(())
    });
}

#[test]
fn whatever_stands_in_a_name_is_a_name_to_both_checks_and_comes_back_as_it_was() {
    for server in SERVERS {
        let database = Server::named(server).database_named(&format!("{}-{ODD}", unique("t")));
        keep_off_midnight(&database.server);
        let (raw, summary) = create(&database);
        let db = json(&database.name);
        let column = |name: &str| json(&format!("{name}{ODD}"));
        let raw_day = json(&format!("toDate({})", quoted(&format!("at{ODD}"))));
        let exporter = Exporter::start(&format!(
            "clickhouse:\n{}    tables:\n      - {{database: {db}, table: {}, key: [{}], time: {}, \
             windows: [1d]}}\n    summaries:\n      - {{database: {db}, table: {}, count: {}, day: {}, \
             periods: [today], min_coverage: 0, keys: exact, interval: 1s, stale_after: 1m, raw: {{database: {db}, table: {}, \
             key: [{}], day: {raw_day}}}}}\n",
            database.server.source("ch"),
            json(&raw),
            column("id"),
            column("at"),
            json(&summary),
            column("count"),
            column("day"),
            json(&raw),
            column("id"),
        ));
        let page = exporter.polled();
        let labels = [("database", &*database.name), ("table", &*raw)];
        let rows = ["dup_rows", "dup_keys", "dup_factor"].map(|name| page.get(name, &labels));
        assert_eq!(rows, [10.0, 5.0, 2.0].map(Some), "{server}");
        let labels = [("database", &*database.name), ("table", &*summary)];
        let counted = [
            "dup_summary_total",
            "dup_summary_keys",
            "dup_summary_inflation_factor",
        ]
        .map(|name| page.get(name, &labels));
        assert_eq!(counted, [10.0, 5.0, 2.0].map(Some), "{server}");
        let check = format!("table:{}.{raw}", database.name);
        let up = page.get("dup_check_up", &[("check", &check)]);
        assert_eq!(up, Some(1.0), "{server}");
        if server != "clickhouse-23" {
            // It has no part_log.
            wait_for("the parts in the log", || {
                let page = exporter.scrape();
                (page.get("dup_summary_part_log_ratio", &labels) == Some(1.0)).then_some(())
            });
        }
    }
}

#[test]
fn the_table_inside_of_a_materialized_view_is_watched_by_its_own_name() {
    for server in SERVERS {
        let database = Server::named(server).database();
        database.run("CREATE TABLE DB.t (id UInt64, ts DateTime) ENGINE = MergeTree ORDER BY id");
        database.run(
            "CREATE MATERIALIZED VIEW DB.`v-1.x` ENGINE = MergeTree PARTITION BY tuple() ORDER BY id \
             AS SELECT id, ts FROM DB.t",
        );
        database.run("INSERT INTO DB.t SELECT number % 5, now() FROM numbers(10)");
        let inner = database.run(&format!(
            "SELECT name FROM system.tables WHERE database = '{}' AND name LIKE '.inner%'",
            database.name
        ));
        let keys = "key: [id], time: ts, windows: [1d]";
        let tables = database.tables("ch", &[(&inner, keys), ("v-1.x", keys)]);
        let page = Exporter::start(&format!("clickhouse:\n{tables}")).good();
        for table in [&*inner, "v-1.x"] {
            let labels = [("table", table)];
            let seen = ["dup_rows", "dup_keys", "dup_factor"].map(|name| page.get(name, &labels));
            assert_eq!(seen, [10.0, 5.0, 2.0].map(Some), "{server}: {table}");
        }
    }
}
