//! What an entry of `tables` may say.

use std::collections::BTreeSet;

use serde::Deserialize;
use serde_saphyr::Spanned;

use super::matching::{Matching, RawMatching};
use crate::checks::ages;
use crate::checks::scan::Sample;
use crate::config::values::{Key, Name, Pattern, Span};
use crate::config::{Defaults, Invalid, OwnTiming, Timing};

const DEFAULT_INTERVAL: Span = Span::seconds(300);
const DEFAULT_WINDOWS: [Span; 2] = [Span::seconds(600), Span::seconds(3_600)];

/// A table to be watched, or several of one database.
#[derive(Debug, Clone)]
pub struct Config {
    pub database: String,
    pub tables: Tables,
    pub key: Key,
    /// The column that dates a row.
    pub time: String,
    pub windows: Vec<Span>,
    pub sample: Sample,
    /// Count even where the engine says that a row is not one event.
    pub force: bool,
    pub timing: Timing,
    pub ages: Option<ages::Config>,
}

/// Which tables of the database.
#[derive(Debug, Clone)]
pub enum Tables {
    One(String),
    Matching(Matching),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawConfig {
    database: Spanned<Name>,
    table: Option<Spanned<Name>>,
    #[serde(rename = "match")]
    pattern: Option<Spanned<Pattern>>,
    engines: Option<Spanned<Vec<Name>>>,
    max_tables: Option<Spanned<usize>>,
    key: Key,
    time: Name,
    windows: Option<Spanned<Vec<Spanned<Span>>>>,
    #[serde(default = "all_keys")]
    sample: Sample,
    #[serde(default)]
    force: bool,
    interval: Option<Spanned<Span>>,
    timeout: Option<Spanned<Span>>,
    stale_after: Option<Spanned<Span>>,
    ages: Option<Spanned<Vec<Span>>>,
    ages_interval: Option<Spanned<Span>>,
    ages_sample: Option<Spanned<Sample>>,
}

fn all_keys() -> Sample {
    Sample::Of(1)
}

impl Config {
    /// Whether it is about this table, or may be, as far as a pattern of names tells.
    pub fn may_be_about(&self, database: &str, table: &str) -> bool {
        let is_named = match &self.tables {
            Tables::One(name) => name == table,
            Tables::Matching(matching) => matching.pattern.is_match(table),
        };
        self.database == database && is_named
    }
}

impl RawConfig {
    /// `seen` holds the names of the tables of the same source that were validated before.
    pub fn validate(
        self,
        defaults: &Defaults,
        seen: &mut BTreeSet<String>,
    ) -> Result<Config, Invalid> {
        let own = OwnTiming {
            interval: self.interval,
            timeout: self.timeout,
            stale_after: self.stale_after,
        };
        let timing = defaults.timing(DEFAULT_INTERVAL, own)?;
        let several = RawMatching {
            pattern: self.pattern,
            engines: self.engines,
            max_tables: self.max_tables,
        };
        let tables = match self.table {
            Some(table) => {
                several.must_be_absent()?;
                one_table(&self.database.value.0, table, seen)?
            }
            None => {
                let matching = several.validate(&self.database)?;
                let name = format!("{}/{}", self.database.value.0, matching.pattern.0);
                if !seen.insert(name) {
                    let message = format!(
                        "match {} of database {} stands here twice: keep one, with the engines of both",
                        matching.pattern.0, self.database.value.0
                    );
                    return Err(Invalid::new(&self.database, message));
                }
                Tables::Matching(matching)
            }
        };
        let ages = ages::RawConfig {
            ages: self.ages,
            interval: self.ages_interval,
            sample: self.ages_sample,
        };
        Ok(Config {
            windows: match self.windows {
                Some(windows) => validate_windows(windows, timing.interval)?,
                None => default_windows(timing.interval, &self.database)?,
            },
            ages: ages.validate(defaults, &tables)?,
            database: self.database.value.0,
            tables,
            key: self.key,
            time: self.time.0,
            sample: self.sample,
            force: self.force,
            timing,
        })
    }
}

fn one_table(
    database: &str,
    table: Spanned<Name>,
    seen: &mut BTreeSet<String>,
) -> Result<Tables, Invalid> {
    let name = &table.value.0;
    if !seen.insert(format!("{database}.{name}")) {
        let message = format!("table {database}.{name} stands here twice: keep one");
        return Err(Invalid::new(&table, message));
    }
    Ok(Tables::One(table.value.0))
}

fn default_windows<T>(interval: Span, at: &Spanned<T>) -> Result<Vec<Span>, Invalid> {
    let windows: Vec<_> = DEFAULT_WINDOWS.into_iter().filter(|w| *w >= interval).collect();
    if windows.is_empty() {
        let message = format!(
            "the default windows (10m, 1h) are shorter than the interval {interval}: set windows"
        );
        return Err(Invalid::new(at, message));
    }
    Ok(windows)
}

fn validate_windows(
    raw: Spanned<Vec<Spanned<Span>>>,
    interval: Span,
) -> Result<Vec<Span>, Invalid> {
    if raw.value.is_empty() {
        let message = "no window is named: write some, like [10m, 1h], or leave windows out";
        return Err(Invalid::new(&raw, message));
    }
    let mut windows = Vec::new();
    for window in raw.value {
        if window.value < interval {
            let message = format!(
                "window {} is shorter than the interval {interval}, so that rows between two polls \
                 would be in none: make it longer, or set a shorter interval",
                window.value
            );
            return Err(Invalid::new(&window, message));
        }
        if windows.contains(&window.value) {
            let message = format!("window {} stands here twice: keep one", window.value);
            return Err(Invalid::new(&window, message));
        }
        windows.push(window.value);
    }
    Ok(windows)
}

