//! What the papers say of the metrics, against what the program declares.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crate::support::root;

/// Kind and labels of a metric.
type Traits = (String, Vec<String>);

fn declared() -> BTreeMap<String, Traits> {
    let families = dup_exporter::declared_metrics().into_iter();
    families
        .map(|(name, kind, labels, _)| {
            let labels = labels.iter().map(ToString::to_string).collect();
            (name.to_owned(), (kind.to_owned(), labels))
        })
        .collect()
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The rows of the tables that begin with a metric: | `name` | kind | `label`, … | words |
fn documented(markdown: &str) -> BTreeMap<String, Traits> {
    let mut metrics = BTreeMap::new();
    for line in markdown.lines().filter(|line| line.starts_with("| `dup_")) {
        let cells: Vec<_> = line.split(" | ").collect();
        let words = |cell: &str| -> Vec<String> {
            let ticked = cell.split('`').skip(1).step_by(2);
            ticked.map(str::to_owned).collect()
        };
        let [name, kind, labels, ..] = &cells[..] else {
            panic!("a row of name, kind, labels and words: {line}");
        };
        let [name] = &words(name)[..] else {
            panic!("one name: {line}");
        };
        let traits = ((*kind).to_owned(), words(labels));
        let before = metrics.insert(name.clone(), traits);
        assert!(before.is_none(), "{name} stands twice");
    }
    metrics
}

#[test]
fn docs_metrics_tells_every_metric_with_its_kind_and_labels_and_no_other() {
    let docs = read(&root().join("docs/metrics.md"));
    assert_eq!(documented(&docs), declared());
}

#[test]
fn every_help_says_something_of_its_own() {
    let mut seen = BTreeSet::new();
    for (name, _, _, help) in dup_exporter::declared_metrics() {
        assert!(help.ends_with('.'), "{name}: {help}");
        assert!(seen.insert(help), "{name}: {help}");
    }
}

/// Every word that begins with `dup_`, wherever it stands.
fn mentioned(text: &str) -> BTreeSet<&str> {
    let outside = |c: char| !c.is_ascii_alphanumeric() && c != '_';
    text.split(outside)
        .filter(|word| word.starts_with("dup_"))
        .collect()
}

/// Whether a word that begins with `dup_` is a metric, a beginning that several share, as in
/// `dup_check_*`, or a counter in the name of a recording rule, which drops `_total`.
fn is_known(word: &str, declared: &BTreeMap<String, Traits>) -> bool {
    declared.contains_key(word)
        || word == "dup_exporter"
        || ["dup_alerts", "dup_recording"].contains(&word)
        || declared.contains_key(&format!("{word}_total"))
        || (word.ends_with('_') && declared.keys().any(|name| name.starts_with(word)))
}

/// The files below a path; none when it does not exist.
fn files(path: PathBuf, found: &mut Vec<PathBuf>) {
    if path.is_file() {
        found.push(path);
    } else if let Ok(entries) = std::fs::read_dir(path) {
        for entry in entries {
            files(entry.expect("an entry of a folder").path(), found);
        }
    }
}

#[test]
fn no_paper_speaks_of_a_metric_that_does_not_exist() {
    let declared = declared();
    let mut papers = Vec::new();
    for place in [
        "README.md",
        "CONTRIBUTING.md",
        "docs",
        "examples",
        "dashboards",
        "alerts",
        "deploy",
    ] {
        files(root().join(place), &mut papers);
    }
    assert!(papers.len() >= 5, "{papers:?}");
    for paper in papers {
        for word in mentioned(&read(&paper)) {
            assert!(is_known(word, &declared), "{word} in {}", paper.display());
        }
    }
}

#[test]
fn the_readme_shows_the_metrics_that_matter() {
    let readme = read(&root().join("README.md"));
    let words = mentioned(&readme);
    for name in [
        "dup_factor",
        "dup_consumer_group_memberless_commits",
        "dup_summary_inflation_factor",
    ] {
        assert!(words.contains(name), "{name}");
    }
}
