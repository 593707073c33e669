//! The rules, on paper arithmetic, by the promtool of `dev/up prometheus`; where their alerts go, by
//! amtool; and what hides what, by a real Alertmanager.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::support::{OwnParts, get, part, root, wait_for};

/// What a tool says, and whether it is content.
fn ask(tool: &Value, arguments: &[&str]) -> (bool, String) {
    let mut command = Command::new(tool.as_str().expect("a path"));
    let output = command.args(arguments).current_dir(root()).output();
    let output = output.expect("the tool can be run");
    let words = [output.stdout, output.stderr].concat();
    (
        output.status.success(),
        String::from_utf8_lossy(&words).into_owned(),
    )
}

fn files(folder: &str, ending: &str) -> Vec<PathBuf> {
    let folder = std::fs::read_dir(root().join(folder)).expect("a folder");
    let mut files: Vec<_> = folder.map(|file| file.expect("a file").path()).collect();
    files.retain(|file| file.display().to_string().ends_with(ending));
    assert!(files.len() >= 2, "{files:?}");
    files
}

fn promtool(arguments: &[&str], file: &Path) {
    let file = file.display().to_string();
    let arguments = [arguments, &[&*file]].concat();
    let (good, words) = ask(&part("prometheus")["promtool"], &arguments);
    assert!(good, "{words}");
}

#[test]
fn the_rules_are_well_formed() {
    for file in files("alerts", ".rules.yml") {
        promtool(&["check", "rules", "--lint=all", "--lint-fatal"], &file);
    }
}

#[test]
fn the_rules_are_as_on_paper() {
    for file in files("tests/alerts", ".test.yml") {
        promtool(&["test", "rules"], &file);
    }
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// What follows these words on a line.
fn after<'t>(text: &'t str, words: &str) -> BTreeSet<&'t str> {
    let lines = text.lines().map(|line| line.trim_start());
    lines.filter_map(|line| line.strip_prefix(words)).collect()
}

#[test]
fn every_alert_has_its_section_in_the_runbook_and_a_test() {
    let rules = read(&root().join("alerts/dup_alerts.rules.yml"));
    let runbook = read(&root().join("docs/runbook.md"));
    let alerts = after(&rules, "- alert: ");
    assert!(alerts.len() >= 20, "{alerts:?}");
    assert_eq!(after(&runbook, "### "), alerts);
    let linked = after(&rules, "runbook_url: docs/runbook.md#");
    let anchors: BTreeSet<_> = alerts.iter().map(|name| name.to_lowercase()).collect();
    assert_eq!(linked, anchors.iter().map(String::as_str).collect());
    let tests: String = files("tests/alerts", ".test.yml")
        .iter()
        .map(|file| read(file))
        .collect();
    for alert in alerts {
        assert!(tests.contains(alert), "{alert} has a test");
    }
}

const ROUTES: &str = "alerts/alertmanager.example.yml";

#[test]
fn who_is_told_follows_the_severity() {
    let own = OwnParts::start(&["alertmanager"]);
    let amtool = &own.part("alertmanager")["amtool"];
    let (good, words) = ask(amtool, &["check-config", ROUTES]);
    assert!(good, "{words}");
    let file = format!("--config.file={ROUTES}");
    for (severity, receiver) in [("critical", "pager"), ("warning", "chat"), ("info", "log")] {
        for pipeline in ["", "play"] {
            let route = [
                "config",
                "routes",
                "test",
                &file,
                &format!("--verify.receivers={receiver}"),
                "alertname=DupRowsDuplicated",
                &format!("severity={severity}"),
                &format!("pipeline={pipeline}"),
            ];
            let (good, words) = ask(amtool, &route);
            assert!(good, "{severity} of {pipeline:?}: {words}");
        }
    }
}

#[test]
fn repeats_are_hidden_and_causes_are_not() {
    let own = OwnParts::start(&["alertmanager"]);
    let url = own.part("alertmanager")["url"].as_str().expect("a URL");
    let alert = |name: &str, severity: &str, labels: &[(&str, &str)]| {
        let mut all = json!({"alertname": name, "severity": severity, "job": "d", "instance": "a"});
        for (label, value) in labels {
            all[*label] = json!(value);
        }
        json!({"labels": all})
    };
    let play = ("pipeline", "play");
    let group = [play, ("source", "main"), ("group", "g")];
    let table = [play, ("source", "logs"), ("database", "d"), ("table", "t")];
    let other = [("source", "logs"), ("database", "d"), ("table", "other")];
    let alerts = json!([
        alert("DupConsumersOutsideGroup", "critical", &group),
        alert("DupMemberlessCommits", "info", &group[1..]),
        alert(
            "DupMemberlessCommits",
            "info",
            &[group[1], ("group", "another")]
        ),
        alert("DupRowsPerMessageHigh", "warning", &[play]),
        alert("DupMoreMembersThanExpected", "warning", &group),
        alert("DupRowsDuplicated", "critical", &table),
        alert("DupRowsDuplicated", "warning", &table),
        alert("DupRowsDuplicated", "warning", &other),
        alert("DupSourceDown", "warning", &[("source", "logs")]),
        alert(
            "DupCheckFailing",
            "warning",
            &[("source", "logs"), ("check", "part_log")]
        ),
    ]);
    let sent = ureq::post(format!("{url}/api/v2/alerts"))
        .header("Content-Type", "application/json")
        .send(alerts.to_string());
    assert!(
        sent.expect("Alertmanager takes alerts")
            .status()
            .is_success()
    );
    let hidden = wait_for("all alerts, and which are hidden", || {
        let (_, answer) = get(&format!("{url}/api/v2/alerts"));
        let alerts: Vec<Value> = serde_json::from_str(&answer).expect("JSON");
        let hidden = alerts
            .iter()
            .filter(|alert| alert["status"]["state"] == "suppressed");
        let names = hidden.map(|alert| {
            let of = |label: &str| alert["labels"][label].as_str().unwrap_or("").to_owned();
            format!("{} {}", of("alertname"), of("severity"))
        });
        let names: BTreeSet<_> = names.collect();
        (alerts.len() == 10 && names.len() == 4).then_some(names)
    });
    let expected = [
        "DupCheckFailing warning",
        "DupMemberlessCommits info",
        "DupRowsDuplicated warning",
        "DupRowsPerMessageHigh warning",
    ];
    assert_eq!(hidden, expected.map(str::to_owned).into());
    let (_, shown) = get(&format!("{url}/api/v2/alerts?inhibited=false"));
    let shown: Vec<Value> = serde_json::from_str(&shown).expect("JSON");
    assert_eq!(
        shown.len(),
        6,
        "those of another group and table among them"
    );
}
