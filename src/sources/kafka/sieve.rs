//! The filter of a look, ready to use.

use regex::RegexSet;

use super::Filter;
use crate::error::{Error, Reason};

/// A [`Filter`] with its expressions compiled.
pub(super) struct Sieve {
    groups: (RegexSet, RegexSet),
    topics: (RegexSet, RegexSet),
    max_groups: usize,
}

impl Sieve {
    /// # Errors
    /// `unsupported`, when an expression is not one.
    pub fn new(filter: &Filter) -> Result<Self, Error> {
        let set = |patterns: &[String]| {
            RegexSet::new(patterns).map_err(|error| {
                Error::new(Reason::Unsupported, format!("filter of Kafka: {error}"))
            })
        };
        Ok(Sieve {
            groups: (set(&filter.groups_include)?, set(&filter.groups_exclude)?),
            topics: (set(&filter.topics_include)?, set(&filter.topics_exclude)?),
            max_groups: filter.max_groups,
        })
    }

    pub fn group(&self, name: &str) -> bool {
        self.groups.0.is_match(name) && !self.groups.1.is_match(name)
    }

    pub fn topic(&self, name: &str) -> bool {
        self.topics.0.is_match(name) && !self.topics.1.is_match(name)
    }

    pub fn max_groups(&self) -> usize {
        self.max_groups
    }
}
