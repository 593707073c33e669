//! What a check may say: a [`Sample`] is one number of a declared [`Family`].
//!
//! A family is a `static` beside the check that fills it, so that a metric's name, help and labels
//! are written once, in one greppable place.

use std::collections::BTreeMap;
use std::sync::Arc;

use prometheus::TextEncoder;
use prometheus::proto::{self, MetricType};

/// Whether a family's values may fall (gauge) or only rise (counter).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A value that may rise and fall.
    Gauge,
    /// A value that only rises, until the exporter restarts.
    Counter,
}

impl Kind {
    /// The word of a TYPE line.
    pub const fn as_str(self) -> &'static str {
        match self {
            Kind::Gauge => "gauge",
            Kind::Counter => "counter",
        }
    }
}

/// One metric: its name, its help text, and the names of its labels in their order.
#[derive(Debug)]
pub struct Family {
    /// As in the exposition, with the prefix `dup_`.
    pub name: &'static str,
    /// One sentence, with the unit where there is one.
    pub help: &'static str,
    /// Gauge or counter.
    pub kind: Kind,
    /// Label names; every sample gives one value for each.
    pub labels: &'static [&'static str],
}

impl Family {
    /// A family of gauges.
    pub const fn gauge(
        name: &'static str,
        labels: &'static [&'static str],
        help: &'static str,
    ) -> Self {
        Family {
            name,
            help,
            kind: Kind::Gauge,
            labels,
        }
    }

    /// A family of counters; its name ends in `_total`.
    pub const fn counter(
        name: &'static str,
        labels: &'static [&'static str],
        help: &'static str,
    ) -> Self {
        Family {
            name,
            help,
            kind: Kind::Counter,
            labels,
        }
    }

    /// A number of this family. `values` are the label values, in the order of the label names.
    pub fn sample(&'static self, values: &[&str], value: f64) -> Sample {
        debug_assert_eq!(values.len(), self.labels.len(), "labels of {}", self.name);
        Sample {
            family: self,
            labels: values.iter().map(|&v| Box::from(v)).collect(),
            value,
        }
    }
}

/// One number, with the values of its family's labels.
#[derive(Debug, Clone)]
pub struct Sample {
    /// What the number is about.
    pub family: &'static Family,
    /// One value for each label of the family; shared, since samples are handed on and on.
    pub labels: Arc<[Box<str>]>,
    /// The number itself.
    pub value: f64,
}

impl PartialEq for Sample {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self.family, other.family)
            && self.labels == other.labels
            && self.value == other.value
    }
}

/// Writes samples in text format 0.0.4, family by family: all of them at once, in the form that the
/// prometheus crate wants, would take many times the memory of the text.
///
/// # Errors
/// When the crate finds a family that can't be written, which is a bug.
pub fn encode<'a>(
    samples: impl IntoIterator<Item = &'a Sample>,
    text: &mut String,
) -> prometheus::Result<()> {
    let mut families: BTreeMap<&str, Vec<&Sample>> = BTreeMap::new();
    for sample in samples {
        families.entry(sample.family.name).or_default().push(sample);
    }
    for samples in families.values() {
        let mut family = empty_family(samples[0].family);
        family
            .mut_metric()
            .extend(samples.iter().map(|sample| metric(sample)));
        TextEncoder::new().encode_utf8(&[family], text)?;
    }
    Ok(())
}

fn empty_family(family: &Family) -> proto::MetricFamily {
    let mut proto = proto::MetricFamily::default();
    proto.set_name(family.name.into());
    proto.set_help(family.help.into());
    proto.set_field_type(match family.kind {
        Kind::Gauge => MetricType::GAUGE,
        Kind::Counter => MetricType::COUNTER,
    });
    proto
}

fn metric(sample: &Sample) -> proto::Metric {
    let pairs = sample.family.labels.iter().zip(&*sample.labels);
    let mut metric = proto::Metric::from_label(
        pairs
            .map(|(name, value)| {
                let mut pair = proto::LabelPair::default();
                pair.set_name((*name).into());
                pair.set_value(value.to_string());
                pair
            })
            .collect(),
    );
    match sample.family.kind {
        Kind::Gauge => {
            let mut gauge = proto::Gauge::default();
            gauge.set_value(sample.value);
            metric.set_gauge(gauge);
        }
        Kind::Counter => {
            let mut counter = proto::Counter::default();
            counter.set_value(sample.value);
            metric.set_counter(counter);
        }
    }
    metric
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    static TRIAL: Family = Family::gauge("dup_trial", &["group"], "A trial.");

    /// The label value of the only sample of a page, undone by the rules of text format 0.0.4.
    fn read_back(page: &str) -> String {
        let line = page.lines().find(|l| !l.starts_with('#')).unwrap();
        let start = line.find('"').unwrap() + 1;
        let mut value = String::new();
        let mut chars = line[start..].chars();
        loop {
            match chars.next().unwrap() {
                '"' => return value,
                '\\' => value.push(match chars.next().unwrap() {
                    'n' => '\n',
                    other => other,
                }),
                other => value.push(other),
            }
        }
    }

    fn page(samples: &[Sample]) -> String {
        let mut page = String::new();
        encode(samples, &mut page).unwrap();
        page
    }

    fn round_trip(value: &str) -> String {
        let page = page(&[TRIAL.sample(&[value], 1.0)]);
        assert_eq!(page.lines().count(), 3, "HELP, TYPE and one sample: {page}");
        read_back(&page)
    }

    #[test]
    fn r19_quotes_backslashes_newlines_and_any_script_round_trip() {
        for value in ["a\"b", "c\\d", "two\nlines", "группа-✓", "\\n", "\""] {
            assert_eq!(round_trip(value), value);
        }
    }

    proptest! {
        #[test]
        fn any_label_value_round_trips(value in any::<String>()) {
            prop_assert_eq!(round_trip(&value), value);
        }
    }

    #[test]
    fn samples_of_one_family_stand_together() {
        static OTHER: Family = Family::counter("dup_other_total", &[], "Another.");
        let samples = [
            TRIAL.sample(&["x"], 1.0),
            OTHER.sample(&[], 2.0),
            TRIAL.sample(&["y"], 3.5),
        ];
        assert_eq!(
            page(&samples),
            "# HELP dup_other_total Another.\n# TYPE dup_other_total counter\ndup_other_total 2\n\
             # HELP dup_trial A trial.\n# TYPE dup_trial gauge\n\
             dup_trial{group=\"x\"} 1\ndup_trial{group=\"y\"} 3.5\n"
        );
    }
}
