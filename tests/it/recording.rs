//! The recording rules, on paper arithmetic; by the promtool of `dev/up prometheus`.

use std::process::Command;

use crate::support::{part, root};

/// What promtool says of a file, and whether it likes it.
fn promtool(arguments: &[&str], file: &str) -> (bool, String) {
    let promtool = part("prometheus")["promtool"].as_str().expect("a path");
    let mut command = Command::new(promtool);
    let output = command
        .args(arguments)
        .arg(file)
        .current_dir(root())
        .output();
    let output = output.expect("promtool can be run");
    let words = [output.stdout, output.stderr].concat();
    (
        output.status.success(),
        String::from_utf8_lossy(&words).into_owned(),
    )
}

#[test]
fn the_recording_rules_are_well_formed() {
    let check = ["check", "rules", "--lint=all", "--lint-fatal"];
    let (good, words) = promtool(&check, "alerts/dup_recording.rules.yml");
    assert!(good, "{words}");
}

#[test]
fn the_lower_bound_of_the_factor_is_as_on_paper() {
    let (good, words) = promtool(&["test", "rules"], "tests/alerts/dup_recording.test.yml");
    assert!(good, "{words}");
}
