//! Which copies a merge can remove and which it never will, how old copies are, and what a sample of
//! the keys tells: on every version of ClickHouse that is supported.

use crate::program::Program;
use crate::support::{Database, Exporter, Page, SERVERS, Server, get, wait_for};

fn watch(database: &Database, tables: &[(&str, &str)]) -> Exporter {
    Exporter::start(&format!("clickhouse:\n{}", database.tables("ch", tables)))
}

/// Rows, keys and the rows that no merge can remove.
fn figures(page: &Page, table: &str, window: &str) -> [Option<f64>; 3] {
    ["dup_rows", "dup_keys", "dup_unhealable_rows"]
        .map(|name| page.get(name, &[("table", table), ("window", window)]))
}

/// Settings of a table that is merged only when somebody asks for it.
const UNMERGED: &str = "SETTINGS max_bytes_to_merge_at_max_space_in_pool = 1, \
                        max_bytes_to_merge_at_min_space_in_pool = 1";

// ---- Copies that stay ----

#[test]
fn r05_copies_in_two_partitions_are_told_before_the_merge_and_after() {
    for server in SERVERS {
        let database = Server::named(server).database();
        database.run(&format!(
            "CREATE TABLE DB.t (name String, day Date, ts DateTime DEFAULT now()) \
             ENGINE = ReplacingMergeTree PARTITION BY toYYYYMM(day) ORDER BY name {UNMERGED}"
        ));
        for day in ["2024-07-10", "2024-08-10", "2024-07-11", "2024-08-11"] {
            database.run(&format!(
                "INSERT INTO DB.t (name, day) VALUES ('a', '{day}'), ('once', '{day}')"
            ));
        }
        database.run("INSERT INTO DB.t (name, day) VALUES ('b', '2024-07-01')");
        let keys = "key: [name], time: ts, windows: [1h], interval: 1s";
        let exporter = watch(&database, &[("t", keys)]);
        // Two names four times, in two months each; one once.
        let before = figures(&exporter.good(), "t", "1h");
        assert_eq!(before, [9.0, 3.0, 2.0].map(Some), "{server}");
        database.run("OPTIMIZE TABLE DB.t FINAL");
        for partition in ["202407", "202408"] {
            database.run(&format!("OPTIMIZE TABLE DB.t PARTITION {partition} FINAL"));
        }
        let after = figures(&exporter.fresh(), "t", "1h");
        assert_eq!(
            after,
            [5.0, 3.0, 2.0].map(Some),
            "{server}: what was told is what stays"
        );
    }
}

#[test]
fn what_a_merge_can_remove_is_told_by_engine_sorting_and_window() {
    for server in SERVERS {
        let database = Server::named(server).database();
        for (table, engine, order) in [
            ("plain", "MergeTree", "id"),
            ("replacing", "ReplacingMergeTree", "id"),
            // Sorted by more than the key: rows that differ in it never meet.
            ("finer", "ReplacingMergeTree", "(id, v)"),
            ("coarser", "ReplacingMergeTree", "intDiv(id, 10)"),
            ("summing", "SummingMergeTree", "id"),
            ("collapsing", "CollapsingMergeTree(sign)", "id"),
        ] {
            database.run(&format!(
                "CREATE TABLE DB.{table} (id UInt64, v String, sign Int8, n UInt64 DEFAULT 1, \
                 ts DateTime) ENGINE = {engine} PARTITION BY toYYYYMM(ts) ORDER BY {order} {UNMERGED}"
            ));
            for row in ["1, 'a', 1", "1, 'a', 1", "1, 'b', 1", "2, 'a', 1"] {
                database.run(&format!(
                    "INSERT INTO DB.{table} (id, v, sign, ts) SELECT {row}, now() - 60"
                ));
            }
        }
        database.run("CREATE VIEW DB.view AS SELECT * FROM DB.replacing");
        database.run("CREATE TABLE DB.log (id UInt64, ts DateTime) ENGINE = Log");
        database.run("INSERT INTO DB.log SELECT 1, now() FROM numbers(3)");
        let keys = "key: [id], time: ts, windows: [1h], force: true";
        let tables = [
            ("plain", [4.0, 2.0, 2.0].map(Some)),
            ("replacing", [4.0, 2.0, 0.0].map(Some)),
            ("finer", [4.0, 2.0, 1.0].map(Some)),
            // Rows of other keys go with them, too; of one key, one row stays at most.
            ("coarser", [4.0, 2.0, 0.0].map(Some)),
            ("summing", [4.0, 2.0, 0.0].map(Some)),
            ("collapsing", [Some(4.0), Some(2.0), None]),
            ("view", [Some(4.0), Some(2.0), None]),
            ("log", [3.0, 1.0, 2.0].map(Some)),
        ];
        let watched = tables.map(|(table, _)| (table, keys));
        let page = watch(&database, &watched).good();
        for (table, expected) in tables {
            assert_eq!(figures(&page, table, "1h"), expected, "{server}: {table}");
        }
    }
}

#[test]
fn each_window_tells_of_the_copies_that_it_holds() {
    for server in SERVERS {
        let database = Server::named(server).database();
        database.run(&format!(
            "CREATE TABLE DB.t (id UInt64, part UInt8, ts DateTime) ENGINE = ReplacingMergeTree \
             PARTITION BY part ORDER BY id {UNMERGED}"
        ));
        // Key 1 in two partitions, one copy of them older than ten minutes; key 2 twice in one.
        database.run("INSERT INTO DB.t SELECT 1, 1, now() - 60");
        database.run("INSERT INTO DB.t SELECT 1, 2, now() - 1800");
        for _ in 0..2 {
            database.run("INSERT INTO DB.t SELECT 2, 1, now() - 60");
        }
        let keys = "key: [id], time: ts, windows: [10m, 1h]";
        let page = watch(&database, &[("t", keys)]).good();
        assert_eq!(
            figures(&page, "t", "10m"),
            [3.0, 2.0, 0.0].map(Some),
            "{server}"
        );
        assert_eq!(
            figures(&page, "t", "1h"),
            [4.0, 2.0, 1.0].map(Some),
            "{server}"
        );
    }
}

#[test]
fn updates_by_version_are_warned_of_once_unless_the_version_is_in_the_key() {
    let database = Server::named("clickhouse").database();
    for table in ["bare", "keyed"] {
        database.run(&format!(
            "CREATE TABLE DB.{table} (id UInt64, ver UInt64, ts DateTime DEFAULT now()) \
             ENGINE = ReplacingMergeTree(ver) ORDER BY id"
        ));
    }
    let yaml = database.tables(
        "ch",
        &[
            ("bare", "key: [id], time: ts, interval: 1s"),
            ("keyed", "key: [id, ver], time: ts, interval: 1s"),
        ],
    );
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    std::fs::write(file.path(), format!("clickhouse:\n{yaml}")).expect("a writable file");
    let mut program = Program::start(file.path(), &[]);
    let page = format!("http://{}/metrics", program.address());
    wait_for("three polls of both", || {
        let page = Page::parse(&get(&page).1);
        let polls = page.all("dup_check_polls_total");
        polls.values().all(|polls| *polls >= 3.0).then_some(())
    });
    assert!(program.stop("-TERM").0.success());
    let warned: Vec<_> = [program.seen.clone(), program.rest()]
        .concat()
        .into_iter()
        .filter(|line| line.contains("counts as a duplicate here"))
        .collect();
    assert_eq!(warned.len(), 1, "{warned:?}");
    assert!(
        warned[0].contains(&format!("{}.bare", database.name)),
        "{warned:?}"
    );
}

// ---- Ages ----

#[test]
fn r04_the_healing_curve_tells_from_which_age_on_a_table_has_healed() {
    for server in SERVERS {
        let database = Server::named(server).database();
        for table in ["t", "never"] {
            let engine = if table == "t" {
                "ReplacingMergeTree"
            } else {
                "MergeTree"
            };
            database.run(&format!(
                "CREATE TABLE DB.{table} (id UInt64, ts DateTime) ENGINE = {engine} ORDER BY id \
                 {UNMERGED}"
            ));
            // 2,000 keys twice in the last minutes, 3,000 once before, one of them twice.
            for _ in 0..2 {
                database.run(&format!(
                    "INSERT INTO DB.{table} SELECT number, now() - 120 FROM numbers(2000)"
                ));
            }
            database.run(&format!(
                "INSERT INTO DB.{table} SELECT 10000 + number, now() - 1800 FROM numbers(3000)"
            ));
            database.run(&format!(
                "INSERT INTO DB.{table} SELECT 10000, now() - 1800"
            ));
            database.run(&format!(
                "INSERT INTO DB.{table} SELECT 20000 + number, now() - 7200 FROM numbers(1000)"
            ));
            // An older copy of a young key counts with its youngest; too old a row is not read.
            database.run(&format!("INSERT INTO DB.{table} SELECT 0, now() - 7200"));
            database.run(&format!("INSERT INTO DB.{table} SELECT 1, now() - 90000"));
            // Rows from the future are in no bucket.
            database.run(&format!("INSERT INTO DB.{table} SELECT 2, now() + 600"));
        }
        let keys = "key: [id], time: ts, ages: [10m, 1h, 1d]";
        let page = watch(&database, &[("t", keys), ("never", keys)]).good();
        for table in ["t", "never"] {
            for (age, rows, total) in [
                ("0", 4001.0, 2000.0),
                ("600", 3001.0, 3000.0),
                ("3600", 1000.0, 1000.0),
            ] {
                let labels = [("table", table), ("age", age)];
                assert_eq!(
                    page.get("dup_age_rows", &labels),
                    Some(rows),
                    "{server} {age}"
                );
                assert_eq!(
                    page.get("dup_age_keys", &labels),
                    Some(total),
                    "{server} {age}"
                );
                assert_eq!(
                    page.get("dup_age_factor", &labels),
                    Some(rows / total),
                    "{server}"
                );
            }
        }
        // 1 of 3,000 is below one in a thousand. What never heals is never called healed.
        let healed = |table| page.get("dup_healed_after_seconds", &[("table", table)]);
        assert_eq!(healed("t"), Some(600.0), "{server}");
        assert_eq!(healed("never"), None, "{server}");
        assert_eq!(page.all("dup_healed_after_seconds").len(), 1);
    }
}

#[test]
fn ages_that_can_not_be_read_take_nothing_else_along() {
    let database = Server::named("clickhouse-18").database();
    database.run("CREATE TABLE DB.t (id UInt64, ts DateTime) ENGINE = MergeTree ORDER BY ts");
    database.run("INSERT INTO DB.t SELECT number, now() - 60 FROM numbers(100)");
    database.run("INSERT INTO DB.t SELECT number, now() - 86400 FROM numbers(100000)");
    let yaml = database.tables(
        "ch",
        &[(
            "t",
            "key: [id], time: ts, windows: [10m], interval: 1s, ages: [10m, 7d], \
                 ages_interval: 1s",
        )],
    );
    let limited = yaml.replace(
        "    tables:",
        "    limits: {max_rows_to_read: 50000}\n    tables:",
    );
    let exporter = Exporter::start(&format!("clickhouse:\n{limited}"));
    exporter.assert_fails(&format!("ages:{}.t", database.name), "limit", "");
    let page = exporter.fresh();
    let table = format!("table:{}.t", database.name);
    assert_eq!(page.get("dup_check_up", &[("check", &table)]), Some(1.0));
    assert_eq!(page.get("dup_factor", &[]), Some(1.0));
    assert!(page.all("dup_age_rows").is_empty());
}

// ---- Samples ----

#[test]
fn a_sample_reads_keys_and_all_their_copies() {
    for server in SERVERS {
        let database = Server::named(server).database();
        database.run(
            "CREATE TABLE DB.t (a Nullable(UInt64), b String, ts DateTime DEFAULT now()) \
             ENGINE = MergeTree ORDER BY b",
        );
        // 40,000 keys twice, half of them with a NULL.
        for _ in 0..2 {
            database.run(
                "INSERT INTO DB.t (a, b) SELECT if(number % 2 = 0, NULL, number), \
                 toString(intDiv(number, 2)) FROM numbers(40000)",
            );
        }
        let of = |source: &str, sample: &str| {
            let keys = format!("key: [a, b], time: ts, windows: [1h], sample: {sample}");
            database.tables(source, &[("t", &keys)])
        };
        let exporter = Exporter::start(&format!(
            "clickhouse:\n{}{}{}",
            of("exact", "1"),
            of("some", "8"),
            of("auto", "auto")
        ));
        let page = exporter.good();
        let get = |name, source| page.get(name, &[("source", source)]);
        for (source, ratio) in [("exact", 1.0), ("some", 0.125), ("auto", 1.0)] {
            assert_eq!(
                get("dup_sample_keys_ratio", source),
                Some(ratio),
                "{server}"
            );
            assert_eq!(get("dup_factor", source), Some(2.0), "{server}: {source}");
            for (name, all) in [
                ("dup_rows", 80_000.0),
                ("dup_keys", 40_000.0),
                ("dup_duplicated_keys", 40_000.0),
                ("dup_null_key_rows", 40_000.0),
                ("dup_unhealable_rows", 40_000.0),
            ] {
                let value = get(name, source).expect("a figure");
                // 5,000 keys of 40,000, give or take: five standard deviations are 7 %.
                let margin = if ratio < 1.0 { 0.07 } else { 0.0 };
                let off = (value / all - 1.0).abs();
                assert!(off <= margin, "{server}: {name} {source} {value}");
            }
        }
        let rows = get("dup_rows", "some").expect("a figure");
        assert_ne!(rows, 80_000.0, "{server}: it was not all read");
    }
}
