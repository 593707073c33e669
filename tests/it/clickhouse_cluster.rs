//! Two shards of two replicas each, on real 18.16 servers with a ZooKeeper: what is counted once,
//! what twice, and what is told when some of them are gone.

use serde_json::Value;

use crate::support::{Database, Exporter, OwnParts, Page, Server, part, unique, wait_for};

// ---- What the tests stand on ----

/// The servers by shard and replica.
const REPLICAS: [&str; 4] = ["11", "12", "21", "22"];

/// A database on each server of the grid, all of the same name.
struct Grid {
    databases: [Database; 4],
}

impl Grid {
    fn of(servers: &Value) -> Self {
        let name = unique("t");
        Grid {
            databases: REPLICAS.map(|id| Server::of(&servers[id]).database_named(&name)),
        }
    }

    fn shared() -> Self {
        Grid::of(part("clickhouse-2x2"))
    }

    fn on(&self, replica: &str) -> &Database {
        let at = REPLICAS.iter().position(|id| *id == replica);
        &self.databases[at.expect("one of the four")]
    }

    fn name(&self) -> &str {
        &self.databases[0].name
    }

    fn everywhere(&self, sql: &str) {
        for database in &self.databases {
            database.run(sql);
        }
    }

    /// A table of these columns with two replicas on each shard; `engine` stands behind Replicated.
    fn create(&self, table: &str, columns: &str, engine: &str) {
        let path = format!("'/{}/{{shard}}/{table}', '{{replica}}'", self.name());
        self.everywhere(&format!(
            "CREATE TABLE DB.{table} ({columns}) ENGINE = Replicated{engine}({path}) \
             PARTITION BY tuple() ORDER BY tuple()"
        ));
    }

    /// Waits until both replicas of each shard hold the same.
    fn sync(&self, table: &str) {
        self.everywhere(&format!("SYSTEM SYNC REPLICA DB.{table}"));
    }

    /// Table `t` with the keys 0 and 1 on one shard and 1 and 2 on the other, and `spread` over it.
    fn with_a_key_on_two_shards(self) -> Self {
        self.create("t", "id UInt64, ts DateTime DEFAULT now()", "MergeTree");
        self.everywhere("CREATE TABLE DB.spread AS DB.t ENGINE = Distributed(grid, DB, t)");
        for (replica, first) in [("11", 0), ("22", 1)] {
            self.on(replica).run(&format!(
                "INSERT INTO DB.t (id) SELECT {first} + number FROM numbers(2)"
            ));
        }
        self.sync("t");
        self
    }

    /// Waits until the logs of all servers tell of so many parts of a table, written or copied.
    fn wait_for_logs(&self, table: &str, parts: [u32; 4]) {
        for (database, parts) in self.databases.iter().zip(parts) {
            wait_for("the parts in the log", || {
                let known = "SELECT count() FROM system.tables WHERE database = 'system' \
                             AND name = 'part_log'";
                let logged = format!(
                    "SELECT count() FROM system.part_log WHERE toInt8(event_type) IN (1, 3) \
                     AND database = '{}' AND table = '{table}'",
                    database.name
                );
                (database.run(known) == "1" && database.run(&logged) == parts.to_string())
                    .then_some(())
            });
        }
    }
}

const KEYS: &str = "key: [id], time: ts, windows: [1h]";

/// Rows, keys and factor of the one series of each with these labels.
fn figures(page: &Page, labels: &[(&str, &str)]) -> [Option<f64>; 3] {
    ["dup_rows", "dup_keys", "dup_factor"].map(|name| page.get(name, labels))
}

/// Total, rows of the log and their ratio.
fn ratio(page: &Page, labels: &[(&str, &str)]) -> [Option<f64>; 3] {
    [
        "dup_summary_total",
        "dup_summary_part_log_rows",
        "dup_summary_part_log_ratio",
    ]
    .map(|name| page.get(name, labels))
}

/// The summaries of a source, which count `playlog`: a table, and keys of its check.
fn summaries(database: &Database, tables: &[(&str, &str)]) -> String {
    let db = &database.name;
    let mut yaml = "    summaries:\n".to_owned();
    for (table, keys) in tables {
        yaml += &format!(
            "      - {{database: {db}, table: {table}, count: total, day: day, periods: [today], \
             min_coverage: 0, raw: {{database: {db}, table: playlog, key: [id], day: toDate(ts)}}, \
             {keys}}}\n"
        );
    }
    yaml
}

// ---- What is counted once ----

#[test]
fn each_row_of_a_cluster_counts_once_and_a_key_on_two_shards_is_a_duplicate() {
    let grid = Grid::shared().with_a_key_on_two_shards();
    let mut yaml = "clickhouse:\n".to_owned();
    for replica in REPLICAS {
        let tables = [("t", KEYS), ("spread", KEYS)];
        yaml += &grid.on(replica).tables(&format!("all-{replica}"), &tables);
        yaml += "    cluster: grid\n";
        yaml += &grid.on(replica).tables(&format!("one-{replica}"), &tables);
    }
    let page = Exporter::start(&yaml).good();
    for replica in REPLICAS {
        let seen = |source: &str, table| {
            let source = format!("{source}-{replica}");
            figures(&page, &[("source", &source), ("table", table)])
        };
        let both = [4.0, 3.0, 4.0 / 3.0].map(Some);
        assert_eq!(seen("all", "t"), both, "{replica}");
        assert_eq!(seen("all", "spread"), both, "{replica}");
        assert_eq!(seen("one", "spread"), both, "{replica}");
        assert_eq!(seen("one", "t"), [2.0, 2.0, 1.0].map(Some), "{replica}");
    }
}

#[test]
fn r03_replicas_that_stand_as_shards_are_no_duplicates_but_what_a_distributed_table_shows_is_told()
{
    let grid = Grid::shared().with_a_key_on_two_shards();
    let first = grid.on("11");
    // Whoever reads this table gets each row twice.
    first.run("CREATE TABLE DB.twice AS DB.t ENGINE = Distributed(all_replicas, DB, t)");
    let tables = first.tables("ch", &[("t", KEYS), ("twice", KEYS)]);
    let exporter = Exporter::start(&format!("clickhouse:\n{tables}    cluster: all_replicas\n"));
    exporter.assert_fails(
        &format!("table:{}.t", grid.name()),
        "unsupported",
        "replicas of it are shards of the cluster all_replicas",
    );
    let page = exporter.polled();
    assert_eq!(figures(&page, &[("table", "t")]), [None; 3]);
    let twice = figures(&page, &[("table", "twice")]);
    assert_eq!(twice, [8.0, 3.0, 8.0 / 3.0].map(Some));
}

// ---- part_log, which each server has of its own ----

/// `playlog` with 1000 rows written through each replica, of which two were rejected as known to
/// the shard, and two summaries that counted them.
fn playlog(grid: &Grid) {
    grid.create("playlog", "id UInt64, ts DateTime", "MergeTree");
    grid.create("summary", "day Date, total UInt64", "SummingMergeTree");
    grid.everywhere("CREATE TABLE DB.here (day Date, total UInt64) ENGINE = Log");
    let now = grid.on("11").run("SELECT toUnixTimestamp(now())");
    let write = |replica: &str, block: u32| {
        grid.on(replica).run(&format!(
            "INSERT INTO DB.playlog SELECT {block} * 1000 + number, toDateTime({now}) FROM numbers(1000)"
        ));
        grid.sync("playlog");
    };
    for (block, replica) in REPLICAS.iter().enumerate() {
        write(replica, block as u32);
    }
    // The same blocks again, by the other replica and by the same one.
    write("12", 0);
    write("21", 2);
    for replica in ["11", "21"] {
        grid.on(replica).run(
            "INSERT INTO DB.summary SELECT toDate(ts), count() FROM DB.playlog GROUP BY toDate(ts)",
        );
    }
    grid.on("11")
        .run("INSERT INTO DB.here SELECT toDate(toDateTime(toUnixTimestamp(now()))), 4000");
    grid.sync("summary");
    // Two of each shard were written and copied; a rejected one is logged where it was rejected.
    grid.wait_for_logs("playlog", [2, 3, 3, 2]);
}

fn keep_off_midnight(server: &Server) {
    wait_for("a while without midnight", || {
        let near = server.run("SELECT toDate(now() + 45) != toDate(now())");
        (near == "0").then_some(())
    });
}

#[test]
fn r08_what_was_written_through_any_replica_counts_once_and_what_was_copied_or_rejected_does_not() {
    let grid = Grid::shared();
    keep_off_midnight(&grid.on("11").server);
    playlog(&grid);
    let mut yaml = "clickhouse:\n".to_owned();
    for (source, replica, cluster, table, keys) in [
        ("grid", "11", "grid", "summary", "keys: exact"),
        ("other", "22", "grid", "summary", "keys: exact"),
        // It names what an old server needs anyway; the raw table itself is not read.
        ("flat", "11", "all_replicas", "here", "keys: off"),
    ] {
        let database = grid.on(replica);
        yaml += &database.server.source(source);
        yaml += &format!("    cluster: {cluster}\n");
        yaml += &summaries(database, &[(table, keys)]);
    }
    let page = Exporter::start(&yaml).good();
    for source in ["grid", "other", "flat"] {
        let seen = ratio(&page, &[("source", source)]);
        assert_eq!(seen, [4000.0, 4000.0, 1.0].map(Some), "{source}");
    }
    for source in ["grid", "other"] {
        let keys = page.get("dup_summary_keys", &[("source", source)]);
        assert_eq!(keys, Some(4000.0), "{source}");
    }
}

#[test]
fn without_a_cluster_the_figures_are_those_of_one_server() {
    let grid = Grid::shared();
    keep_off_midnight(&grid.on("11").server);
    playlog(&grid);
    let database = grid.on("12");
    let source = database.server.source("one");
    let yaml = source + &summaries(database, &[("summary", "keys: exact")]);
    let page = Exporter::start(&format!("clickhouse:\n{yaml}")).good();
    // Its shard holds 2000 rows, of which this replica wrote 1000.
    assert_eq!(ratio(&page, &[]), [2000.0, 1000.0, 2.0].map(Some));
    assert_eq!(page.get("dup_summary_keys", &[]), Some(2000.0));
}

// ---- Some are gone ----

/// The check failed, for each source, since no server of some shard could be reached.
fn assert_unreachable(exporter: &Exporter, check: &str) {
    let page = exporter.scrape();
    for source in ["lax", "ro2"] {
        let labels = [("source", source), ("check", check)];
        assert_eq!(page.get("dup_check_up", &labels), Some(0.0), "{source}");
        let connection = [labels[0], labels[1], ("reason", "connection")];
        let failures = page.get("dup_check_failures_total", &connection);
        assert!(failures > Some(0.0), "{source}: {}", exporter.row(check));
    }
    assert!(
        exporter.row(check).contains("Code: 279"),
        "{}",
        exporter.row(check)
    );
}

#[test]
fn r16_what_a_lost_replica_or_shard_knew_is_absent_and_never_counted_in_part() {
    let mut own = OwnParts::start(&["clickhouse-2x2"]);
    let grid = Grid::of(own.part("clickhouse-2x2")).with_a_key_on_two_shards();
    keep_off_midnight(&grid.on("11").server);
    playlog(&grid);
    let often = "interval: 1s, stale_after: 4s";
    // A user whose profile takes the shards that are there for the whole.
    let mut yaml = "clickhouse:\n".to_owned();
    for user in ["lax", "ro2"] {
        let seen = Database {
            server: grid
                .on("11")
                .server
                .as_user(&own.part("clickhouse-2x2")["11"][user]),
            name: grid.name().to_owned(),
        };
        yaml += &seen.tables(user, &[("t", &format!("{KEYS}, {often}"))]);
        yaml += &summaries(&seen, &[("summary", often)]);
        yaml += "    cluster: grid\n";
    }
    let exporter = Exporter::start(&yaml);
    let whole = [4.0, 3.0, 4.0 / 3.0].map(Some);
    let ratios = [4000.0, 4000.0, 1.0].map(Some);
    exporter.good();
    let sources = [[("source", "lax")], [("source", "ro2")]];
    let until = |what: &str, expected: [[Option<f64>; 3]; 2]| {
        wait_for(what, || {
            let page = exporter.scrape();
            let mut come = true;
            for labels in &sources {
                let (table, summary) = (figures(&page, labels), ratio(&page, labels));
                assert!(table == whole || table == [None; 3], "{table:?}");
                for (seen, right) in summary.iter().zip(ratios) {
                    assert!(seen.is_none() || *seen == right, "{summary:?}");
                }
                come &= [table, summary] == expected;
            }
            come.then_some(page)
        })
    };
    until("all", [whole, ratios]);

    own.kill("clickhouse-2x2.22");
    let without_log = [whole, [ratios[0], None, None]];
    until("a log that is not whole", without_log);
    assert_unreachable(&exporter, &format!("summary:{}.summary", grid.name()));

    own.kill("clickhouse-2x2.21");
    let page = until("a shard that is gone", [[None; 3]; 2]);
    assert_unreachable(&exporter, &format!("table:{}.t", grid.name()));
    let up = page.all("dup_source_up");
    assert!(up.values().all(|up| *up == 1.0), "whom we ask is there");

    own.up(&["clickhouse-2x2.21"]);
    until("the shard by its other replica", without_log);
    own.up(&["clickhouse-2x2.22"]);
    until("all again", [whole, ratios]);
}

#[test]
fn a_replica_that_lags_behind_does_not_stand_for_its_shard() {
    let mut own = OwnParts::start(&["clickhouse-2x2"]);
    let grid = Grid::of(own.part("clickhouse-2x2")).with_a_key_on_two_shards();
    // One replica of the second shard takes no parts from the other any more.
    grid.on("21").run("SYSTEM STOP FETCHES DB.t");
    grid.on("22")
        .run("INSERT INTO DB.t (id) SELECT 10 + number FROM numbers(3)");
    wait_for(
        "a lag of more than the second that the profile of lax allows",
        || {
            let lag = "SELECT absolute_delay > 1 FROM system.replicas WHERE database = '";
            (grid.on("21").run(&format!("{lag}{}'", grid.name())) == "1").then_some(())
        },
    );
    let first = grid.on("11");
    let seen = std::mem::ManuallyDrop::new(Database {
        server: first
            .server
            .as_user(&own.part("clickhouse-2x2")["11"]["lax"]),
        name: grid.name().to_owned(),
    });
    let keys = format!("{KEYS}, interval: 1s, stale_after: 4s");
    let tables = seen.tables("ch", &[("t", &keys), ("spread", &keys)]);
    let exporter = Exporter::start(&format!("clickhouse:\n{tables}    cluster: grid\n"));
    let whole = [7.0, 6.0, 7.0 / 6.0].map(Some);
    let page = exporter.fresh();
    for table in ["t", "spread"] {
        assert_eq!(
            figures(&page, &[("table", table)]),
            whole,
            "{table}: by the other replica"
        );
    }
    own.kill("clickhouse-2x2.22");
    wait_for("the end of the figures", || {
        let page = exporter.scrape();
        ["t", "spread"]
            .map(|table| figures(&page, &[("table", table)]))
            .map(|seen| {
                assert!(seen == whole || seen == [None; 3], "{seen:?}");
                seen == [None; 3]
            })
            .iter()
            .all(|gone| *gone)
            .then_some(())
    });
    exporter.assert_fails(&format!("table:{}.t", grid.name()), "server", "Code: 369");
    own.up(&["clickhouse-2x2"]);
    wait_for("the figures again", || {
        let page = exporter.scrape();
        (figures(&page, &[("table", "t")]) == whole).then_some(())
    });
}

#[test]
fn copies_on_two_shards_are_never_healed_and_those_of_one_are() {
    let grid = Grid::shared();
    let settings = "SETTINGS max_bytes_to_merge_at_max_space_in_pool = 1, \
                    max_bytes_to_merge_at_min_space_in_pool = 1";
    let path = format!("'/{}/{{shard}}/r', '{{replica}}'", grid.name());
    grid.everywhere(&format!(
        "CREATE TABLE DB.r (id UInt64, n UInt8, ts DateTime DEFAULT now()) \
         ENGINE = ReplicatedReplacingMergeTree({path}) PARTITION BY tuple() ORDER BY id {settings}"
    ));
    // The keys 0 to 9 twice on the first shard, and 5 to 9 once more on the second.
    for (replica, n, keys) in [
        ("11", 1, "numbers(10)"),
        ("12", 2, "numbers(10)"),
        ("22", 1, "numbers(5)"),
    ] {
        let first = if replica == "22" { 5 } else { 0 };
        grid.on(replica).run(&format!(
            "INSERT INTO DB.r (id, n) SELECT {first} + number, {n} FROM {keys}"
        ));
    }
    grid.sync("r");
    let tables = grid
        .on("21")
        .tables("ch", &[("r", &format!("{KEYS}, interval: 1s"))]);
    let exporter = Exporter::start(&format!("clickhouse:\n{tables}    cluster: grid\n"));
    let seen = |page: &Page| {
        ["dup_rows", "dup_keys", "dup_unhealable_rows"]
            .map(|name| page.get(name, &[("table", "r")]))
    };
    assert_eq!(seen(&exporter.good()), [25.0, 10.0, 5.0].map(Some));
    // What is left when each shard has merged all that it has.
    for database in &grid.databases {
        let leads = format!(
            "SELECT is_leader FROM system.replicas WHERE database = '{}' AND table = 'r'",
            grid.name()
        );
        if database.run(&leads) == "1" {
            database.run("OPTIMIZE TABLE DB.r FINAL");
        }
    }
    grid.sync("r");
    assert_eq!(seen(&exporter.fresh()), [15.0, 10.0, 5.0].map(Some));
}

#[test]
fn what_both_replicas_log_of_a_merge_is_healed_once_and_each_shard_heals_its_own() {
    let grid = Grid::shared();
    let settings = "SETTINGS max_bytes_to_merge_at_max_space_in_pool = 1, \
                    max_bytes_to_merge_at_min_space_in_pool = 1";
    let path = format!("'/{}/{{shard}}/r', '{{replica}}'", grid.name());
    grid.everywhere(&format!(
        "CREATE TABLE DB.r (id UInt64, n UInt8) ENGINE = ReplicatedReplacingMergeTree({path}) \
         PARTITION BY tuple() ORDER BY id {settings}"
    ));
    let sources = [
        ("grid", "11", "grid"),
        ("other", "22", "grid"),
        ("flat", "12", "all_replicas"),
    ];
    let mut yaml = "clickhouse:\n".to_owned();
    for (source, replica, cluster) in sources {
        yaml += &grid.on(replica).server.source_with_part_log(source);
        yaml += &format!(
            "    cluster: {cluster}\n    part_log: {{include: ['^{}[.]'], interval: 1s, timeout: 50s}}\n",
            grid.name()
        );
    }
    yaml += &grid.on("11").server.source_with_part_log("alone");
    yaml += &format!(
        "    part_log: {{include: ['^{}[.]'], interval: 1s, timeout: 50s}}\n",
        grid.name()
    );
    // Before the first part there is no log.
    let write = |replica: &str, n: u8, keys: u8| {
        grid.on(replica).run(&format!(
            "INSERT INTO DB.r SELECT number, {n} FROM numbers({keys})"
        ));
        grid.sync("r");
    };
    for replica in REPLICAS {
        let database = grid.on(replica);
        database.run("CREATE TABLE DB.any (id UInt8) ENGINE = MergeTree ORDER BY id");
        database.run("INSERT INTO DB.any SELECT 1");
    }
    grid.wait_for_logs("any", [1; 4]);
    let exporter = Exporter::start(&yaml);
    exporter.good();
    write("11", 1, 10);
    write("12", 2, 10);
    write("21", 1, 5);
    write("22", 2, 5);
    // The same block by the other replica.
    write("12", 1, 10);
    for database in &grid.databases {
        let leads = format!(
            "SELECT is_leader FROM system.replicas WHERE database = '{}' AND table = 'r'",
            grid.name()
        );
        if database.run(&leads) == "1" {
            database.run("OPTIMIZE TABLE DB.r FINAL");
        }
    }
    grid.sync("r");
    for database in &grid.databases {
        wait_for("the merge in the log of every replica", || {
            let merges = format!(
                "SELECT count() FROM system.part_log WHERE toInt8(event_type) = 2 \
                 AND database = '{}' AND table = 'r'",
                grid.name()
            );
            (database.run(&merges) != "0").then_some(())
        });
    }
    let page = exporter.fresh();
    for (source, ..) in sources {
        let seen = ["written", "deduplicated", "failed", "healed"].map(|count| {
            let labels = [("source", source), ("table", "r")];
            page.get(&format!("dup_table_{count}_rows_total"), &labels)
        });
        assert_eq!(seen, [30.0, 10.0, 0.0, 15.0].map(Some), "{source}");
    }
    // One replica merges what was inserted through both, but logs its own inserts alone.
    let alone = |count| {
        let labels = [("source", "alone"), ("table", "r")];
        page.get(&format!("dup_table_{count}_rows_total"), &labels)
    };
    assert_eq!((alone("written"), alone("healed")), (Some(10.0), None));
}
