//! What the exporter's user must be allowed, and what is told when it is not: the grants that the
//! docs give, on the 26.9 engine, and `users.xml` on 18.16.

use crate::support::{Database, Exporter, OwnParts, Page, Server, root, wait_for};

/// The tables that the grants of the docs are for.
fn create(database: &Database) {
    database.run(
        "CREATE TABLE DB.playlog (device_id UInt32, event_id UInt64, ts DateTime DEFAULT now(), \
         inserted_at DateTime DEFAULT now(), secret String) ENGINE = ReplacingMergeTree \
         PARTITION BY event_id % 2 ORDER BY (device_id, event_id) \
         SETTINGS max_bytes_to_merge_at_max_space_in_pool = 1, \
         max_bytes_to_merge_at_min_space_in_pool = 1",
    );
    database.run(
        "CREATE TABLE DB.playlog_summary (day Date, total UInt64) ENGINE = MergeTree \
         PARTITION BY tuple() ORDER BY day",
    );
    for _ in 0..2 {
        database
            .run("INSERT INTO DB.playlog (device_id, event_id) SELECT 1, number FROM numbers(100)");
    }
    database.run("INSERT INTO DB.playlog_summary SELECT toDate(now()), 200");
    wait_for("the parts of playlog in the log", || {
        let known = "SELECT count() FROM system.tables WHERE database = 'system' \
                     AND name = 'part_log'";
        let logged = format!(
            "SELECT sum(rows) FROM system.part_log WHERE toInt8(event_type) = 1 \
             AND database = '{}' AND table = 'playlog'",
            database.name
        );
        (database.run(known) == "1" && database.run(&logged) == "200").then_some(())
    });
}

fn keep_off_midnight(server: &Server) {
    wait_for("a while without midnight", || {
        let near = server.run("SELECT toDate(now() + 58) != toDate(now())");
        (near == "0").then_some(())
    });
}

/// An exporter with both checks of these tables, as this user of the server.
fn watch(server: &Server, db: &str) -> Exporter {
    Exporter::start(&format!(
        "clickhouse:\n{}    tables:\n      - {{database: {db}, table: playlog, \
         key: [device_id, event_id], time: inserted_at, windows: [1d]}}\n    summaries:\n      \
         - {{database: {db}, table: playlog_summary, count: total, day: day, keys: exact, \
         periods: [today], min_coverage: 0, raw: {{database: {db}, table: playlog, \
         key: [device_id, event_id], day: toDate(ts)}}}}\n",
        server.source("ch")
    ))
}

/// Factor, summary total, its ratio to the log, and inflation.
fn figures(page: &Page) -> [Option<f64>; 4] {
    [
        "dup_factor",
        "dup_summary_total",
        "dup_summary_part_log_ratio",
        "dup_summary_inflation_factor",
    ]
    .map(|name| page.get(name, &[]))
}

const ALL: [Option<f64>; 4] = [Some(2.0), Some(200.0), Some(1.0), Some(2.0)];

// ---- Grants ----

/// The grants of SELECT that the docs give to a user of one server, without the user.
fn grants_of_the_docs() -> Vec<String> {
    let docs = std::fs::read_to_string(root().join("docs/configuration.md")).expect("the docs");
    let grants = docs.lines().filter_map(|line| {
        let (grant, rest) = line.split_once(" TO dup_exporter;")?;
        (grant.starts_with("GRANT SELECT") && !rest.contains("cluster")).then(|| grant.to_owned())
    });
    grants.collect()
}

fn section(grants: &[String]) -> String {
    let queries = grants.iter().map(|grant| format!("<query>{grant}</query>"));
    format!("<grants>{}</grants>", queries.collect::<String>())
}

/// The grants without one column, which some of them name; `None` when there is no other.
fn without(grants: &[String], column: &str) -> Vec<String> {
    let less = grants.iter().map(|grant| {
        let Some((before, rest)) = grant.split_once('(') else {
            return grant.clone();
        };
        let (columns, behind) = rest.split_once(')').expect("a closing bracket");
        let columns: Vec<_> = columns.split(", ").filter(|name| *name != column).collect();
        format!("{before}({}){behind}", columns.join(", "))
    });
    let less: Vec<_> = less.collect();
    assert_ne!(less, grants, "{column} stands in the grants");
    less
}

#[test]
fn the_grants_of_the_docs_suffice_and_none_of_them_can_be_spared() {
    let mut own = OwnParts::start(&["clickhouse"]);
    let database = Server::of(own.part("clickhouse")).database_named("audit");
    create(&database);
    keep_off_midnight(&database.server);
    let grants = grants_of_the_docs();
    let server = own.restrict("<readonly>2</readonly>", &section(&grants));
    assert_eq!(figures(&watch(&server, "audit").good()), ALL);
    assert!(
        grants
            .iter()
            .any(|grant| grant.contains("audit.playlog_summary"))
    );

    let [factor, total, ratio, inflation] = ALL;
    let (table, summary) = ("table:audit.playlog", "summary:audit.playlog_summary");
    for (column, check, reason, left) in [
        (
            "device_id",
            table,
            "unknown_column",
            [None, total, ratio, None],
        ),
        (
            "event_id",
            summary,
            "unknown_column",
            [None, total, ratio, None],
        ),
        (
            "inserted_at",
            table,
            "unknown_column",
            [None, total, ratio, inflation],
        ),
        (
            "_part",
            table,
            "authorization",
            [None, total, ratio, inflation],
        ),
        (
            "_partition_id",
            table,
            "authorization",
            [None, total, ratio, inflation],
        ),
        ("ts", summary, "authorization", [factor, total, ratio, None]),
        ("day", summary, "unknown_column", [factor, None, None, None]),
        (
            "total",
            summary,
            "unknown_column",
            [factor, None, None, None],
        ),
    ] {
        let less = section(&without(&grants, column));
        let server = own.restrict("<readonly>2</readonly>", &less);
        let exporter = watch(&server, "audit");
        assert_eq!(figures(&exporter.polled()), left, "{column}");
        exporter.assert_fails(check, reason, "");
    }
    own.restrict("", ""); // so that the database can be dropped
}

#[test]
fn part_log_tells_of_the_tables_that_the_user_is_shown_and_of_no_other() {
    let mut own = OwnParts::start(&["clickhouse"]);
    let database = Server::of(own.part("clickhouse")).database_named("audit");
    create(&database);
    database.run("CREATE TABLE DB.other (id UInt64) ENGINE = MergeTree ORDER BY id");
    let show = "GRANT SHOW TABLES ON *.*".to_owned();
    let docs = std::fs::read_to_string(root().join("docs/configuration.md")).expect("the docs");
    assert!(docs.contains(&format!("{show} TO dup_exporter;")));
    let mut grants = grants_of_the_docs();
    for other in [None, Some(0.0)] {
        let server = own.restrict("<readonly>2</readonly>", &section(&grants));
        let page = Exporter::start(&format!(
            "clickhouse:\n{}    part_log: {{include: ['^audit[.]']}}\n",
            server.source_with_part_log("ch")
        ))
        .good();
        let written = |table| page.get("dup_table_written_rows_total", &[("table", table)]);
        assert_eq!(written("playlog"), Some(0.0));
        assert_eq!(written("other"), other);
        grants.push(show.clone());
    }
    own.restrict("", "");
}

#[test]
fn a_log_whose_rows_are_hidden_is_no_log_and_not_one_of_nothing_written() {
    let mut own = OwnParts::start(&["clickhouse"]);
    let database = Server::of(own.part("clickhouse")).database_named("audit");
    create(&database);
    keep_off_midnight(&database.server);
    for (hidden, words) in [
        ("1", "shows no row at all: look for a row policy"),
        ("table = 'playlog'", "shows no row written to audit.playlog"),
    ] {
        let policy = format!(
            "<databases><system><part_log><filter>NOT ({hidden})</filter></part_log></system></databases>"
        );
        let server = own.restrict("", &policy);
        let exporter = watch(&server, "audit");
        assert_eq!(figures(&exporter.polled()), [ALL[0], ALL[1], None, ALL[3]]);
        exporter.assert_fails("summary:audit.playlog_summary", "no_part_log", words);
    }
    own.restrict("", "");
}

#[test]
fn r17_a_user_of_any_kind_gets_right_figures_and_only_readonly_1_can_keep_no_limit() {
    let mut own = OwnParts::start(&["clickhouse"]);
    let database = Server::of(own.part("clickhouse")).database_named("audit");
    create(&database);
    keep_off_midnight(&database.server);
    for (readonly, enforced) in [(0, 1.0), (1, 0.0), (2, 1.0)] {
        let server = own.restrict(&format!("<readonly>{readonly}</readonly>"), "");
        let page = watch(&server, "audit").good();
        assert_eq!(figures(&page), ALL, "readonly = {readonly}");
        let limits = page.get("dup_source_limits_enforced", &[]);
        assert_eq!(limits, Some(enforced), "readonly = {readonly}");
    }
    own.restrict("", "");
}

// ---- users.xml of 18.16 ----

#[test]
fn a_user_of_users_xml_needs_its_database_and_no_other() {
    // The name of the database stands in the file.
    let own = OwnParts::start(&["clickhouse-18"]);
    let users = own.part("clickhouse-18");
    let server = Server::of(users);
    let database = server.database_named("granted");
    keep_off_midnight(&server);
    create(&database);
    let page = watch(&server.as_user(&users["granted"]), "granted").good();
    assert_eq!(figures(&page), ALL);

    for (user, reason, up) in [("blind", "unknown_table", 1.0), ("elsewhere", "auth", 0.0)] {
        let exporter = watch(&server.as_user(&users[user]), "granted");
        let page = exporter.polled();
        assert_eq!(figures(&page), [None; 4], "{user}");
        for check in ["table:granted.playlog", "summary:granted.playlog_summary"] {
            exporter.assert_fails(check, reason, "");
        }
        assert_eq!(page.get("dup_source_up", &[]), Some(up), "{user}");
    }
}

// ---- Harmless ----

#[test]
fn a_user_who_might_write_sends_each_question_as_one_that_may_not() {
    let server = Server::named("clickhouse-18");
    let database = server.database();
    create(&database);
    watch(&server, &database.name).good();
    let ours = format!(
        "FROM system.query_log WHERE type = 2 AND query_id LIKE 'dup_exporter-%' \
         AND query LIKE '%`{}`%'",
        database.name
    );
    wait_for("our queries in the log", || {
        (server.run(&format!("SELECT count() {ours}")) != "0").then_some(())
    });
    for (setting, value) in [("readonly", "2"), ("priority", "1000")] {
        let values =
            format!("SELECT DISTINCT Settings.Values[indexOf(Settings.Names, '{setting}')] {ours}");
        assert_eq!(server.run(&values), value, "{setting}");
    }
    // What the server makes of a write under these settings.
    let insert = format!(
        "INSERT INTO `{}`.playlog (event_id) VALUES (1)",
        database.name
    );
    let mut answer = ureq::post(format!("{}/?readonly=2&priority=1000", server.url))
        .header("X-ClickHouse-User", &server.user)
        .header("X-ClickHouse-Key", &server.password)
        .config()
        .http_status_as_error(false)
        .build()
        .send(&insert)
        .expect("an answer");
    let words = answer.body_mut().read_to_string().expect("a text");
    assert!(words.contains("Code: 164"), "{words}");
}

#[test]
fn a_source_never_gets_more_than_two_questions_at_once_and_one_of_each_check() {
    let server = Server::named("clickhouse-18");
    let mut database = server.database();
    // Each poll takes a second or two; all are due every second.
    let tables: Vec<_> = (0..6).map(|i| format!("slow{i}")).collect();
    for table in &tables {
        database.run(&format!(
            "CREATE VIEW DB.{table} AS SELECT number % 5 AS id, now() AS ts FROM numbers(10) \
             WHERE sleep(1) = 0"
        ));
    }
    let keys = "key: [id], time: ts, windows: [1h], interval: 1s, stale_after: 1h";
    let of_all: Vec<_> = tables.iter().map(|table| (&**table, keys)).collect();
    let exporter = Exporter::start(&format!("clickhouse:\n{}", database.tables("ch", &of_all)));
    let running = format!(
        "SELECT query FROM system.processes WHERE query_id LIKE 'dup_exporter-%' \
         AND query LIKE '%FROM `{}`.%'",
        database.name
    );
    let mut most = 0;
    wait_for("two polls of each", || {
        let queries = server.run(&running);
        let queries: Vec<_> = queries.lines().collect();
        most = most.max(queries.len());
        assert!(queries.len() <= 2, "{queries:?}");
        for table in &tables {
            let own = queries.iter().filter(|query| query.contains(&**table));
            assert!(own.count() <= 1, "{queries:?}");
        }
        let polls = exporter.scrape().all("dup_check_polls_total");
        polls.values().all(|polls| *polls >= 2.0).then_some(())
    });
    assert_eq!(most, 2, "it was worth looking");
    drop(exporter);
    database.server = server;
}
