//! Kafka that asks who one is, and shows each user what its ACLs allow.
//!
//! The groups are made by the administrator, who has a listener without a login. The exporter logs in
//! by the other listeners. Where ACLs matter, it is a user of the test's own: an unsecured token of
//! OAUTHBEARER may name anybody.

use std::fmt::Write;
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use serde_json::Value;

use crate::kafka::{Cluster, is_real};
use crate::program::{Program, command};
use crate::support::{Exporter, Page, get, part, wait_for};

const BROKER: &str = "kafka-secure";
const MEMBERS: &str = "dup_consumer_group_members";
const COMMITTED: &str = "dup_consumer_group_committed_offset";
const MEMBERLESS: &str = "dup_consumer_group_memberless_commits";

/// Of every source here, in seconds.
const TIMEOUT: f64 = 20.0;

// ---- The broker ----

/// What `dev/up` says of the broker, by its name there.
fn at(what: &str) -> &'static str {
    part(BROKER)[what].as_str().expect("a text")
}

fn password(user: &str) -> &'static str {
    part(BROKER)["users"][user].as_str().expect("a password")
}

fn administrator() -> Cluster {
    Cluster::at(at("bootstrap"))
}

/// Adds (`--add`) or removes (`--remove`) rights of a user.
fn acl(change: &str, user: &str, rights: &[&str]) {
    let changed = Command::new(at("java"))
        .args(["-Xmx64m", "-XX:TieredStopAtLevel=1", "-cp", at("classpath")])
        .args(["org.apache.kafka.tools.AclCommand", "--bootstrap-server"])
        .args([at("bootstrap"), change, "--force", "--allow-principal"])
        .arg(format!("User:{user}"))
        .args(["--operation", "Describe"])
        .args(rights)
        .stdin(Stdio::null())
        .output()
        .expect("Kafka's tool can be run");
    let words = String::from_utf8_lossy(&changed.stdout);
    assert!(changed.status.success(), "{rights:?}: {words}");
}

/// A group that every user may see, with ten messages committed.
fn open_group() -> &'static str {
    static GROUP: OnceLock<String> = OnceLock::new();
    GROUP.get_or_init(|| {
        let cluster = administrator();
        let topic = cluster.topic("t", 1, 10);
        let group = cluster.name("open");
        cluster.commit(&group, &topic, &[(0, 10)]);
        acl("--add", "*", &["--group", &group, "--topic", &topic]);
        group
    })
}

// ---- The exporter ----

type Properties = Vec<(&'static str, String)>;

/// A source that watches the groups which match, by one of the broker's listeners.
fn source(name: &str, listener: &str, groups: &str, properties: &Properties) -> String {
    let mut yaml = format!(
        "  - name: {name}\n    bootstrap_servers: {}\n    interval: 1s\n    timeout: {TIMEOUT}s\n    \
         stale_after: 10s\n    groups: {{include: ['^{groups}']}}\n    properties:\n      \
         client.id: test\n",
        at(listener)
    );
    for (property, value) in properties {
        writeln!(yaml, "      {property}: {}", Value::from(value.as_str())).expect("a string");
    }
    yaml
}

fn sasl(protocol: &str, mechanism: &str, user: &str, password: &str) -> Properties {
    vec![
        ("security.protocol", protocol.to_owned()),
        ("sasl.mechanism", mechanism.to_owned()),
        ("sasl.username", user.to_owned()),
        ("sasl.password", password.to_owned()),
    ]
}

fn token(user: &str) -> Properties {
    vec![
        ("security.protocol", "SASL_PLAINTEXT".to_owned()),
        ("sasl.mechanism", "OAUTHBEARER".to_owned()),
        ("enable.sasl.oauthbearer.unsecure.jwt", "true".to_owned()),
        ("sasl.oauthbearer.config", format!("principal={user}")),
    ]
}

/// These properties, and files of the broker's.
fn with(mut properties: Properties, files: &[(&'static str, &str)]) -> Properties {
    let files = files
        .iter()
        .map(|(name, file)| (*name, at(file).to_owned()));
    properties.extend(files);
    properties
}

fn tls(files: &[(&'static str, &str)]) -> Properties {
    with(vec![("security.protocol", "SSL".to_owned())], files)
}

const CA: (&str, &str) = ("ssl.ca.location", "ca");

/// An exporter whose sources each watch the open group.
fn watch_open(sources: &[(&str, &str, Properties)]) -> Exporter {
    let group = open_group();
    let sources = sources
        .iter()
        .map(|(name, listener, properties)| source(name, listener, group, properties));
    Exporter::start(&format!("kafka:\n{}", sources.collect::<String>()))
}

/// The page comes to say of this source what is true of the open group.
fn assert_sees(scrape: impl Fn() -> Page, source: &str) {
    let of_group = [("source", source), ("group", open_group())];
    let page = wait_for(&format!("{source} sees the group"), || {
        let page = scrape();
        let up = page.get("dup_check_up", &[("source", source)]) == Some(1.0);
        up.then_some(page)
    });
    assert_eq!(page.get(COMMITTED, &of_group), Some(10.0), "{source}");
    assert_eq!(page.get(MEMBERS, &of_group), Some(0.0), "{source}");
}

/// Polls of this source fail in time, for this reason, in words that hold these; nothing is shown of
/// its groups.
fn assert_refused(exporter: &Exporter, source: &str, reason: &str, words: &str) {
    let row = wait_for(&format!("{source}: {reason}: {words}"), || {
        let row = exporter.row(source);
        let refused = row.contains(&format!("<td>{reason}: ")) && row.contains(words);
        refused.then_some(row)
    });
    let page = exporter.scrape();
    let of_source = [("source", source)];
    assert_eq!(page.get("dup_check_up", &of_source), Some(0.0), "{row}");
    let took = page.get("dup_check_duration_seconds", &of_source);
    let took = took.expect("a poll");
    assert!(took < TIMEOUT + 2.0, "{took} s: {row}");
    let failures = page.all("dup_check_failures_total");
    for (labels, count) in failures.iter().filter(|(l, _)| l["source"] == source) {
        // A poll that waits to its very end may be late for it on a busy machine.
        let told = [reason, "worker", "timeout"].contains(&&*labels["reason"]);
        assert!(told || *count == 0.0, "{labels:?}: {row}");
    }
    let figures = page.all(MEMBERS);
    assert!(!figures.keys().any(|l| l["source"] == source), "{source}");
}

// ---- Logging in ----

#[test]
fn r22_every_mechanism_with_the_right_password_sees_the_groups() {
    if !is_real(
        BROKER,
        "r22_every_mechanism_with_the_right_password_sees_the_groups",
    ) {
        return;
    }
    let right = |mechanism| sasl("SASL_PLAINTEXT", mechanism, "mon", password("mon"));
    let exporter = watch_open(&[
        ("scram-512", "sasl", right("SCRAM-SHA-512")),
        ("scram-256", "sasl", right("SCRAM-SHA-256")),
        ("plain", "sasl", right("PLAIN")),
        ("token", "sasl", token("anybody")),
    ]);
    for source in ["scram-512", "scram-256", "plain", "token"] {
        assert_sees(|| exporter.scrape(), source);
    }
}

#[test]
fn r22_a_login_that_the_broker_refuses_is_a_failure_of_auth_and_shows_nothing() {
    if !is_real(
        BROKER,
        "r22_a_login_that_the_broker_refuses_is_a_failure_of_auth_and_shows_nothing",
    ) {
        return;
    }
    let wrong = |mechanism, user| sasl("SASL_PLAINTEXT", mechanism, user, "wrong");
    let plain = sasl("SASL_SSL", "PLAIN", "mon", password("mon"));
    let scram = sasl("SASL_PLAINTEXT", "SCRAM-SHA-512", "mon", password("mon"));
    let exporter = watch_open(&[
        ("wrong-scram", "sasl", wrong("SCRAM-SHA-512", "mon")),
        ("wrong-user", "sasl", wrong("SCRAM-SHA-256", "nobody")),
        ("wrong-plain", "sasl", wrong("PLAIN", "mon")),
        // This listener knows SCRAM-SHA-512 alone, and this one knows no login at all.
        ("wrong-mechanism", "sasl_ssl", with(plain, &[CA])),
        ("no-login", "bootstrap", scram),
    ]);
    for (source, words) in [
        (
            "wrong-scram",
            "invalid credentials with SASL mechanism SCRAM-SHA-512",
        ),
        (
            "wrong-user",
            "invalid credentials with SASL mechanism SCRAM-SHA-256",
        ),
        ("wrong-plain", "Invalid username or password"),
        ("wrong-mechanism", "supported mechanisms: SCRAM-SHA-512"),
        ("no-login", "SASL SCRAM-SHA-512 mechanism handshake failed"),
    ] {
        assert_refused(&exporter, source, "auth", words);
    }
}

#[test]
fn r22_an_odd_password_reaches_kafka_unchanged_however_it_is_given() {
    if !is_real(
        BROKER,
        "r22_an_odd_password_reaches_kafka_unchanged_however_it_is_given",
    ) {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (config, secret) = (folder.path().join("c.yml"), folder.path().join("secret"));
    std::fs::write(&secret, format!("{}\n", password("odd"))).expect("a writable folder");
    let mut yaml = "kafka:\n".to_owned();
    let mut sources = vec![];
    for mechanism in ["PLAIN", "SCRAM-SHA-512"] {
        let in_place = sasl("SASL_PLAINTEXT", mechanism, "odd", password("odd"));
        let by_env = sasl("SASL_PLAINTEXT", mechanism, "odd", "${DUP_ODD_PASSWORD}");
        let mut by_file = in_place.clone();
        by_file[3] = ("sasl.password_file", secret.display().to_string());
        for (way, properties) in [("place", in_place), ("env", by_env), ("file", by_file)] {
            let name = format!("{way}-{mechanism}");
            yaml += &source(&name, "sasl", open_group(), &properties);
            sources.push(name);
        }
    }
    std::fs::write(&config, yaml).expect("a writable folder");
    let flags = ["--web.listen-address=127.0.0.1:0", "--config.file"];
    let mut program = Program::spawn(
        command(&flags)
            .arg(&config)
            .env("DUP_ODD_PASSWORD", password("odd")),
    );
    let address = program.address();
    let scrape = || Page::parse(&get(&format!("http://{address}/metrics")).1);
    for source in sources {
        assert_sees(scrape, &source);
    }
}

// ---- TLS ----

#[test]
fn r22_a_ca_alone_is_enough_for_kafka_and_a_certificate_logs_in() {
    if !is_real(
        BROKER,
        "r22_a_ca_alone_is_enough_for_kafka_and_a_certificate_logs_in",
    ) {
        return;
    }
    let scram = || sasl("SASL_SSL", "SCRAM-SHA-512", "mon", password("mon"));
    let mut trusting = scram();
    trusting.push(("enable.ssl.certificate.verification", "false".to_owned()));
    let exporter = watch_open(&[
        ("ca", "sasl_ssl", with(scram(), &[CA])),
        ("trusting", "sasl_ssl", trusting),
        (
            "certificate",
            "ssl",
            tls(&[
                CA,
                ("ssl.certificate.location", "client"),
                ("ssl.key.location", "client_key"),
            ]),
        ),
        // The contents of a file in place of its name.
        (
            "pem",
            "ssl",
            tls(&[
                ("ssl.ca.pem_file", "ca"),
                ("ssl.certificate.pem_file", "client"),
                ("ssl.key.pem_file", "client_key"),
            ]),
        ),
    ]);
    for source in ["ca", "trusting", "certificate", "pem"] {
        assert_sees(|| exporter.scrape(), source);
    }
}

#[test]
fn r22_each_fault_of_tls_is_told_as_such_and_shows_nothing() {
    if !is_real(
        BROKER,
        "r22_each_fault_of_tls_is_told_as_such_and_shows_nothing",
    ) {
        return;
    }
    let scram = |protocol| sasl(protocol, "SCRAM-SHA-512", "mon", password("mon"));
    let foreign = tls(&[
        CA,
        ("ssl.certificate.location", "foreign"),
        ("ssl.key.location", "foreign_key"),
    ]);
    let other_ca = [("ssl.ca.location", "foreign_ca")];
    let exporter = watch_open(&[
        ("system-ca", "sasl_ssl", scram("SASL_SSL")),
        ("other-ca", "sasl_ssl", with(scram("SASL_SSL"), &other_ca)),
        ("no-certificate", "ssl", tls(&[CA])),
        ("other-certificate", "ssl", foreign),
        ("tls-to-plain", "bootstrap", tls(&[CA])),
        ("plain-to-tls", "ssl", vec![]),
        ("sasl-to-tls", "sasl_ssl", scram("SASL_PLAINTEXT")),
        ("plain-to-sasl", "sasl", vec![]),
    ]);
    for (source, reason, words) in [
        (
            "system-ca",
            "tls",
            "broker certificate could not be verified",
        ),
        (
            "other-ca",
            "tls",
            "broker certificate could not be verified",
        ),
        ("no-certificate", "tls", "bad certificate"),
        ("other-certificate", "tls", "bad certificate"),
        (
            "tls-to-plain",
            "tls",
            "connecting to a PLAINTEXT broker listener?",
        ),
        // The broker hangs up on what it can't read, and says nothing.
        (
            "plain-to-tls",
            "connection",
            "does security.protocol fit this port?",
        ),
        (
            "sasl-to-tls",
            "connection",
            "does security.protocol fit this port?",
        ),
        (
            "plain-to-sasl",
            "connection",
            "does security.protocol fit this port?",
        ),
    ] {
        assert_refused(&exporter, source, reason, words);
    }
}

// ---- ACLs ----

/// An exporter that logs in as this user and watches the groups of this test.
fn watch_as(user: &str, cluster: &Cluster) -> Exporter {
    let source = source("main", "sasl", &cluster.prefix, &token(user));
    Exporter::start(&format!("kafka:\n{source}"))
}

fn unreadable(page: &Page) -> Option<f64> {
    page.get("dup_check_unreadable", &[("reason", "authorization")])
}

#[test]
fn r13_groups_that_the_user_may_not_describe_are_not_listed() {
    if !is_real(
        BROKER,
        "r13_groups_that_the_user_may_not_describe_are_not_listed",
    ) {
        return;
    }
    let cluster = administrator();
    let (seen, hidden) = (cluster.name("seen"), cluster.name("hidden"));
    let topic = cluster.topic("t", 1, 10);
    cluster.commit(&seen, &topic, &[(0, 4)]);
    cluster.commit(&hidden, &topic, &[(0, 4)]);
    let user = cluster.name("user");
    acl("--add", &user, &["--group", &seen, "--topic", &topic]);

    let exporter = watch_as(&user, &cluster);
    exporter.good();
    let page = exporter.fresh();
    let of_group = [("group", &*seen)];
    assert_eq!(page.get(MEMBERS, &of_group), Some(0.0));
    assert_eq!(page.get(COMMITTED, &of_group), Some(4.0));
    assert_eq!(page.get("dup_consumer_group_lag", &of_group), Some(6.0));
    assert_eq!(page.get(MEMBERLESS, &of_group), Some(0.0));
    assert_eq!(unreadable(&page), None);
    assert!(!page.text.contains(&hidden), "{}", page.text);
}

#[test]
fn r13_a_group_that_becomes_hidden_is_unreadable_and_never_without_members() {
    if !is_real(
        BROKER,
        "r13_a_group_that_becomes_hidden_is_unreadable_and_never_without_members",
    ) {
        return;
    }
    let cluster = administrator();
    let (a, b) = (cluster.name("a"), cluster.name("b"));
    let topic = cluster.topic("t", 1, 10);
    let _member = cluster.member(&a, &topic, &[]);
    cluster.commit(&b, &topic, &[(0, 4)]);
    let user = cluster.name("user");
    acl(
        "--add",
        &user,
        &["--group", &a, "--group", &b, "--topic", &topic],
    );

    let exporter = watch_as(&user, &cluster);
    let page = exporter.good();
    assert_eq!(page.get(MEMBERS, &[("group", &a)]), Some(1.0));
    assert_eq!(unreadable(&page), None);

    acl("--remove", &user, &["--group", &a]);
    let page = wait_for("the group is unreadable", || {
        let page = exporter.scrape();
        (unreadable(&page) == Some(1.0)).then_some(page)
    });
    assert_eq!(
        page.get(MEMBERS, &[("group", &a)]),
        Some(1.0),
        "until stale_after"
    );
    let page = wait_for("the last figures of the group vanish", || {
        let page = exporter.scrape();
        let members = page.get(MEMBERS, &[("group", &a)]);
        assert_ne!(members, Some(0.0));
        members.is_none().then_some(page)
    });
    assert!(
        !page.text.contains(&format!("group=\"{a}\"")),
        "{}",
        page.text
    );
    assert_eq!(unreadable(&page), Some(1.0));
    assert_eq!(page.get("dup_check_up", &[]), Some(1.0), "the rest goes on");
    assert_eq!(page.get(COMMITTED, &[("group", &b)]), Some(4.0));

    acl("--add", &user, &["--group", &a]);
    wait_for("the group is back", || {
        let page = exporter.scrape();
        let members = page.get(MEMBERS, &[("group", &a)]);
        assert_ne!(members, Some(0.0));
        (members == Some(1.0) && unreadable(&page) == Some(0.0)).then_some(())
    });
}

#[test]
fn r13_a_user_without_rights_is_shown_no_group_by_kafka_and_no_error() {
    if !is_real(
        BROKER,
        "r13_a_user_without_rights_is_shown_no_group_by_kafka_and_no_error",
    ) {
        return;
    }
    let cluster = administrator();
    let (group, topic) = (cluster.name("g"), cluster.topic("t", 1, 10));
    cluster.commit(&group, &topic, &[(0, 4)]);
    let exporter = watch_as(&cluster.name("user"), &cluster);
    let page = exporter.good();
    assert_eq!(unreadable(&page), None);
    let figures: Vec<_> = (page.names().into_iter())
        .filter(|name| name.starts_with("dup_consumer_group_"))
        .collect();
    assert!(figures.is_empty(), "{figures:?}");
}

#[test]
fn r13_a_user_who_may_describe_the_cluster_alone_is_told_of_groups_that_it_can_not_read() {
    if !is_real(
        BROKER,
        "r13_a_user_who_may_describe_the_cluster_alone_is_told_of_groups_that_it_can_not_read",
    ) {
        return;
    }
    let cluster = administrator();
    let topic = cluster.topic("t", 1, 10);
    cluster.commit(&cluster.name("empty"), &topic, &[(0, 4)]);
    let _member = cluster.member(&cluster.name("member"), &topic, &[]);
    let user = cluster.name("user");
    acl("--add", &user, &["--cluster", "--topic", &topic]);
    let exporter = watch_as(&user, &cluster);
    let page = exporter.polled();
    assert_eq!(unreadable(&page), Some(2.0));
    assert!(page.all(MEMBERS).is_empty(), "{}", page.text);
    let row = exporter.row("groups");
    assert!(row.contains("Group authorization failed"), "{row}");
}

#[test]
fn r13_without_rights_on_topics_commits_are_missing_and_are_not_taken_for_none() {
    if !is_real(
        BROKER,
        "r13_without_rights_on_topics_commits_are_missing_and_are_not_taken_for_none",
    ) {
        return;
    }
    let cluster = administrator();
    let topic = cluster.topic("t", 1, 10);
    let [empty, classic, modern] = ["empty", "classic", "modern"].map(|name| cluster.name(name));
    cluster.commit(&empty, &topic, &[(0, 4)]);
    let _classic = cluster.member(&classic, &topic, &[]);
    let _modern = cluster.member(&modern, &topic, &[("group.protocol", "consumer")]);
    let user = cluster.name("user");
    let rights = [
        "--resource-pattern-type",
        "prefixed",
        "--group",
        &cluster.prefix,
    ];
    acl("--add", &user, &rights);

    let exporter = watch_as(&user, &cluster);
    exporter.polled();
    let page = exporter.fresh();
    for (group, members) in [(&empty, Some(0.0)), (&classic, Some(1.0)), (&modern, None)] {
        assert_eq!(page.get(MEMBERS, &[("group", group)]), members, "{group}");
    }
    assert!(page.all(COMMITTED).is_empty(), "{}", page.text);
    assert_eq!(
        page.get(MEMBERLESS, &[("group", &empty)]),
        None,
        "not known"
    );
    // A group of the new protocol is told as a whole, or not at all.
    assert_eq!(unreadable(&page), Some(1.0));
    let row = exporter.row("groups");
    assert!(
        row.contains("topic(s) that the client is not authorized to describe"),
        "{row}"
    );
}
