//! Every kind of group that Kafka knows, and every way to commit, on a real Kafka.

mod commits;
mod kinds;
mod members;
mod older;
mod topics;

use std::collections::BTreeMap;

use crate::groups::{COMMITTED, MEMBERLESS, MEMBERS, MOVED, states};
use crate::support::Page;

const REWINDS: &str = "dup_consumer_group_rewinds_total";
const REWOUND: &str = "dup_consumer_group_rewound_messages_total";

/// The labels that tell what kind of group it is.
fn info(page: &Page, group: &str) -> BTreeMap<String, String> {
    let all = page.all("dup_consumer_group_info");
    let mut of_group = all.into_keys().filter(|labels| labels["group"] == group);
    let labels = of_group.next();
    labels.unwrap_or_else(|| panic!("{group:?} is told: {}", page.text))
}

/// Groups that could not be read, for whatever reason.
fn unreadable(page: &Page) -> f64 {
    page.all("dup_check_unreadable").values().sum()
}

/// `(forward, rewinds, rewound)`, so far.
fn moves(page: &Page, group: &str) -> [Option<f64>; 3] {
    [MOVED, REWINDS, REWOUND].map(|name| page.get(name, &[("group", group)]))
}
