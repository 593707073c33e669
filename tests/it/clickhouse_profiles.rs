//! Profiles that would make our answers wrong without an error: hidden rows, partial or old
//! answers, other days. Each is shown to fool everybody else first.

use crate::support::{Database, Exporter, OwnParts, Page, Server, part, wait_for};

const KEYS: &str = "key: [id], time: ts, windows: [1d]";

/// Rows, keys and factor of a table.
fn figures(page: &Page, table: &str) -> [Option<f64>; 3] {
    ["dup_rows", "dup_keys", "dup_factor"].map(|name| page.get(name, &[("table", table)]))
}

/// The database as it is after a start of its server; only the first value of it is dropped there.
fn again(server: Server) -> std::mem::ManuallyDrop<Database> {
    std::mem::ManuallyDrop::new(Database {
        server,
        name: "audit".into(),
    })
}

/// Settings of a table that nobody merges.
const UNMERGED: &str = "max_bytes_to_merge_at_max_space_in_pool = 1, \
                        max_bytes_to_merge_at_min_space_in_pool = 1";

/// `t` has ten keys, of which five lie there twice, and an eleventh that was deleted. In `patched`
/// an update of all rows waits to be written into them; in `doomed` a mutation waits for ever.
fn create(database: &Database) {
    let table = |name: &str, settings: &str| {
        database.run(&format!(
            "CREATE TABLE DB.{name} (id UInt64, ts DateTime DEFAULT now()) \
             ENGINE = MergeTree ORDER BY tuple() SETTINGS {UNMERGED}{settings}"
        ));
    };
    table("t", "");
    database.run("INSERT INTO DB.t (id) SELECT number FROM numbers(11)");
    database.run("INSERT INTO DB.t (id) SELECT number FROM numbers(5)");
    database.run("DELETE FROM DB.t WHERE id = 10");
    table("empty", "");
    table(
        "patched",
        ", enable_block_number_column = 1, enable_block_offset_column = 1",
    );
    database.run("INSERT INTO DB.patched (id) SELECT number FROM numbers(4)");
    database.run("UPDATE DB.patched SET id = 7 WHERE 1");
    table("doomed", "");
    database.run("INSERT INTO DB.doomed (id) SELECT number FROM numbers(4)");
    database.run("SYSTEM STOP MERGES DB.doomed");
}

#[test]
fn no_profile_hides_a_row_from_us_or_shows_us_another() {
    let mut own = OwnParts::start(&["clickhouse"]);
    let database = Server::of(own.part("clickhouse")).database_named("audit");
    create(&database);
    let count = |table: &str| format!("SELECT count() FROM audit.{table}");
    let sum = "SELECT sum(id) FROM audit.empty".to_owned();
    let columns = "SELECT name FROM system.columns WHERE database = 'audit' AND table = 't' \
                   ORDER BY name";
    for (profile, asked, wrong) in [
        (
            "<additional_table_filters>{'audit.t': 'id = 1'}</additional_table_filters>",
            count("t"),
            "2",
        ),
        (
            "<apply_deleted_mask>0</apply_deleted_mask>",
            count("t"),
            "16",
        ),
        (
            "<apply_patch_parts>0</apply_patch_parts>",
            "SELECT uniqExact(id) FROM audit.patched".to_owned(),
            "4",
        ),
        ("<limit>1</limit>", columns.to_owned(), "id"),
        (
            "<aggregate_functions_null_for_empty>1</aggregate_functions_null_for_empty>",
            sum.clone(),
            "\\N",
        ),
        (
            "<empty_result_for_aggregation_by_empty_set>1</empty_result_for_aggregation_by_empty_set>",
            sum,
            "",
        ),
    ] {
        let seen = again(own.restrict(profile, ""));
        assert_eq!(seen.server.run(&asked), wrong, "{profile}");
        let tables = ["t", "empty", "patched"].map(|table| (table, KEYS));
        let page = Exporter::start(&format!("clickhouse:\n{}", seen.tables("ch", &tables))).good();
        let expected = [15.0, 10.0, 1.5].map(Some);
        assert_eq!(figures(&page, "t"), expected, "{profile}");
        let expected = [Some(0.0), Some(0.0), None];
        assert_eq!(figures(&page, "empty"), expected, "{profile}");
        let expected = [4.0, 1.0, 4.0].map(Some);
        assert_eq!(figures(&page, "patched"), expected, "{profile}");
    }
    own.restrict("", "");
}

#[test]
fn a_mutation_that_has_not_run_yet_has_changed_no_row() {
    let mut own = OwnParts::start(&["clickhouse"]);
    let database = Server::of(own.part("clickhouse")).database_named("audit");
    create(&database);
    let profile = "<apply_mutations_on_fly>1</apply_mutations_on_fly>";
    let seen = again(own.restrict(profile, ""));
    seen.run("SYSTEM STOP MERGES DB.doomed");
    seen.run("ALTER TABLE DB.doomed DELETE WHERE id < 3 SETTINGS mutations_sync = 0");
    assert_eq!(seen.run("SELECT count() FROM DB.doomed"), "1");
    let tables = seen.tables("ch", &[("doomed", KEYS)]);
    let page = Exporter::start(&format!("clickhouse:\n{tables}")).good();
    assert_eq!(figures(&page, "doomed"), [4.0, 4.0, 1.0].map(Some));
    own.restrict("", "");
}

#[test]
fn days_are_those_of_the_server_and_not_of_a_profile() {
    let mut own = OwnParts::start(&["clickhouse"]);
    let database = Server::of(own.part("clickhouse")).database_named("audit");
    database.run("CREATE TABLE DB.raw (id UInt64, ts DateTime) ENGINE = MergeTree ORDER BY id");
    database.run("CREATE TABLE DB.days (day Date, total UInt64) ENGINE = MergeTree ORDER BY day");
    // As many as ten to the power of the day, from three days ago to three days ahead.
    database.run(
        "INSERT INTO DB.days SELECT toDate(now()) + number - 3, toUInt64(exp10(number)) \
         FROM numbers(7)",
    );
    wait_for("a while in which no day ends", || {
        let near = "SELECT toDate(now() + 50) != toDate(now())";
        (database.run(near) == "0").then_some(())
    });
    let today = "SELECT sum(total) FROM DB.days WHERE day = toDate(now())";
    let expected = database.run(today).parse::<f64>().ok();
    let summary = "    summaries:\n      - {database: audit, table: days, count: total, day: day, \
                   periods: [today], min_coverage: 0, \
                   raw: {database: audit, table: raw, key: [id], day: toDate(ts)}}\n";
    // In one of them it is another day than in UTC, which the servers of the tests keep.
    for zone in ["Pacific/Kiritimati", "Etc/GMT+12"] {
        let profile = format!("<session_timezone>{zone}</session_timezone>");
        let seen = again(own.restrict(&profile, ""));
        assert_eq!(seen.run("SELECT timezone()"), zone);
        let source = seen.server.source("ch");
        let page = Exporter::start(&format!("clickhouse:\n{source}{summary}")).polled();
        assert_eq!(page.get("dup_summary_total", &[]), expected, "{zone}");
    }
    own.restrict("", "");
}

// ---- 18.16 ----

#[test]
fn no_profile_of_an_old_server_makes_a_part_of_an_answer_the_whole() {
    let server = Server::named("clickhouse-18");
    let database = server.database();
    database.run(
        "CREATE TABLE DB.t (id UInt64, ts DateTime DEFAULT now()) ENGINE = MergeTree \
         PARTITION BY tuple() ORDER BY id SAMPLE BY id",
    );
    database.run("INSERT INTO DB.t (id) SELECT cityHash64(number % 500000) FROM numbers(1000000)");
    let lax = server.as_user(&part("clickhouse-18")["lax"]);
    let seen = std::mem::ManuallyDrop::new(Database {
        server: lax,
        name: database.name.clone(),
    });
    let half = seen.run("SELECT count() FROM DB.t WHERE id >= 0");
    let half: u32 = half.parse().expect("a count");
    assert!(
        (400_000..600_000).contains(&half),
        "half of it for everybody else: {half}"
    );
    let keys = "key: [id], time: ts, windows: [1h]";
    let source = |name: &str, limits: &str| {
        seen.tables(name, &[("t", keys)]) + &format!("    limits: {{{limits}}}\n")
    };
    let exporter = Exporter::start(&format!(
        "clickhouse:\n{}{}",
        source("all", "max_rows_to_read: 2000000"),
        source("less", "max_rows_to_read: 300000")
    ));
    let page = exporter.polled();
    let of = |source| {
        ["dup_rows", "dup_keys", "dup_factor"].map(|name| page.get(name, &[("source", source)]))
    };
    assert_eq!(of("all"), [1_000_000.0, 500_000.0, 2.0].map(Some));
    assert_eq!(
        of("less"),
        [None; 3],
        "and not those that were read, although its profile says break"
    );
    let limit = [("source", "less"), ("reason", "limit")];
    assert!(page.get("dup_check_failures_total", &limit) > Some(0.0));
}
