//! Profiles that would make our answers wrong without an error: hidden rows, partial or old
//! answers, other days. Each is shown to fool everybody else first.

use crate::support::{Database, Exporter, OwnParts, Page, Server, part, wait_for};

fn watch(database: &Database, keys: &str) -> Exporter {
    let tables = database.tables("ch", &[("t", &format!("key: [id], time: ts, {keys}"))]);
    Exporter::start(&format!("clickhouse:\n{tables}"))
}

fn figures(page: &Page) -> [Option<f64>; 3] {
    ["dup_rows", "dup_keys", "dup_factor"].map(|name| page.get(name, &[("window", "1d")]))
}

/// A table of ten keys, of which five lie there twice. `mark` is that of a deleted row, `changed`
/// of an update that no merge has written yet, `doomed` of a mutation that never comes to run.
fn create(database: &Database) {
    database.run(
        "CREATE TABLE DB.t (id UInt64, ts DateTime DEFAULT now()) ENGINE = ReplacingMergeTree \
         ORDER BY tuple(id) SETTINGS enable_block_number_column = 1, enable_block_offset_column = 1, \
         max_bytes_to_merge_at_max_space_in_pool = 1, max_bytes_to_merge_at_min_space_in_pool = 1",
    );
    database.run("INSERT INTO DB.t (id) SELECT number FROM numbers(11)");
    database.run("INSERT INTO DB.t (id) SELECT number FROM numbers(5)");
    database.run("DELETE FROM DB.t WHERE id = 10");
    database.run("CREATE TABLE DB.empty (id UInt64, ts DateTime) ENGINE = MergeTree ORDER BY id");
}

#[test]
fn no_profile_of_a_new_server_hides_a_row_from_us_or_shows_us_another() {
    let mut own = OwnParts::start(&["clickhouse"]);
    let database = Server::of(own.part("clickhouse")).database_named("audit");
    create(&database);
    let count = "SELECT count() FROM audit.t";
    for (profile, asked, wrong) in [
        ("<final>1</final>", count, "10"),
        (
            "<additional_table_filters>{'audit.t': 'id = 1'}</additional_table_filters>",
            count,
            "2",
        ),
        ("<apply_deleted_mask>0</apply_deleted_mask>", count, "16"),
        (
            "<limit>1</limit>",
            "SELECT name FROM system.columns WHERE database = 'audit' AND table = 't' ORDER BY name",
            "id",
        ),
        (
            "<aggregate_functions_null_for_empty>1</aggregate_functions_null_for_empty>",
            "SELECT sum(id) FROM audit.empty",
            "\\N",
        ),
        (
            "<empty_result_for_aggregation_by_empty_set>1</empty_result_for_aggregation_by_empty_set>",
            "SELECT sum(id) FROM audit.empty",
            "",
        ),
    ] {
        let server = own.restrict(profile, "");
        assert_eq!(server.run(asked), wrong, "{profile}");
        let seen = Database {
            server,
            name: "audit".into(),
        };
        let tables = [
            ("t", "key: [id], time: ts, windows: [1d]"),
            ("empty", "key: [id], time: ts, windows: [1d]"),
        ];
        let page = Exporter::start(&format!("clickhouse:\n{}", seen.tables("ch", &tables))).good();
        let of = |table| {
            ["dup_rows", "dup_keys", "dup_factor"].map(|name| page.get(name, &[("table", table)]))
        };
        assert_eq!(of("t"), [15.0, 10.0, 1.5].map(Some), "{profile}");
        assert_eq!(of("empty"), [Some(0.0), Some(0.0), None], "{profile}");
        std::mem::forget(seen); // it is dropped once, by `database`
    }
    own.restrict("", "");
}
