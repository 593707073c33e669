//! The check of every table by `system.part_log`, on the versions of ClickHouse that have it, and on the
//! servers that have none.

use serde_json::Value;

use crate::support::{Database, Exporter, OwnParts, Page, Server, wait_for};

/// Those that log parts.
const LOGGING: [&str; 2] = ["clickhouse-18", "clickhouse"];

// ---- What the tests stand on ----

/// A source that watches the tables of this database, and no other; more keys of the check.
fn source(database: &Database, name: &str, keys: &str) -> String {
    let escaped: String = (database.name.chars())
        .map(|c| {
            if c.is_alphanumeric() || c == '_' {
                c.to_string()
            } else {
                format!("\\{c}")
            }
        })
        .collect();
    let only = Value::from(format!("^{escaped}\\."));
    format!(
        "{}    part_log: {{include: [{only}], interval: 1s, timeout: 50s{keys}}}\n",
        database.server.source_with_part_log(name)
    )
}

fn yaml(database: &Database) -> String {
    format!("clickhouse:\n{}", source(database, "ch", ""))
}

fn watch(database: &Database) -> Exporter {
    Exporter::start(&yaml(database))
}

/// Makes sure that the server has a log, with a row in it.
fn begin_log(server: &Server) {
    let database = server.database();
    database.run("CREATE TABLE DB.any (id UInt64) ENGINE = MergeTree ORDER BY id");
    database.run("INSERT INTO DB.any SELECT 1");
    wait_for("a log", || {
        let known =
            "SELECT count() FROM system.tables WHERE database = 'system' AND name = 'part_log'";
        let has_row = "SELECT count() > 0 FROM system.part_log";
        (server.run(known) == "1" && server.run(has_row) == "1").then_some(())
    });
}

/// A new database on a server that has a log.
fn database(server: &str) -> Database {
    let server = Server::named(server);
    begin_log(&server);
    server.database()
}

/// A table whose merges are held back.
fn create(database: &Database, table: &str, engine: &str) {
    database.run(&format!(
        "CREATE TABLE DB.{table} (id UInt64, v UInt8 DEFAULT 0) ENGINE = {engine}"
    ));
    database.run(&format!("SYSTEM STOP MERGES DB.{table}"));
}

fn write(database: &Database, table: &str, rows: u32) {
    database.run(&format!(
        "INSERT INTO DB.{table} (id) SELECT number FROM numbers({rows})"
    ));
}

fn merge(database: &Database, table: &str) {
    database.run(&format!("SYSTEM START MERGES DB.{table}"));
    database.run(&format!("OPTIMIZE TABLE DB.{table} FINAL"));
}

const REPLACING: &str = "ReplacingMergeTree ORDER BY id";

/// Written, deduplicated, failed and healed rows of the one table with these labels.
fn counts(page: &Page, labels: &[(&str, &str)]) -> [Option<f64>; 4] {
    ["written", "deduplicated", "failed", "healed"]
        .map(|count| page.get(&format!("dup_table_{count}_rows_total"), labels))
}

/// Waits until these are the figures of a table, and sees that they stay so.
fn wait_for_counts(exporter: &Exporter, labels: &[(&str, &str)], expected: [Option<f64>; 4]) {
    let mut last = [None; 4];
    wait_for(&format!("{labels:?}: {expected:?}"), || {
        last = counts(&exporter.scrape(), labels);
        if last[0] > expected[0] {
            panic!("{last:?} is more than {expected:?}");
        }
        (last == expected).then_some(())
    });
    assert_eq!(counts(&exporter.fresh(), labels), expected, "they stay");
}

/// Waits until the log tells of this many rows that were written to the tables of the database, or
/// that failed to be.
fn wait_for_log(database: &Database, rows: u32) {
    wait_for("the parts in the log", || {
        let logged = database.run(&format!(
            "SELECT sum(rows) FROM system.part_log WHERE toInt8(event_type) = 1 AND database = '{}'",
            database.name
        ));
        (logged == rows.to_string()).then_some(())
    });
}

/// A row of the log by hand: `what` are columns and their values.
fn log(database: &Database, at: &str, what: &[(&str, &str)]) {
    let columns: String = what
        .iter()
        .map(|(column, _)| format!(", {column}"))
        .collect();
    let values: String = what.iter().map(|(_, value)| format!(", {value}")).collect();
    let name = &database.name;
    database.run(&format!(
        "INSERT INTO system.part_log (event_type, event_date, event_time, event_time_microseconds, \
         database, table, table_uuid, part_name{columns}) SELECT 'NewPart', toDate({at}), {at}, \
         toDateTime64({at}, 6), '{name}', 't', uuid, generateUUIDv4(){values} FROM system.tables \
         WHERE database = '{name}' AND name = 't'"
    ));
}

// ---- What is counted ----

#[test]
fn rows_are_counted_as_they_are_written_and_as_merges_remove_them() {
    for server in LOGGING {
        let database = database(server);
        create(&database, "t", REPLACING);
        create(&database, "plain", "MergeTree ORDER BY id");
        // Before anybody looked.
        write(&database, "t", 500);
        wait_for_log(&database, 500);
        let exporter = watch(&database);
        let (t, plain) = ([("table", "t")], [("table", "plain")]);
        assert_eq!(counts(&exporter.good(), &t), [Some(0.0); 4], "{server}");
        for _ in 0..2 {
            write(&database, "t", 1000);
        }
        write(&database, "plain", 70);
        wait_for_counts(&exporter, &t, [2000.0, 0.0, 0.0, 0.0].map(Some));
        wait_for_counts(&exporter, &plain, [Some(70.0), Some(0.0), Some(0.0), None]);
        merge(&database, "t");
        merge(&database, "plain");
        // 500 and twice 1000 rows became 1000.
        wait_for_counts(&exporter, &t, [2000.0, 0.0, 0.0, 1500.0].map(Some));
        wait_for_counts(&exporter, &plain, [Some(70.0), Some(0.0), Some(0.0), None]);
        assert_eq!(database.run("SELECT count() FROM DB.t"), "1000", "{server}");
    }
}

#[test]
fn rejected_duplicates_and_failed_inserts_are_counted_apart() {
    let database = database("clickhouse");
    create(
        &database,
        "t",
        "MergeTree ORDER BY id SETTINGS non_replicated_deduplication_window = 100",
    );
    let exporter = watch(&database);
    exporter.good();
    for _ in 0..3 {
        database.run("INSERT INTO DB.t SELECT number, 0 FROM numbers(1000) ORDER BY ALL");
    }
    log(&database, "now()", &[("rows", "7"), ("error", "241")]);
    wait_for_counts(
        &exporter,
        &[("table", "t")],
        [Some(1000.0), Some(2000.0), Some(7.0), None],
    );
}

#[test]
fn rows_of_an_attached_partition_were_not_written_here_and_a_patch_is_no_row() {
    let database = database("clickhouse");
    let engine = "ReplacingMergeTree ORDER BY id SETTINGS enable_block_number_column = 1, \
                  enable_block_offset_column = 1";
    for table in ["t", "elsewhere"] {
        create(&database, table, engine);
        write(&database, table, 300);
    }
    wait_for_log(&database, 600);
    let exporter = watch(&database);
    exporter.good();
    database.run("ALTER TABLE DB.t ATTACH PARTITION tuple() FROM DB.elsewhere");
    database.run("UPDATE DB.t SET v = 1 WHERE id < 100");
    write(&database, "t", 5);
    let logged = "SELECT count() FROM system.part_log WHERE startsWith(part_name, 'patch-') \
                  AND toInt8(event_type) = 1 AND rows > 0 AND database = ";
    wait_for("a patch in the log", || {
        (database.run(&format!("{logged}'{}'", database.name)) != "0").then_some(())
    });
    wait_for_counts(&exporter, &[("table", "t")], [5.0, 0.0, 0.0, 0.0].map(Some));
}

#[test]
fn sources_of_a_merge_that_the_log_does_not_tell_are_looked_up_while_the_server_has_them() {
    let own = OwnParts::start(&["clickhouse-18"]);
    let server = Server::of(own.part("clickhouse-18"));
    let database = server.database();
    create(&database, "t", REPLACING);
    for _ in 0..3 {
        write(&database, "t", 100);
    }
    begin_log(&server);
    wait_for_log(&database, 300);
    database.run(
        "ALTER TABLE system.part_log DROP PARTITION MONTH"
            .replace("MONTH", &database.run("SELECT toYYYYMM(now())"))
            .as_str(),
    );
    begin_log(&server);
    assert_eq!(
        database.run(&format!(
            "SELECT count() FROM system.part_log WHERE database = '{}'",
            database.name
        )),
        "0"
    );
    let exporter = watch(&database);
    exporter.good();
    merge(&database, "t");
    wait_for_counts(
        &exporter,
        &[("table", "t")],
        [0.0, 0.0, 0.0, 200.0].map(Some),
    );
}

// ---- What merges remove ----

#[test]
fn merges_that_remove_other_rows_than_copies_leave_healed_unknown() {
    let database = database("clickhouse");
    let columns = "(id UInt64, d DateTime DEFAULT now(), gone UInt8 DEFAULT 0)";
    for (table, engine) in [
        (
            "expires",
            "ReplacingMergeTree ORDER BY id TTL d + INTERVAL 1 DAY",
        ),
        ("marks", "ReplacingMergeTree(d, gone) ORDER BY id"),
        ("sums", "SummingMergeTree ORDER BY id"),
        ("version", "ReplacingMergeTree(d) ORDER BY id"),
        ("light", "ReplacingMergeTree ORDER BY id"),
        ("heavy", "ReplacingMergeTree ORDER BY id"),
        (
            "patched",
            "ReplacingMergeTree ORDER BY id SETTINGS enable_block_number_column = 1, \
             enable_block_offset_column = 1",
        ),
    ] {
        database.run(&format!(
            "CREATE TABLE DB.{table} {columns} ENGINE = {engine}"
        ));
        database.run(&format!("SYSTEM STOP MERGES DB.{table}"));
    }
    let exporter = watch(&database);
    let healed = |page: &Page, table| page.get("dup_table_healed_rows_total", &[("table", table)]);
    let page = exporter.good();
    for (table, expected) in [
        ("expires", None),
        ("marks", None),
        ("sums", None),
        ("version", Some(0.0)),
        ("light", Some(0.0)),
        ("heavy", Some(0.0)),
        ("patched", Some(0.0)),
    ] {
        assert_eq!(healed(&page, table), expected, "{table}");
    }

    for table in ["version", "light", "heavy", "patched"] {
        write(&database, table, 100);
        write(&database, table, 100);
        database.run(&format!("SYSTEM START MERGES DB.{table}"));
    }
    database.run("DELETE FROM DB.light WHERE id < 10");
    database.run("ALTER TABLE DB.heavy DELETE WHERE id < 10 SETTINGS mutations_sync = 2");
    database.run(
        "DELETE FROM DB.patched WHERE id < 10 SETTINGS lightweight_delete_mode = 'lightweight_update_force'",
    );
    for table in ["version", "light", "heavy", "patched"] {
        merge(&database, table);
    }
    wait_for_counts(
        &exporter,
        &[("table", "version")],
        [200.0, 0.0, 0.0, 100.0].map(Some),
    );
    // A mutation rewrites each part on its own, and the merge finds 90 copies of 90 keys.
    wait_for_counts(
        &exporter,
        &[("table", "heavy")],
        [200.0, 0.0, 0.0, 90.0].map(Some),
    );
    for table in ["light", "patched"] {
        let unknown = [Some(200.0), Some(0.0), Some(0.0), None];
        wait_for_counts(&exporter, &[("table", table)], unknown);
    }
    // Once it is known how rows vanish, it is told at once.
    database.run("ALTER TABLE DB.version MODIFY TTL d + INTERVAL 1 DAY");
    assert_eq!(healed(&exporter.fresh(), "version"), None);
}

#[test]
fn a_merge_by_columns_counts_no_row_twice() {
    let database = database("clickhouse");
    create(
        &database,
        "t",
        "ReplacingMergeTree ORDER BY id SETTINGS min_bytes_for_wide_part = 0, \
         vertical_merge_algorithm_min_rows_to_activate = 1, \
         vertical_merge_algorithm_min_columns_to_activate = 1, \
         vertical_merge_algorithm_min_bytes_to_activate = 0",
    );
    let exporter = watch(&database);
    exporter.good();
    write(&database, "t", 1000);
    write(&database, "t", 1000);
    merge(&database, "t");
    wait_for_counts(
        &exporter,
        &[("table", "t")],
        [2000.0, 0.0, 0.0, 1000.0].map(Some),
    );
    let how = database.run(&format!(
        "SELECT DISTINCT merge_algorithm FROM system.part_log WHERE event_type = 'MergeParts' \
         AND database = '{}'",
        database.name
    ));
    assert_eq!(how, "Vertical");
}

// ---- Which tables ----

#[test]
fn a_table_that_came_and_was_written_between_two_polls_shows_zeros_first() {
    let own = OwnParts::start(&["clickhouse"]);
    let server = Server::of(own.part("clickhouse"));
    begin_log(&server);
    let database = server.database();
    create(&database, "before", "MergeTree ORDER BY id");
    let exporter = Exporter::start(&format!(
        "clickhouse:\n{}",
        source(&database, "ch", "").replace("interval: 1s", "interval: 4s")
    ));
    exporter.good();
    // Polls come every four seconds, and a look every 50 ms.
    create(&database, "t", REPLACING);
    write(&database, "t", 100);
    let first = wait_for("the first sight of it", || {
        exporter
            .scrape()
            .get("dup_table_written_rows_total", &[("table", "t")])
    });
    assert_eq!(first, 0.0);
    wait_for_counts(
        &exporter,
        &[("table", "t")],
        [100.0, 0.0, 0.0, 0.0].map(Some),
    );
}

#[test]
fn a_dropped_table_is_gone_at_the_next_poll_and_one_of_the_same_name_begins_anew() {
    for server in LOGGING {
        let database = database(server);
        create(&database, "t", REPLACING);
        let exporter = watch(&database);
        exporter.good();
        write(&database, "t", 100);
        wait_for_counts(
            &exporter,
            &[("table", "t")],
            [100.0, 0.0, 0.0, 0.0].map(Some),
        );
        let sync = if server == "clickhouse" { "SYNC" } else { "" };
        database.run(&format!("DROP TABLE DB.t {sync}"));
        if server == "clickhouse-18" {
            // Without a uuid, a poll between is what tells them apart.
            assert_eq!(counts(&exporter.fresh(), &[]), [None; 4], "{server}");
        }
        create(&database, "t", REPLACING);
        write(&database, "t", 7);
        wait_for("it begins anew", || {
            let written = counts(&exporter.scrape(), &[("table", "t")])[0];
            (written != Some(100.0)).then_some(())
        });
        wait_for_counts(&exporter, &[("table", "t")], [7.0, 0.0, 0.0, 0.0].map(Some));
        database.run(&format!("DROP TABLE DB.t {sync}"));
        assert_eq!(counts(&exporter.fresh(), &[]), [None; 4], "{server}");
    }
}

#[test]
fn rows_follow_the_uuid_of_a_renamed_table() {
    let database = database("clickhouse");
    create(&database, "a", "MergeTree ORDER BY id");
    let exporter = watch(&database);
    exporter.good();
    write(&database, "a", 30);
    wait_for_counts(
        &exporter,
        &[("table", "a")],
        [Some(30.0), Some(0.0), Some(0.0), None],
    );
    database.run("RENAME TABLE DB.a TO DB.b");
    write(&database, "b", 4);
    wait_for_counts(
        &exporter,
        &[("table", "b")],
        [Some(4.0), Some(0.0), Some(0.0), None],
    );
    assert_eq!(counts(&exporter.scrape(), &[("table", "a")]), [None; 4]);
}

#[test]
fn names_may_be_odd() {
    for server in LOGGING {
        let shared = Server::named(server);
        begin_log(&shared);
        let name = crate::support::unique("o'd`d.\\ \"b");
        let database = shared.database_named(&name);
        let tables = [
            "a.b",
            "it's",
            "back`tick",
            "line\nbreak",
            "\u{1f41f} (x)",
            "\\",
        ];
        let quoted = |table: &str| format!("`{}`", table.replace('\\', "\\\\").replace('`', "\\`"));
        for table in tables {
            create(&database, &quoted(table), REPLACING);
        }
        let exporter = watch(&database);
        exporter.good();
        for (i, table) in tables.iter().enumerate() {
            for _ in 0..2 {
                write(&database, &quoted(table), 10 + u32::try_from(i).unwrap());
            }
            merge(&database, &quoted(table));
        }
        for (i, table) in tables.iter().enumerate() {
            let rows = 10.0 + i as f64;
            let labels = [("database", &*name), ("table", *table)];
            wait_for_counts(&exporter, &labels, [2.0 * rows, 0.0, 0.0, rows].map(Some));
        }
    }
}

#[test]
fn tables_are_chosen_by_patterns_and_those_beyond_the_limit_are_counted() {
    for server in LOGGING {
        let database = database(server);
        for table in ["a", "b", "c", "d"] {
            create(&database, table, REPLACING);
        }
        database.run("CREATE TABLE DB.log (id UInt64) ENGINE = Log");
        let yaml = format!(
            "clickhouse:\n{}",
            source(&database, "ch", ", exclude: ['\\.b$'], max_tables: 2")
        );
        let exporter = Exporter::start(&yaml);
        let page = exporter.good();
        let written = page.all("dup_table_written_rows_total");
        let tables: Vec<_> = written.keys().map(|labels| &*labels["table"]).collect();
        assert_eq!(tables, ["a", "c"], "{server}");
        let skipped = [("check", "part_log"), ("reason", "limit")];
        assert_eq!(
            page.get("dup_check_unreadable", &skipped),
            Some(1.0),
            "{server}"
        );
    }
}

#[test]
fn the_servers_own_tables_are_left_out_unless_they_are_asked_for() {
    let server = Server::named("clickhouse");
    begin_log(&server);
    let yaml = format!("clickhouse:\n{}", server.source_with_part_log("ch"));
    let exporter = Exporter::start(&yaml);
    let databases = |page: &Page| {
        let written = page.all("dup_table_written_rows_total");
        written
            .into_keys()
            .map(|labels| labels["database"].clone())
            .collect::<Vec<_>>()
    };
    assert!(!databases(&exporter.good()).contains(&"system".to_owned()));
    exporter.reload(&format!("{yaml}    part_log: {{exclude: []}}\n"));
    wait_for("tables of the server", || {
        databases(&exporter.scrape())
            .contains(&"system".to_owned())
            .then_some(())
    });
}

// ---- Days, restarts, reloads ----

#[test]
fn rows_around_midnight_are_counted_once() {
    let database = database("clickhouse");
    create(&database, "t", "MergeTree ORDER BY id");
    // The clock of the test can't be moved, but days of the log can: this row says that it is of the day
    // before, as one does that was logged just before midnight.
    let exporter = watch(&database);
    exporter.good();
    let name = &database.name;
    database.run(&format!(
        "INSERT INTO system.part_log (event_type, event_date, event_time, event_time_microseconds, \
         database, table, table_uuid, part_name, rows) SELECT 'NewPart', toDate(now() - 10) - 1, now() - 10, \
         now64(6) - 10, '{name}', 't', uuid, 'all_77_77_0', 40 FROM system.tables WHERE database = '{name}'"
    ));
    wait_for_counts(
        &exporter,
        &[("table", "t")],
        [Some(40.0), Some(0.0), Some(0.0), None],
    );
}

#[test]
fn late_rows_count_and_those_that_are_too_late_do_not() {
    let database = database("clickhouse");
    create(&database, "t", "MergeTree ORDER BY id");
    let exporter = watch(&database);
    exporter.good();
    log(&database, "(now() - 60)", &[("rows", "3")]);
    log(&database, "(now() - 3600)", &[("rows", "500")]);
    log(&database, "(now() + 60)", &[("rows", "40")]);
    wait_for_counts(
        &exporter,
        &[("table", "t")],
        [Some(43.0), Some(0.0), Some(0.0), None],
    );
}

#[test]
fn a_restart_of_the_server_loses_and_doubles_nothing_that_was_logged() {
    let mut own = OwnParts::start(&["clickhouse"]);
    let server = Server::of(own.part("clickhouse"));
    begin_log(&server);
    let database = server.database();
    create(&database, "t", REPLACING);
    let exporter = watch(&database);
    exporter.good();
    write(&database, "t", 100);
    wait_for_counts(
        &exporter,
        &[("table", "t")],
        [100.0, 0.0, 0.0, 0.0].map(Some),
    );
    // Written and logged while the exporter can't see it, for all that it knows.
    write(&database, "t", 100);
    database.run("SYSTEM FLUSH LOGS");
    own.kill("clickhouse");
    own.up(&["clickhouse"]);
    database.run("SYSTEM STOP MERGES DB.t");
    write(&database, "t", 7);
    wait_for_counts(
        &exporter,
        &[("table", "t")],
        [207.0, 0.0, 0.0, 0.0].map(Some),
    );
    merge(&database, "t");
    wait_for("it is healed", || {
        let healed = counts(&exporter.scrape(), &[("table", "t")])[3];
        (healed == Some(107.0)).then_some(())
    });
}

#[test]
fn a_restarted_exporter_begins_at_zero_and_a_reload_goes_on() {
    for server in LOGGING {
        let database = database(server);
        create(&database, "t", REPLACING);
        let t = [("table", "t")];
        let exporter = watch(&database);
        exporter.good();
        write(&database, "t", 100);
        wait_for_counts(&exporter, &t, [100.0, 0.0, 0.0, 0.0].map(Some));
        let more = yaml(&database).replace("timeout: 50s", "timeout: 40s");
        assert_eq!(exporter.reload(&more).0, 200);
        let written = exporter.scrape().get("dup_table_written_rows_total", &t);
        assert_eq!(written, Some(100.0), "{server}: there is no gap");
        write(&database, "t", 7);
        wait_for_counts(&exporter, &t, [107.0, 0.0, 0.0, 0.0].map(Some));
        drop(exporter);

        let exporter = watch(&database);
        assert_eq!(counts(&exporter.good(), &t), [Some(0.0); 4], "{server}");
        merge(&database, "t");
        wait_for_counts(&exporter, &t, [0.0, 0.0, 0.0, 7.0].map(Some));
    }
}

// ---- Clusters ----

#[test]
fn with_a_cluster_the_logs_of_all_its_servers_count_and_a_server_that_is_named_twice_once() {
    let first = database("clickhouse-18");
    let others = ["clickhouse-18b", "clickhouse-18c"].map(|name| {
        begin_log(&Server::named(name));
        Server::named(name).database_named(&first.name)
    });
    let all = [&first, &others[0], &others[1]];
    for database in all {
        // All three run on one machine, so that parts of one name would look like one part.
        create(
            database,
            "t",
            "ReplacingMergeTree PARTITION BY v ORDER BY id",
        );
    }
    let exporter = Exporter::start(&format!(
        "clickhouse:\n{}    cluster: trio\n{}    cluster: circular\n{}",
        source(&first, "trio", ""),
        source(&first, "circular", ""),
        source(&first, "one", ""),
    ));
    exporter.good();
    for (i, database) in all.into_iter().enumerate() {
        for _ in 0..2 {
            database.run(&format!(
                "INSERT INTO DB.t SELECT number, {i} FROM numbers({})",
                100 * (i + 1)
            ));
        }
        merge(database, "t");
    }
    for (source, rows) in [("trio", 600.0), ("circular", 300.0), ("one", 100.0)] {
        let labels = [("source", source), ("table", "t")];
        wait_for_counts(&exporter, &labels, [2.0 * rows, 0.0, 0.0, rows].map(Some));
    }
}

// ---- What the log does not know ----

#[test]
fn r07_a_server_without_part_log_says_what_to_switch_on_and_shows_nothing() {
    for server in ["clickhouse-nolog", "clickhouse-23"] {
        let database = Server::named(server).database();
        create(&database, "t", REPLACING);
        write(&database, "t", 100);
        let exporter = watch(&database);
        exporter.assert_fails("part_log", "no_part_log", "system.part_log is unknown");
        exporter.assert_fails(
            "part_log",
            "no_part_log",
            "<part_log> section in config.xml",
        );
        let page = exporter.scrape();
        assert_eq!(counts(&page, &[]), [None; 4], "{server}");
        assert_eq!(page.get("dup_source_up", &[]), Some(1.0), "{server}");
    }
}

#[test]
fn a_log_without_a_row_says_so_and_its_first_row_is_not_lost() {
    let own = OwnParts::start(&["clickhouse-nolog"]);
    let database = Server::of(own.part("clickhouse-nolog")).database();
    create(&database, "t", REPLACING);
    let exporter = watch(&database);
    exporter.assert_fails("part_log", "no_part_log", "system.part_log is unknown");
    database.run(
        "CREATE TABLE system.part_log (event_type Enum8('NewPart' = 1, 'MergeParts' = 2), \
         merge_reason Enum8('NotAMerge' = 1, 'RegularMerge' = 2), event_date Date, event_time DateTime, \
         event_time_microseconds DateTime64(6), database String, table String, table_uuid UUID, \
         part_name String, rows UInt64, read_rows UInt64, error UInt16) \
         ENGINE = MergeTree ORDER BY (event_date, event_time)",
    );
    wait_for("it is seen", || {
        let row = exporter.row("part_log");
        row.contains("no_part_log: system.part_log shows no row at all")
            .then_some(())
    });
    log(&database, "now()", &[("rows", "100")]);
    let t = [("table", "t")];
    wait_for_counts(&exporter, &t, [100.0, 0.0, 0.0, 0.0].map(Some));
}
