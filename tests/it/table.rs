//! The check of a table, on every version of ClickHouse that is supported.

use crate::support::{Database, Exporter, OwnParts, Page, SERVERS, Server, part, unique, wait_for};
use std::net::TcpListener;

/// An exporter of these tables of the database: their names, and the keys of their checks.
fn watch(database: &Database, tables: &[(&str, &str)]) -> Exporter {
    Exporter::start(&format!("clickhouse:\n{}", database.tables("ch", tables)))
}

/// The page of an exporter that polled table `t` of the database with these keys of its check.
fn poll(database: &Database, keys: &str) -> Page {
    watch(database, &[("t", keys)]).good()
}

/// Settings of a table that is merged only when somebody asks for it. `SYSTEM STOP MERGES` is
/// forgotten by the 23.10 engine.
const UNMERGED: &str = "SETTINGS max_bytes_to_merge_at_max_space_in_pool = 1, \
                        max_bytes_to_merge_at_min_space_in_pool = 1";

/// Rows, keys and factor of the one series of each with these labels.
fn figures(page: &Page, labels: &[(&str, &str)]) -> [Option<f64>; 3] {
    ["dup_rows", "dup_keys", "dup_factor"].map(|name| page.get(name, labels))
}

fn some(figures: [f64; 3]) -> [Option<f64>; 3] {
    figures.map(Some)
}

/// The check of a table of the database fails for this reason and in these words, and has no figure.
fn assert_refused(
    exporter: &Exporter,
    database: &Database,
    table: &str,
    reason: &str,
    words: &str,
) {
    let page = exporter.polled();
    let check = format!("table:{}.{table}", database.name);
    exporter.assert_fails(&check, reason, words);
    for name in ["dup_rows", "dup_keys", "dup_factor", "dup_future_rows"] {
        let figure = page.get(name, &[("table", table)]);
        assert_eq!(figure, None, "{table}: unknown is absent");
    }
}

// ---- What is counted ----

#[test]
fn r01_one_message_stored_139_times_is_a_factor_of_139() {
    for server in SERVERS {
        let database = Server::named(server).database();
        database.run(
            "CREATE TABLE DB.t (dev UInt32, ts DateTime) ENGINE = MergeTree \
             PARTITION BY toYYYYMM(ts) ORDER BY (dev, ts)",
        );
        database.run("INSERT INTO DB.t SELECT 7, now() FROM numbers(139)");
        let page = poll(&database, "key: [dev, ts], time: ts, windows: [10m]");
        let seen = figures(&page, &[("table", "t"), ("window", "10m")]);
        assert_eq!(seen, some([139.0, 1.0, 139.0]), "{server}");
    }
}

#[test]
fn r01_65_of_1000_keys_twice_is_1_065_and_neither_1_nor_1_1() {
    for server in SERVERS {
        let database = Server::named(server).database();
        database.run(
            "CREATE TABLE DB.t (dev UInt64, ts DateTime DEFAULT now()) ENGINE = MergeTree \
             ORDER BY dev",
        );
        database.run("INSERT INTO DB.t (dev) SELECT number FROM numbers(1000)");
        database.run("INSERT INTO DB.t (dev) SELECT number FROM numbers(65)");
        let page = poll(&database, "key: [dev], time: ts, windows: [10m]");
        let labels = [("table", "t"), ("window", "10m")];
        assert_eq!(
            figures(&page, &labels),
            some([1065.0, 1000.0, 1.065]),
            "{server}"
        );
        assert_eq!(
            page.get("dup_duplicated_keys", &labels),
            Some(65.0),
            "{server}"
        );
    }
}

#[test]
fn r02_the_key_is_what_the_configuration_says_and_nothing_more() {
    for server in SERVERS {
        let database = Server::named(server).database();
        database.run(
            "CREATE TABLE DB.t (ts DateTime, uid UInt64, body String, made UUID) \
             ENGINE = MergeTree ORDER BY made",
        );
        // Ten messages, read four times by a view that adds an identifier to each row.
        database.run(
            "INSERT INTO DB.t SELECT toDateTime(intDiv(toUInt32(now()), 60) * 60 - 60), \
             number % 10, 'hello', generateUUIDv4() FROM numbers(40)",
        );
        let tables = |source, keys| database.tables(source, &[("t", keys)]);
        let exporter = Exporter::start(&format!(
            "clickhouse:\n{}{}",
            tables("made", "key: [made], time: ts, windows: [10m]"),
            tables("logical", "key: [ts, uid], time: ts, windows: [10m]"),
        ));
        let page = exporter.good();
        assert_eq!(
            figures(&page, &[("source", "made")]),
            some([40.0, 40.0, 1.0]),
            "{server}"
        );
        assert_eq!(
            figures(&page, &[("source", "logical")]),
            some([40.0, 10.0, 4.0]),
            "{server}"
        );
    }
}

#[test]
fn r03_a_distributed_table_shows_what_its_servers_hold_together_and_each_alone() {
    let first = Server::named("clickhouse-18").database();
    let second = Server::named("clickhouse-18b").database_named(&first.name);
    for database in [&first, &second] {
        database.run(
            "CREATE TABLE DB.local (id UInt64, ts DateTime DEFAULT now()) ENGINE = MergeTree \
             ORDER BY id",
        );
    }
    // The first server is a shard of `circular` twice, so its three rows are seen twice; the
    // second really holds its three in two parts.
    first.run("CREATE TABLE DB.spread AS DB.local ENGINE = Distributed(circular, DB, local)");
    first.run("INSERT INTO DB.local (id) SELECT number FROM numbers(3)");
    second.run("SYSTEM STOP MERGES DB.local");
    for _ in 0..2 {
        second.run("INSERT INTO DB.local (id) SELECT 3 + number FROM numbers(3)");
    }
    let keys = "key: [id], time: ts, windows: [10m]";
    let exporter = Exporter::start(&format!(
        "clickhouse:\n{}{}",
        first.tables("host1", &[("spread", keys), ("local", keys)]),
        second.tables("host2", &[("local", keys)]),
    ));
    let page = exporter.good();
    let seen = |source, table| figures(&page, &[("source", source), ("table", table)]);
    assert_eq!(seen("host1", "spread"), some([12.0, 6.0, 2.0]));
    assert_eq!(seen("host1", "local"), some([3.0, 3.0, 1.0]));
    assert_eq!(seen("host2", "local"), some([6.0, 3.0, 2.0]));
    assert_eq!(page.all("dup_factor").len(), 3, "nothing is averaged");
}

#[test]
fn r04_a_million_and_a_half_keys_before_their_merge_are_counted_exactly() {
    for server in ["clickhouse-18", "clickhouse"] {
        let database = Server::named(server).database();
        database.run(
            "CREATE TABLE DB.t (id UInt64, ts DateTime DEFAULT now()) \
             ENGINE = ReplacingMergeTree ORDER BY id",
        );
        database.run("SYSTEM STOP MERGES DB.t");
        database.run("INSERT INTO DB.t (id) SELECT number FROM numbers(1500000)");
        database.run("INSERT INTO DB.t (id) SELECT number FROM numbers(800000)");
        let page = poll(&database, "key: [id], time: ts, windows: [1h]");
        let labels = [("table", "t"), ("window", "1h")];
        let expected = some([2_300_000.0, 1_500_000.0, 23.0 / 15.0]);
        assert_eq!(figures(&page, &labels), expected, "{server}");
        assert_eq!(
            page.get("dup_duplicated_keys", &labels),
            Some(800_000.0),
            "{server}"
        );
    }
}

#[test]
fn r05_copies_in_different_partitions_stay_after_every_merge() {
    for server in SERVERS {
        let database = Server::named(server).database();
        database.run(&format!(
            "CREATE TABLE DB.t (name String, day Date, ts DateTime DEFAULT now()) \
             ENGINE = ReplacingMergeTree PARTITION BY toYYYYMM(day) ORDER BY name {UNMERGED}"
        ));
        for day in ["2024-07-10", "2024-08-10", "2024-07-11", "2024-08-11"] {
            database.run(&format!(
                "INSERT INTO DB.t (name, day) VALUES ('a', '{day}')"
            ));
        }
        let exporter = watch(
            &database,
            &[("t", "key: [name], time: ts, windows: [1h], interval: 1s")],
        );
        let before = figures(&exporter.good(), &[("table", "t")]);
        assert_eq!(before, some([4.0, 1.0, 4.0]), "{server}");
        for _ in 0..2 {
            database.run("OPTIMIZE TABLE DB.t FINAL");
            let after = figures(&exporter.fresh(), &[("table", "t")]);
            assert_eq!(after, some([2.0, 1.0, 2.0]), "{server}: and it stays");
        }
    }
}

#[test]
fn r18_an_empty_window_has_no_rows_no_keys_and_no_factor_and_is_no_failure() {
    for server in SERVERS {
        let database = Server::named(server).database();
        for table in ["empty", "old"] {
            database.run(&format!(
                "CREATE TABLE DB.{table} (id UInt64, ts DateTime) ENGINE = MergeTree ORDER BY id"
            ));
        }
        database.run("INSERT INTO DB.old SELECT 1, now() - 86400 FROM numbers(3)");
        let keys = "key: [id], time: ts, windows: [10m]";
        let page = watch(&database, &[("empty", keys), ("old", keys)]).polled();
        for table in ["empty", "old"] {
            let seen = figures(&page, &[("table", table)]);
            assert_eq!(seen, [Some(0.0), Some(0.0), None], "{server}: {table}");
            assert_eq!(
                page.get("dup_future_rows", &[("table", table)]),
                Some(0.0),
                "{server}"
            );
            let check = format!("table:{}.{table}", database.name);
            assert_eq!(
                page.get("dup_check_up", &[("check", &check)]),
                Some(1.0),
                "{server}"
            );
        }
    }
}

#[test]
fn a_null_in_a_key_is_a_value_like_any_other_and_is_counted_apart() {
    for server in SERVERS {
        let database = Server::named(server).database();
        let mut creator = database.server.clone();
        if server == "clickhouse-18" {
            creator.url += "/?allow_experimental_low_cardinality_type=1";
        }
        creator.run(&format!(
            "CREATE TABLE {}.t (a Nullable(UInt64), b LowCardinality(Nullable(String)), \
             c Nullable(String), ts DateTime DEFAULT now()) ENGINE = MergeTree ORDER BY tuple()",
            database.name
        ));
        database.run(
            "INSERT INTO DB.t (a, b, c) VALUES (NULL, 'x', NULL), (NULL, 'x', NULL), \
             (1, 'x', NULL), (1, 'x', NULL), (1, NULL, NULL), (2, 'y', NULL), (NULL, NULL, NULL)",
        );
        let of = |source, key| {
            database.tables(
                source,
                &[("t", &format!("key: {key}, time: ts, windows: [10m]"))],
            )
        };
        let exporter = Exporter::start(&format!(
            "clickhouse:\n{}{}{}",
            of("a", "[a]"),
            of("ab", "[a, b]"),
            of("c", "[c]"),
        ));
        let page = exporter.good();
        for (source, expected, duplicated, null) in [
            // NULL three times, 1 three times, 2 once.
            ("a", [7.0, 3.0, 7.0 / 3.0], 2.0, 3.0),
            // (NULL, x) twice, (1, x) twice, (1, NULL), (2, y) and (NULL, NULL) once.
            ("ab", [7.0, 5.0, 7.0 / 5.0], 2.0, 4.0),
            ("c", [7.0, 1.0, 7.0], 1.0, 7.0),
        ] {
            let labels = [("source", source), ("window", "10m")];
            assert_eq!(
                figures(&page, &labels),
                some(expected),
                "{server}: {source}"
            );
            assert_eq!(
                page.get("dup_duplicated_keys", &labels),
                Some(duplicated),
                "{server}"
            );
            assert_eq!(
                page.get("dup_null_key_rows", &labels),
                Some(null),
                "{server}: {source}"
            );
        }
    }
}

// ---- Windows ----

#[test]
fn each_window_counts_its_own_rows_and_the_keys_of_those() {
    for server in SERVERS {
        let database = Server::named(server).database();
        database.run("CREATE TABLE DB.t (id UInt64, ts DateTime) ENGINE = MergeTree ORDER BY id");
        database.run("INSERT INTO DB.t SELECT 1, now() - 300 FROM numbers(3)");
        database.run("INSERT INTO DB.t SELECT number + 1, now() - 1800 FROM numbers(2)");
        let page = poll(&database, "key: [id], time: ts, windows: [10m, 1h]");
        let seen = |window| figures(&page, &[("window", window)]);
        assert_eq!(seen("10m"), some([3.0, 1.0, 3.0]), "{server}");
        assert_eq!(seen("1h"), some([5.0, 2.0, 2.5]), "{server}");
    }
}

#[test]
fn a_window_is_half_open_and_rows_from_the_future_are_in_none() {
    for server in SERVERS {
        let database = Server::named(server).database();
        let types = match server {
            "clickhouse-18" => &["DateTime", "DateTime('Asia/Tokyo')"][..],
            _ => &[
                "DateTime",
                "DateTime('Asia/Tokyo')",
                "DateTime64(3)",
                "DateTime64(6, 'Asia/Tokyo')",
            ],
        };
        let names: Vec<_> = (0..types.len()).map(|i| format!("t{i}")).collect();
        // Twice a row for every second from 20 minutes ago to 20 minutes ahead.
        let start = database
            .run("SELECT toUInt32(now())")
            .parse::<u32>()
            .expect("a time");
        for (name, kind) in names.iter().zip(types) {
            database.run(&format!(
                "CREATE TABLE DB.{name} (id UInt64, ts {kind}) ENGINE = MergeTree ORDER BY id"
            ));
            database.run(&format!(
                "INSERT INTO DB.{name} SELECT number % 2400, toDateTime({start} - 1200 + number % 2400) \
                 FROM numbers(4800)"
            ));
        }
        let keys = "key: [id], time: ts, windows: [10m]";
        let tables: Vec<_> = names.iter().map(|name| (&**name, keys)).collect();
        let page = watch(&database, &tables).good();
        let end = database
            .run("SELECT toUInt32(now())")
            .parse::<u32>()
            .expect("a time");
        for (name, kind) in names.iter().zip(types) {
            // Whenever it is asked, as many seconds lie in ten minutes; one more if it were closed.
            let seen = figures(&page, &[("table", name), ("window", "10m")]);
            assert_eq!(seen, some([1200.0, 600.0, 2.0]), "{server}: {kind}");
            let future = page
                .get("dup_future_rows", &[("table", name)])
                .expect("rows of the future");
            let gone = 2.0 * f64::from(end - start);
            assert!(
                (2398.0 - gone..=2398.0).contains(&future),
                "{server}: {kind}: {future}, {gone}"
            );
        }
    }
}

#[test]
fn a_date_column_dates_windows_of_days_and_refuses_shorter_ones_by_its_name() {
    for server in SERVERS {
        let database = Server::named(server).database();
        database.run("CREATE TABLE DB.t (id UInt64, born Date) ENGINE = MergeTree ORDER BY id");
        database.run("CREATE TABLE DB.short AS DB.t");
        // Two rows and one key for each of eleven days; two midnights lie in any two days.
        database.run(
            "INSERT INTO DB.t SELECT number % 11, toDate(now()) + (number % 11) - 5 FROM numbers(22)",
        );
        let exporter = watch(
            &database,
            &[
                ("t", "key: [id], time: born, windows: [2d]"),
                ("short", "key: [id], time: born, windows: [2d, 23h]"),
            ],
        );
        assert_refused(
            &exporter,
            &database,
            "short",
            "unsupported",
            "column born is a Date",
        );
        let page = exporter.polled();
        assert_eq!(
            figures(&page, &[("table", "t"), ("window", "2d")]),
            some([4.0, 2.0, 2.0]),
            "{server}"
        );
        let future = page.get("dup_future_rows", &[("table", "t")]);
        assert!(
            future == Some(10.0) || future == Some(8.0),
            "{server}: {future:?}"
        );
    }
}

#[test]
fn dates_that_no_datetime_can_hold_are_long_past_or_far_ahead() {
    for server in ["clickhouse-23", "clickhouse"] {
        let database = Server::named(server).database();
        database.run("CREATE TABLE DB.t (id UInt64, born Date32) ENGINE = MergeTree ORDER BY id");
        // A DateTime would wrap around after 49710 days.
        database.run(
            "INSERT INTO DB.t SELECT number % 3, toDate32(now()) - number % 2 FROM numbers(4)",
        );
        database.run(
            "INSERT INTO DB.t SELECT 7, arrayJoin([toDate32('1925-01-01'), \
             toDate32('2200-01-01'), addDays(toDate32(now()), 49710)])",
        );
        let page = poll(&database, "key: [id], time: born, windows: [7d]");
        assert_eq!(figures(&page, &[]), some([4.0, 3.0, 4.0 / 3.0]), "{server}");
        assert_eq!(page.get("dup_future_rows", &[]), Some(2.0), "{server}");
    }
}

#[test]
fn a_profile_that_reads_with_final_hides_no_duplicates() {
    let own = OwnParts::start(&["clickhouse"]);
    let database = Server::of(own.part("clickhouse")).database();
    database.run(
        "CREATE TABLE DB.t (id UInt64, ts DateTime DEFAULT now()) ENGINE = ReplacingMergeTree \
         ORDER BY id",
    );
    database.run("SYSTEM STOP MERGES DB.t");
    for _ in 0..2 {
        database.run("INSERT INTO DB.t (id) SELECT number FROM numbers(10)");
    }
    database.run("SET final = 1");
    assert_eq!(
        database.run("SELECT count() FROM DB.t"),
        "10",
        "everybody else reads with FINAL"
    );
    let page = poll(&database, "key: [id], time: ts, windows: [10m]");
    assert_eq!(figures(&page, &[("table", "t")]), some([20.0, 10.0, 2.0]));
}

// ---- Which tables can be judged, and by which key ----

#[test]
fn the_sorting_key_is_used_where_it_is_asked_for_expressions_and_all() {
    for server in SERVERS {
        let database = Server::named(server).database();
        database.run(
            "CREATE TABLE DB.t (id UInt64, name String, ts DateTime DEFAULT now()) \
             ENGINE = MergeTree ORDER BY (intDiv(id, 10), concat(name, ',`)'))",
        );
        database.run(
            "CREATE TABLE DB.heap (id UInt64, ts DateTime) ENGINE = MergeTree ORDER BY tuple()",
        );
        database.run("CREATE TABLE DB.log (id UInt64, ts DateTime) ENGINE = Log");
        database.run(
            "INSERT INTO DB.t (id, name) SELECT number, if(number < 5, 'a', 'b') FROM numbers(100)",
        );
        let keys = "key: sorting_key, time: ts, windows: [10m]";
        let exporter = watch(&database, &[("t", keys), ("heap", keys), ("log", keys)]);
        let page = exporter.polled();
        assert_eq!(
            figures(&page, &[("table", "t")]),
            some([100.0, 11.0, 100.0 / 11.0]),
            "{server}"
        );
        assert_refused(
            &exporter,
            &database,
            "heap",
            "unsupported",
            "it has no sorting key",
        );
        assert_refused(
            &exporter,
            &database,
            "log",
            "unsupported",
            "it has no sorting key",
        );
    }
}

#[test]
fn a_column_that_dates_nothing_is_refused_by_its_name_and_type() {
    for server in SERVERS {
        let database = Server::named(server).database();
        database.run(
            "CREATE TABLE DB.t (id UInt64, born String, at UInt32) ENGINE = MergeTree ORDER BY id",
        );
        database.run("CREATE TABLE DB.u AS DB.t");
        let exporter = watch(
            &database,
            &[
                ("t", "key: [id], time: born, windows: [10m]"),
                ("u", "key: [id], time: at, windows: [10m]"),
            ],
        );
        assert_refused(
            &exporter,
            &database,
            "t",
            "unsupported",
            "column born is a String",
        );
        assert_refused(
            &exporter,
            &database,
            "u",
            "unsupported",
            "column at is a UInt32",
        );
    }
}

#[test]
fn a_summing_table_is_counted_only_by_force() {
    for server in SERVERS {
        let database = Server::named(server).database();
        database.run(&format!(
            "CREATE TABLE DB.t (id UInt64, n UInt64, ts DateTime DEFAULT now()) \
             ENGINE = SummingMergeTree(n) ORDER BY id {UNMERGED}"
        ));
        for _ in 0..2 {
            database.run("INSERT INTO DB.t (id, n) SELECT number, 1 FROM numbers(3)");
        }
        let keys = "key: [id], time: ts, windows: [10m]";
        let careful = watch(&database, &[("t", keys)]);
        assert_refused(
            &careful,
            &database,
            "t",
            "unsupported",
            "engine SummingMergeTree",
        );
        let page = poll(&database, &format!("{keys}, force: true"));
        assert_eq!(
            figures(&page, &[("table", "t")]),
            some([6.0, 3.0, 2.0]),
            "{server}"
        );
    }
}

#[test]
fn what_reading_may_consume_is_not_read_even_by_force() {
    for server in SERVERS {
        let database = Server::named(server).database();
        // Whoever reads the table asks this listener.
        let queue = TcpListener::bind("127.0.0.1:0").expect("a port");
        queue
            .set_nonblocking(true)
            .expect("a listener that does not wait");
        let address = queue.local_addr().expect("an address");
        database.run(&format!(
            "CREATE TABLE DB.far (id UInt64, ts DateTime) ENGINE = URL('http://{address}/', 'CSV')"
        ));
        database.run("CREATE TABLE DB.hole (id UInt64, ts DateTime) ENGINE = Null");
        let keys = "key: [id], time: ts, windows: [10m], force: true";
        let exporter = watch(&database, &[("far", keys), ("hole", keys)]);
        assert_refused(&exporter, &database, "far", "unsupported", "engine URL");
        assert_refused(&exporter, &database, "hole", "unsupported", "engine Null");
        assert!(queue.accept().is_err(), "{server}: nobody read it");
    }
}

#[test]
fn unknown_tables_and_columns_are_told_apart_and_named() {
    for server in SERVERS {
        let database = Server::named(server).database();
        database.run("CREATE TABLE DB.t (id UInt64, ts DateTime) ENGINE = MergeTree ORDER BY id");
        database.run("CREATE TABLE DB.u AS DB.t");
        let exporter = watch(
            &database,
            &[
                ("t", "key: [id, nope], time: ts, windows: [10m]"),
                ("u", "key: [id], time: when, windows: [10m]"),
                ("gone", "key: [id], time: ts, windows: [10m]"),
            ],
        );
        let name = &database.name;
        assert_refused(
            &exporter,
            &database,
            "t",
            "unknown_column",
            &format!("column nope of {name}.t"),
        );
        assert_refused(
            &exporter,
            &database,
            "u",
            "unknown_column",
            &format!("column when of {name}.u"),
        );
        assert_refused(
            &exporter,
            &database,
            "gone",
            "unknown_table",
            &format!("table {name}.gone"),
        );
    }
}

#[test]
fn whatever_stands_in_a_name_is_a_name() {
    const ODD: &str = "a`b\\c\"d'e. f-$g;--ж🙂{";
    for server in SERVERS {
        let database = Server::named(server).database_named(&format!("{}_{ODD}", unique("t")));
        let odd = format!("`{}`", ODD.replace('\\', r"\\").replace('`', r"\`"));
        database.run(&format!(
            "CREATE TABLE DB.{odd} ({odd} UInt64, `ts {ODD_TIME}` DateTime DEFAULT now()) \
             ENGINE = MergeTree ORDER BY {odd}",
            ODD_TIME = "x.y"
        ));
        database.run(&format!(
            "INSERT INTO DB.{odd} ({odd}) SELECT number % 5 FROM numbers(10)"
        ));
        let column = serde_json::Value::from(ODD);
        let page = watch(
            &database,
            &[(
                ODD,
                &format!("key: [{column}], time: 'ts x.y', windows: [10m]"),
            )],
        )
        .good();
        let labels = [("database", &*database.name), ("table", ODD)];
        assert_eq!(figures(&page, &labels), some([10.0, 5.0, 2.0]), "{server}");
        let check = format!("table:{}.{ODD}", database.name);
        assert_eq!(
            page.get("dup_check_up", &[("check", &check)]),
            Some(1.0),
            "{server}"
        );
    }
}

// ---- Who asks ----

#[test]
fn a_wrong_password_is_told_as_such_and_takes_the_source_down() {
    for server in SERVERS {
        let database = Server::named(server).database();
        database.run("CREATE TABLE DB.t (id UInt64, ts DateTime) ENGINE = MergeTree ORDER BY id");
        let mut stranger = database.server.clone();
        stranger.password = "wrong".into();
        let seen = Database {
            server: stranger,
            name: database.name.clone(),
        };
        let exporter = watch(&seen, &[("t", "key: [id], time: ts, windows: [10m]")]);
        assert_refused(&exporter, &database, "t", "auth", "");
        assert_eq!(
            exporter.scrape().get("dup_source_up", &[("source", "ch")]),
            Some(0.0),
            "{server}"
        );
    }
}

#[test]
fn a_query_that_would_read_more_than_is_allowed_is_refused_by_the_server() {
    for server in SERVERS {
        let database = Server::named(server).database();
        database.run(
            "CREATE TABLE DB.t (id UInt64, ts DateTime DEFAULT now()) ENGINE = MergeTree ORDER BY id",
        );
        database.run("INSERT INTO DB.t (id) SELECT number FROM numbers(50000)");
        let tables = database.tables("ch", &[("t", "key: [id], time: ts, windows: [10m]")]);
        let exporter = Exporter::start(&format!(
            "clickhouse:\n{tables}    limits: {{max_rows_to_read: 49999}}\n"
        ));
        assert_refused(&exporter, &database, "t", "limit", "Code: 158");
    }
}

#[test]
fn the_exporter_reads_and_does_nothing_else() {
    let database = Server::named("clickhouse-18").database();
    database.run(
        "CREATE TABLE DB.t (id UInt64, ts DateTime DEFAULT now()) ENGINE = ReplacingMergeTree \
         ORDER BY id",
    );
    database.run("SYSTEM STOP MERGES DB.t");
    for _ in 0..2 {
        database.run("INSERT INTO DB.t (id) SELECT number FROM numbers(10)");
    }
    let name = &database.name;
    let left = || {
        database.run(&format!(
            "SELECT name, rows FROM system.parts WHERE database = '{name}' ORDER BY name"
        )) + &database.run(&format!(
            "SELECT name FROM system.tables WHERE database = '{name}'"
        ))
    };
    let before = left();
    let keys = "key: [id], time: ts, windows: [10m]";
    let exporter = watch(&database, &[("t", keys), ("gone", keys)]);
    let seen = figures(&exporter.polled(), &[("table", "t")]);
    assert_eq!(seen, some([20.0, 10.0, 2.0]));
    drop(exporter);
    assert_eq!(left(), before);

    // Whatever an exporter asked this server so far, in this test or another.
    let logged = "FROM system.query_log WHERE http_user_agent LIKE '%dup_exporter%'";
    wait_for("our queries in the log", || {
        let ours = format!("AND query LIKE '%sum(dup_rows_0)%FROM `{name}`%'");
        (database.run(&format!("SELECT count() {logged} {ours}")) != "0").then_some(())
    });
    let verbs = "SELECT DISTINCT upper(splitByChar(' ', query)[1]) AS verb";
    let verbs = database.run(&format!("{verbs} {logged} ORDER BY verb"));
    assert!(verbs == "SELECT" || verbs == "KILL\nSELECT", "{verbs}");
}

#[test]
fn r17_a_readonly_user_gets_right_figures_and_a_warning_that_no_limit_holds() {
    let server = Server::named("clickhouse-18");
    let database = server.database();
    database.run(
        "CREATE TABLE DB.t (id UInt64, ts DateTime DEFAULT now()) ENGINE = MergeTree ORDER BY id",
    );
    database.run("INSERT INTO DB.t (id) SELECT number % 4 FROM numbers(10)");
    for (user, enforced) in [("ro1", 0.0), ("ro2", 1.0)] {
        let reader = server.as_user(&part("clickhouse-18")[user]);
        let seen = Database {
            server: reader,
            name: database.name.clone(),
        };
        let page = poll(&seen, "key: [id], time: ts, windows: [10m]");
        assert_eq!(
            figures(&page, &[("table", "t")]),
            some([10.0, 4.0, 2.5]),
            "{user}"
        );
        let limits = page.get("dup_source_limits_enforced", &[("source", "ch")]);
        assert_eq!(limits, Some(enforced), "{user}");
        assert_eq!(
            page.get("dup_source_up", &[("source", "ch")]),
            Some(1.0),
            "{user}"
        );
    }
}
