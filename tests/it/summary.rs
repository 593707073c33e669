//! The check of a summary, on the versions of ClickHouse that have `system.part_log`, and on the two
//! servers that have none.

use serde_json::Value;

use crate::support::{Database, Exporter, OwnParts, Page, Server, wait_for};

/// Those that log parts.
const LOGGING: [&str; 2] = ["clickhouse-18", "clickhouse"];

// ---- What the tests stand on ----

/// A source that watches these summaries of `playlog`: their tables, and more keys of their checks.
fn source(database: &Database, name: &str, summaries: &[(&str, &str)]) -> String {
    let db = Value::from(&*database.name);
    let mut yaml = database.server.source(name) + "    summaries:\n";
    for (table, keys) in summaries {
        yaml += &format!(
            "      - {{database: {db}, table: {table}, count: total, day: day, timeout: 50s, \
             raw: {{database: {db}, table: playlog, key: [id], day: toDate(ts)}}, {keys}}}\n",
        );
    }
    yaml
}

fn watch(database: &Database, summaries: &[(&str, &str)]) -> Exporter {
    Exporter::start(&format!(
        "clickhouse:\n{}",
        source(database, "ch", summaries)
    ))
}

/// `playlog`, whose rows stay as they were written, and a summary of it.
fn create(database: &Database, raw_engine: &str) {
    database.run(&format!(
        "CREATE TABLE DB.playlog (id UInt64, ts DateTime DEFAULT now()) ENGINE = {raw_engine} \
         ORDER BY id"
    ));
    database.run("SYSTEM STOP MERGES DB.playlog");
    create_summary(database, "summary", "UInt64");
}

fn create_summary(database: &Database, table: &str, count: &str) {
    database.run(&format!(
        "CREATE TABLE DB.{table} (day Date, total {count}) ENGINE = SummingMergeTree ORDER BY day"
    ));
}

/// Writes this many keys to `playlog`, in one insert.
fn write(database: &Database, keys: u32) {
    database.run(&format!(
        "INSERT INTO DB.playlog (id) SELECT number FROM numbers({keys})"
    ));
}

/// Counts `playlog` into a summary, with FINAL or without.
fn summarise(database: &Database, summary: &str, final_: &str) {
    database.run(&format!(
        "INSERT INTO DB.{summary} SELECT toDate(ts), count() FROM DB.playlog {final_} GROUP BY toDate(ts)"
    ));
}

/// Waits until the server has a log, of a part that was written before this second.
fn wait_for_any_log(database: &Database) {
    database.run("CREATE TABLE DB.any (id UInt64) ENGINE = MergeTree ORDER BY id");
    database.run("INSERT INTO DB.any SELECT 1");
    wait_for("a log", || {
        let known = "FROM system.tables WHERE database = 'system' AND name = 'part_log'";
        let reaches_back = "SELECT min(event_time) < now() FROM system.part_log";
        let known = database.run(&format!("SELECT count() {known}")) == "1";
        (known && database.run(reaches_back) == "1").then_some(())
    });
}

/// Waits until the log of the server tells of this many rows of `playlog`, whatever came of them.
fn wait_for_log(database: &Database, rows: u32) {
    wait_for_any_log(database);
    wait_for("the parts of playlog in the log", || {
        let logged = database.run(&format!(
            "SELECT sum(rows) FROM system.part_log WHERE toInt8(event_type) = 1 \
             AND database = '{}' AND table = 'playlog'",
            database.name
        ));
        (logged == rows.to_string()).then_some(())
    });
}

/// Waits for the next day of the server when this one ends within 45 seconds, so that no test sees two.
fn keep_off_midnight(server: &Server) {
    wait_for("a while without midnight", || {
        let near = server.run("SELECT toDate(now() + 45) != toDate(now())");
        (near == "0").then_some(())
    });
}

/// Total, rows of the log, their ratio, keys and inflation of the one series of each with these labels.
fn figures(page: &Page, labels: &[(&str, &str)]) -> [Option<f64>; 5] {
    [
        "dup_summary_total",
        "dup_summary_part_log_rows",
        "dup_summary_part_log_ratio",
        "dup_summary_keys",
        "dup_summary_inflation_factor",
    ]
    .map(|name| page.get(name, labels))
}

fn check_of(database: &Database, summary: &str) -> String {
    format!("summary:{}.{summary}", database.name)
}

const TODAY: &str = "periods: [today], min_coverage: 0";
const TODAY_WITH_KEYS: &str = "periods: [today], min_coverage: 0, keys: exact";

// ---- What it counted ----

#[test]
fn the_article_a_summary_without_final_counts_rows_and_one_with_final_counts_keys() {
    for server in LOGGING {
        let database = Server::named(server).database();
        keep_off_midnight(&database.server);
        create(&database, "ReplacingMergeTree");
        create_summary(&database, "with_final", "UInt64");
        write(&database, 1000);
        write(&database, 1000);
        summarise(&database, "summary", "");
        summarise(&database, "with_final", "FINAL");
        wait_for_log(&database, 2000);
        let exporter = watch(
            &database,
            &[
                ("summary", TODAY_WITH_KEYS),
                ("with_final", TODAY_WITH_KEYS),
            ],
        );
        let page = exporter.good();
        let seen = |table| figures(&page, &[("table", table), ("period", "today")]);
        let physical = [2000.0, 2000.0, 1.0, 1000.0, 2.0].map(Some);
        let logical = [1000.0, 2000.0, 0.5, 1000.0, 1.0].map(Some);
        assert_eq!(seen("summary"), physical, "{server}");
        assert_eq!(seen("with_final"), logical, "{server}");
    }
}

#[test]
fn r06_an_overflown_or_emptied_summary_is_a_ratio_below_one_and_neither_clamped_nor_hidden() {
    for server in LOGGING {
        let database = Server::named(server).database();
        keep_off_midnight(&database.server);
        create(&database, "MergeTree");
        create_summary(&database, "narrow", "UInt8");
        database.run("SYSTEM STOP MERGES DB.narrow");
        for rows in [200, 100] {
            write(&database, rows);
            database.run(&format!(
                "INSERT INTO DB.narrow SELECT toDate(now()), {rows}"
            ));
        }
        wait_for_log(&database, 300);
        let total = |exporter: &Exporter| {
            let [total, rows, ratio, ..] = figures(&exporter.fresh(), &[("table", "narrow")]);
            [total, rows, ratio]
        };
        let exporter = watch(&database, &[("narrow", &format!("{TODAY}, interval: 1s"))]);
        assert_eq!(total(&exporter), [300.0, 300.0, 1.0].map(Some), "{server}");
        database.run("SYSTEM START MERGES DB.narrow");
        database.run("OPTIMIZE TABLE DB.narrow FINAL");
        assert_eq!(
            total(&exporter),
            [44.0, 300.0, 44.0 / 300.0].map(Some),
            "{server}"
        );
    }
}

#[test]
fn r06_sums_of_zero_vanish_and_are_a_ratio_of_zero() {
    for server in LOGGING {
        let database = Server::named(server).database();
        keep_off_midnight(&database.server);
        create(&database, "MergeTree");
        create_summary(&database, "signed", "Int64");
        write(&database, 2);
        for change in [10, -10] {
            database.run(&format!(
                "INSERT INTO DB.signed SELECT toDate(now()), {change}"
            ));
        }
        database.run("OPTIMIZE TABLE DB.signed FINAL");
        assert_eq!(
            database.run("SELECT count() FROM DB.signed"),
            "0",
            "{server}"
        );
        wait_for_log(&database, 2);
        let page = watch(&database, &[("signed", TODAY)]).good();
        let [total, rows, ratio, ..] = figures(&page, &[("table", "signed")]);
        assert_eq!([total, rows, ratio], [0.0, 2.0, 0.0].map(Some), "{server}");
    }
}

#[test]
fn nothing_written_and_nothing_counted_is_told_and_has_no_ratio() {
    for server in LOGGING {
        let database = Server::named(server).database();
        create(&database, "MergeTree");
        wait_for_any_log(&database);
        let page = watch(&database, &[("summary", TODAY_WITH_KEYS)]).good();
        let seen = figures(&page, &[("table", "summary")]);
        assert_eq!(
            seen,
            [Some(0.0), Some(0.0), None, Some(0.0), None],
            "{server}"
        );
    }
}

#[test]
fn days_are_those_of_the_time_zone_that_is_asked_for() {
    // Fourteen hours ahead of UTC, which the servers of the tests keep.
    const ZONE: &str = "Pacific/Kiritimati";
    for server in LOGGING {
        let database = Server::named(server).database();
        create(&database, "MergeTree");
        // As many as ten to the power of the day, from three days ago to three days ahead.
        database.run(
            "INSERT INTO DB.summary SELECT toDate(now()) + number - 3, toUInt64(exp10(number)) \
             FROM numbers(7)",
        );
        let of_day = |day: &str| {
            let total = database.run(&format!(
                "SELECT sum(total) FROM DB.summary WHERE day = toDate(now(), '{ZONE}') - {day}"
            ));
            total.parse::<f64>().ok()
        };
        let expected = wait_for("a while in which no day ends", || {
            let expected = [of_day("0"), of_day("1")];
            let later = database.run(&format!(
                "SELECT toDate(now() + 45, '{ZONE}') = toDate(now(), '{ZONE}')"
            ));
            (later == "1").then_some(expected)
        });
        let keys = format!("periods: [today, yesterday], min_coverage: 0, timezone: {ZONE}");
        let exporter = watch(&database, &[("summary", &keys)]);
        let page = exporter.polled();
        let total = |period| page.get("dup_summary_total", &[("period", period)]);
        assert_eq!([total("today"), total("yesterday")], expected, "{server}");
    }
}

// ---- What the log does not know ----

#[test]
fn r07_a_server_without_part_log_loses_that_ratio_and_nothing_else() {
    for server in ["clickhouse-nolog", "clickhouse-23"] {
        let database = Server::named(server).database();
        keep_off_midnight(&database.server);
        create(&database, "MergeTree");
        write(&database, 100);
        write(&database, 100);
        summarise(&database, "summary", "");
        let table = format!(
            "    tables:\n      - {{database: {}, table: playlog, key: [id], time: ts}}\n",
            database.name
        );
        let exporter = Exporter::start(&format!(
            "clickhouse:\n{}{table}",
            source(&database, "ch", &[("summary", TODAY_WITH_KEYS)])
        ));
        let page = exporter.polled();
        let check = check_of(&database, "summary");
        exporter.assert_fails(&check, "no_part_log", "system.part_log is unknown");
        exporter.assert_fails(&check, "no_part_log", "<part_log> section in config.xml");
        let seen = figures(&page, &[("table", "summary")]);
        assert_eq!(
            seen,
            [Some(200.0), None, None, Some(100.0), Some(2.0)],
            "{server}"
        );
        assert_eq!(
            page.get("dup_summary_part_log_coverage_ratio", &[]),
            None,
            "{server}"
        );
        let beside = format!("table:{}.playlog", database.name);
        assert_eq!(
            page.get("dup_check_up", &[("check", &beside)]),
            Some(1.0),
            "{server}"
        );
        assert_eq!(
            page.get("dup_factor", &[("window", "1h")]),
            Some(2.0),
            "{server}"
        );
        assert_eq!(page.get("dup_source_up", &[]), Some(1.0), "{server}");
    }
}

#[test]
fn a_log_that_never_saw_the_raw_table_is_blind_and_says_so() {
    for server in LOGGING {
        let database = Server::named(server).database();
        keep_off_midnight(&database.server);
        create(&database, "MergeTree");
        wait_for_any_log(&database);
        database.run("INSERT INTO DB.summary SELECT toDate(now()), 5");
        let exporter = watch(&database, &[("summary", TODAY)]);
        let page = exporter.polled();
        let words = format!("shows no row written to {}.playlog", database.name);
        exporter.assert_fails(&check_of(&database, "summary"), "no_part_log", &words);
        let seen = figures(&page, &[("table", "summary")]);
        assert_eq!(seen, [Some(5.0), None, None, None, None], "{server}");
    }
}

#[test]
fn r08_a_dropped_table_of_the_same_name_is_another_table() {
    let database = Server::named("clickhouse").database();
    keep_off_midnight(&database.server);
    create(&database, "MergeTree");
    write(&database, 5000);
    database.run("DROP TABLE DB.playlog SYNC");
    database.run("DROP TABLE DB.summary SYNC");
    create(&database, "MergeTree");
    write(&database, 1000);
    summarise(&database, "summary", "");
    wait_for_log(&database, 6000);
    let page = watch(&database, &[("summary", TODAY)]).good();
    let [total, rows, ratio, ..] = figures(&page, &[("table", "summary")]);
    assert_eq!([total, rows, ratio], [1000.0, 1000.0, 1.0].map(Some));
}

#[test]
fn a_raw_table_without_parts_is_unsupported_and_the_rest_is_shown() {
    for server in LOGGING {
        let database = Server::named(server).database();
        keep_off_midnight(&database.server);
        create(&database, "MergeTree");
        write(&database, 10);
        summarise(&database, "summary", "");
        database.run("RENAME TABLE DB.playlog TO DB.behind");
        database.run("CREATE VIEW DB.playlog AS SELECT * FROM DB.behind");
        let exporter = watch(&database, &[("summary", TODAY_WITH_KEYS)]);
        exporter.assert_fails(
            &check_of(&database, "summary"),
            "unsupported",
            "has the engine View; system.part_log knows no parts of it",
        );
        let seen = figures(&exporter.scrape(), &[("table", "summary")]);
        assert_eq!(
            seen,
            [Some(10.0), None, None, Some(10.0), Some(1.0)],
            "{server}"
        );
    }
}

#[test]
fn r08_with_a_cluster_the_logs_of_all_its_servers_count() {
    let first = Server::named("clickhouse-18").database();
    keep_off_midnight(&first.server);
    let others = ["clickhouse-18b", "clickhouse-18c"]
        .map(|name| Server::named(name).database_named(&first.name));
    for (i, database) in [&first, &others[0], &others[1]].into_iter().enumerate() {
        create(database, "MergeTree");
        database.run(&format!(
            "INSERT INTO DB.playlog (id) SELECT {i} * 1000 + number FROM numbers(1000)"
        ));
        wait_for_log(database, 1000);
    }
    first.run("INSERT INTO DB.summary SELECT toDate(now()), 3000");
    let exporter = Exporter::start(&format!(
        "clickhouse:\n{}    cluster: trio\n{}",
        source(&first, "all", &[("summary", TODAY_WITH_KEYS)]),
        source(&first, "one", &[("summary", TODAY_WITH_KEYS)]),
    ));
    let page = exporter.good();
    let seen = |source| figures(&page, &[("source", source)]);
    assert_eq!(seen("all"), [3000.0, 3000.0, 1.0, 3000.0, 1.0].map(Some));
    assert_eq!(seen("one"), [3000.0, 1000.0, 3.0, 1000.0, 3.0].map(Some));
}

#[test]
fn rows_of_a_block_that_the_server_rejected_were_not_written() {
    let database = Server::named("clickhouse").database();
    keep_off_midnight(&database.server);
    database.run(
        "CREATE TABLE DB.playlog (id UInt64, ts DateTime) ENGINE = MergeTree ORDER BY id \
         SETTINGS non_replicated_deduplication_window = 100",
    );
    create_summary(&database, "summary", "UInt64");
    let now = database.run("SELECT toUnixTimestamp(now())");
    for _ in 0..3 {
        database.run(&format!(
            "INSERT INTO DB.playlog SELECT number, toDateTime({now}) FROM numbers(1000) ORDER BY ALL"
        ));
    }
    summarise(&database, "summary", "");
    wait_for_log(&database, 3000);
    let rejected = database.run(&format!(
        "SELECT sum(rows) FROM system.part_log WHERE error = 389 AND database = '{}'",
        database.name
    ));
    assert_eq!(rejected, "2000", "the server did reject them");
    let page = watch(&database, &[("summary", TODAY)]).good();
    let [total, rows, ratio, ..] = figures(&page, &[("table", "summary")]);
    assert_eq!([total, rows, ratio], [1000.0, 1000.0, 1.0].map(Some));
}

#[test]
fn rows_of_an_attached_partition_were_not_written_here() {
    let database = Server::named("clickhouse").database();
    keep_off_midnight(&database.server);
    create(&database, "MergeTree");
    database.run("CREATE TABLE DB.elsewhere AS DB.playlog");
    database.run("INSERT INTO DB.elsewhere (id) SELECT number FROM numbers(700)");
    write(&database, 300);
    summarise(&database, "summary", "");
    database.run("ALTER TABLE DB.playlog ATTACH PARTITION tuple() FROM DB.elsewhere");
    wait_for_log(&database, 1000);
    let page = watch(&database, &[("summary", TODAY)]).good();
    let [total, rows, ratio, ..] = figures(&page, &[("table", "summary")]);
    assert_eq!([total, rows, ratio], [300.0, 300.0, 1.0].map(Some));
}

#[test]
fn rows_follow_a_table_that_was_renamed() {
    let database = Server::named("clickhouse").database();
    keep_off_midnight(&database.server);
    create(&database, "MergeTree");
    database.run("RENAME TABLE DB.playlog TO DB.before");
    database.run("INSERT INTO DB.before (id) SELECT number FROM numbers(70)");
    database.run("RENAME TABLE DB.before TO DB.playlog");
    write(&database, 30);
    summarise(&database, "summary", "");
    wait_for_log(&database, 30);
    let page = watch(&database, &[("summary", TODAY)]).good();
    let [total, rows, ratio, ..] = figures(&page, &[("table", "summary")]);
    assert_eq!([total, rows, ratio], [100.0, 100.0, 1.0].map(Some));
}

#[test]
fn a_backfill_of_yesterday_hides_nothing_of_today() {
    for server in LOGGING {
        let database = Server::named(server).database();
        keep_off_midnight(&database.server);
        create(&database, "MergeTree");
        write(&database, 100);
        summarise(&database, "summary", "");
        database.run("INSERT INTO DB.summary SELECT toDate(now()) - 1, 5000");
        wait_for_log(&database, 100);
        let both = "periods: [today, yesterday], min_coverage: 0";
        let page = watch(&database, &[("summary", both)]).good();
        let today = figures(&page, &[("period", "today")]);
        assert_eq!(today[..3], [100.0, 100.0, 1.0].map(Some), "{server}");
        let yesterday = figures(&page, &[("period", "yesterday")]);
        assert_eq!(yesterday[..3], [Some(5000.0), None, None], "{server}");
    }
}

#[test]
fn a_day_that_is_an_instant_is_cut_where_the_day_begins_and_a_number_is_refused() {
    for server in LOGGING {
        let database = Server::named(server).database();
        keep_off_midnight(&database.server);
        create(&database, "MergeTree");
        for (table, day, of_day) in [
            ("instant", "DateTime", "toDateTime(toDate(now()))"),
            ("number", "UInt32", "toYYYYMMDD(now())"),
        ] {
            database.run(&format!(
                "CREATE TABLE DB.{table} (day {day}, total UInt64) ENGINE = MergeTree ORDER BY day"
            ));
            database.run(&format!("INSERT INTO DB.{table} SELECT {of_day}, 7"));
            database.run(&format!("INSERT INTO DB.{table} SELECT {of_day} - 1, 50"));
        }
        wait_for_any_log(&database);
        let often = &format!("{TODAY}, interval: 1s");
        let exporter = watch(&database, &[("instant", often), ("number", often)]);
        let page = exporter.fresh();
        let total = |table| figures(&page, &[("table", table)])[0];
        assert_eq!(total("instant"), Some(7.0), "{server}");
        assert_eq!(total("number"), None, "{server}");
        let check = check_of(&database, "number");
        let refused = [("check", &*check), ("reason", "unsupported")];
        assert!(
            page.get("dup_check_failures_total", &refused) > Some(0.0),
            "{server}"
        );
    }
}

#[test]
fn a_view_is_not_read_once_for_each_shard() {
    let first = Server::named("clickhouse-18").database();
    let others = ["clickhouse-18b", "clickhouse-18c"]
        .map(|name| Server::named(name).database_named(&first.name));
    for database in [&first, &others[0], &others[1]] {
        database.run("CREATE TABLE DB.rows (id UInt64, at DateTime) ENGINE = MergeTree PARTITION BY tuple() ORDER BY id");
        database.run("CREATE TABLE DB.spread AS DB.rows ENGINE = Distributed(trio, DB, rows)");
        database.run("CREATE VIEW DB.seen AS SELECT * FROM DB.spread");
    }
    first.run("INSERT INTO DB.rows SELECT number, now() FROM numbers(10)");
    let table = |name| {
        let db = &first.name;
        format!("      - {{database: {db}, table: {name}, key: [id], time: at, interval: 1s}}\n")
    };
    let exporter = Exporter::start(&format!(
        "clickhouse:\n{}    cluster: trio\n    tables:\n{}{}{}",
        first.server.source("ch"),
        table("rows"),
        table("spread"),
        table("seen")
    ));
    let page = exporter.fresh();
    let factor = |name| page.get("dup_factor", &[("table", name), ("window", "10m")]);
    assert_eq!([factor("rows"), factor("spread")], [Some(1.0); 2]);
    assert_eq!(factor("seen"), None);
    let check = format!("table:{}.seen", first.name);
    let refused = [("check", &*check), ("reason", "unsupported")];
    assert!(page.get("dup_check_failures_total", &refused) > Some(0.0));
}

// ---- How far back it is known ----

#[test]
fn a_ratio_is_shown_only_where_the_log_covers_as_much_as_is_asked_for() {
    let own = OwnParts::start(&["clickhouse"]);
    let database = Server::of(own.part("clickhouse")).database();
    keep_off_midnight(&database.server);
    create(&database, "MergeTree");
    // Before the first part there is no log.
    write(&database, 1);
    wait_for_log(&database, 1);
    let epoch = |day: &str| {
        let text = database.run(&format!("SELECT toUnixTimestamp(toDateTime({day}))"));
        text.parse::<u64>().expect("a time")
    };
    let start = epoch("toStartOfMonth(addMonths(toDate(now()), -1))");
    let middle = start.midpoint(epoch("toStartOfMonth(toDate(now()))"));
    // The oldest row of the log is of the middle of last month.
    let log = |table: &str, at: u64, rows: u32| {
        let name = &database.name;
        let uuid = if table == "playlog" {
            "uuid"
        } else {
            "generateUUIDv4()"
        };
        database.run(&format!(
            "INSERT INTO system.part_log (event_type, event_date, event_time, database, table, \
             table_uuid, part_name, rows, error) SELECT 'NewPart', toDate(toDateTime({at})), \
             toDateTime({at}), '{name}', '{table}', {uuid}, 'all_1_1_0', {rows}, 0 \
             FROM system.tables WHERE database = '{name}' AND name = 'playlog'"
        ));
    };
    log("playlog", middle, 1000);
    database.run(&format!(
        "INSERT INTO DB.summary SELECT toDate(toDateTime({middle})), 1500"
    ));
    let summaries = |name, keys: &str| source(&database, name, &[("summary", keys)]);
    let exporter = Exporter::start(&format!(
        "clickhouse:\n{}{}",
        summaries("strict", "interval: 1s, periods: [last_month]"),
        summaries(
            "lax",
            "interval: 1s, periods: [last_month], min_coverage: 0.5"
        ),
    ));
    let seen = |page: &Page, source| {
        let [total, rows, ratio, ..] = figures(page, &[("source", source)]);
        let coverage = "dup_summary_part_log_coverage_ratio";
        [
            total,
            rows,
            page.get(coverage, &[("source", source)]),
            ratio,
        ]
    };
    let page = exporter.good();
    assert_eq!(
        seen(&page, "strict"),
        [Some(1500.0), Some(1000.0), Some(0.5), None]
    );
    assert_eq!(seen(&page, "lax"), [1500.0, 1000.0, 0.5, 1.5].map(Some));

    log("another", start, 1);
    let page = exporter.fresh();
    for source in ["strict", "lax"] {
        assert_eq!(
            seen(&page, source),
            [1500.0, 1000.0, 1.0, 1.5].map(Some),
            "{source}"
        );
    }
}

#[test]
fn keys_are_shown_only_where_the_raw_table_still_holds_the_first_day() {
    for server in LOGGING {
        let database = Server::named(server).database();
        keep_off_midnight(&database.server);
        create(&database, "MergeTree");
        // The last day of last month, twice, and today.
        database.run(
            "INSERT INTO DB.playlog SELECT number % 10, toDateTime(toStartOfMonth(toDate(now()))) - 3600 \
             FROM numbers(20)",
        );
        write(&database, 3);
        summarise(&database, "summary", "");
        wait_for_log(&database, 23);
        let summaries = |name, keys: &str| source(&database, name, &[("summary", keys)]);
        let exporter = Exporter::start(&format!(
            "clickhouse:\n{}{}",
            summaries(
                "strict",
                "interval: 1s, keys: exact, periods: [today, last_month]"
            ),
            summaries(
                "lax",
                "interval: 1s, keys: exact, periods: [last_month], min_coverage: 0.03"
            ),
        ));
        let seen = |page: &Page, source, period| {
            let [total, .., keys, inflation] =
                figures(page, &[("source", source), ("period", period)]);
            [total, keys, inflation]
        };
        let page = exporter.good();
        assert_eq!(
            seen(&page, "strict", "last_month"),
            [Some(20.0), None, None],
            "{server}"
        );
        assert_eq!(
            seen(&page, "strict", "today"),
            [3.0, 3.0, 1.0].map(Some),
            "{server}"
        );
        assert_eq!(
            seen(&page, "lax", "last_month"),
            [20.0, 10.0, 2.0].map(Some),
            "{server}"
        );

        // One more key, on the first day of last month, which the summary did not count.
        database.run(
            "INSERT INTO DB.playlog SELECT 77, \
             toDateTime(toStartOfMonth(addMonths(toDate(now()), -1)))",
        );
        let page = exporter.fresh();
        let whole = [Some(20.0), Some(11.0), Some(20.0 / 11.0)];
        assert_eq!(seen(&page, "strict", "last_month"), whole, "{server}");
    }
}
