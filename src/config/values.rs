//! The values that a configuration is made of. Each parses itself and refuses what it can't be,
//! with words that say what to write instead; the YAML reader adds line and column.
//! No message repeats a value that may be a secret.

use std::fmt;
use std::time::Duration;

use regex::Regex;
use secrecy::SecretString;
use serde::Deserialize;
use serde::de::{self, Deserializer, SeqAccess, Visitor};

/// A string in which `${NAME}` stands for an environment variable and `$$` for a dollar.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Text(pub String);

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = String::deserialize(deserializer)?;
        expand(&raw, |name| std::env::var(name).ok())
            .map(Text)
            .map_err(de::Error::custom)
    }
}

fn expand(raw: &str, lookup: impl Fn(&str) -> Option<String>) -> Result<String, String> {
    let mut out = String::with_capacity(raw.len());
    let mut rest = raw;
    while let Some(at) = rest.find('$') {
        out.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix('$') {
            out.push('$');
            rest = after;
        } else if let Some(after) = rest.strip_prefix('{') {
            let end = after
                .find('}')
                .ok_or("`${` without `}`: write ${NAME}, or $$ for a dollar")?;
            let name = &after[..end];
            if !is_variable(name) {
                // Unnamed: it may be a piece of a password.
                return Err(
                    "what stands between ${ and } is no name of an environment variable: \
                            write ${NAME}, or $$ for a dollar"
                        .into(),
                );
            }
            let value = lookup(name).ok_or_else(|| {
                format!(
                    "environment variable `{name}` is not set: set it, or write $$ for a dollar"
                )
            })?;
            out.push_str(&value);
            rest = &after[end + 1..];
        } else {
            out.push('$');
        }
    }
    out.push_str(rest);
    Ok(out)
}

fn is_variable(name: &str) -> bool {
    let mut chars = name.chars();
    chars
        .next()
        .is_some_and(|c| c.is_ascii_alphabetic() || c == '_')
        && chars.all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// A [`Text`] that is not empty, such as the name of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Name(pub String);

impl<'de> Deserialize<'de> for Name {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Text::deserialize(deserializer)?.0 {
            text if text.is_empty() => Err(de::Error::custom("this is empty: fill it in")),
            text => Ok(Name(text)),
        }
    }
}

/// A [`Text`] that is never printed.
#[derive(Debug, Clone)]
pub struct Secret(pub SecretString);

impl<'de> Deserialize<'de> for Secret {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Text::deserialize(deserializer).map(|text| Secret(text.0.into()))
    }
}

/// A server's DateTime begins in 1970, so that a window of a century would wrap into the future.
const LONGEST_SPAN: Duration = Duration::from_secs(10 * 366 * 86_400);

/// A span of time, above zero and in whole seconds: `10m`, `1h`, `1d`.
/// Written out, it is normalised to the largest units that fit, as label values need it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span(pub Duration);

impl Span {
    /// A span of so many seconds.
    pub const fn seconds(seconds: u64) -> Self {
        Span(Duration::from_secs(seconds))
    }

    /// The span in whole seconds.
    pub fn as_secs(self) -> u64 {
        self.0.as_secs()
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.as_secs();
        for (unit, seconds) in [("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1)] {
            if rest >= seconds {
                write!(f, "{}{unit}", rest / seconds)?;
                rest %= seconds;
            }
        }
        Ok(())
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        match humantime::parse_duration(&text) {
            Ok(span) if span > LONGEST_SPAN => Err(de::Error::custom(format!(
                "`{text}` is longer than ten years: write a shorter span of time"
            ))),
            Ok(span) if span.as_secs() > 0 && span.subsec_nanos() == 0 => Ok(Span(span)),
            _ => Err(de::Error::custom(format!(
                "`{text}` is no span of time in whole seconds: write it like 30s, 10m, 1h or 1d"
            ))),
        }
    }
}

/// A number of bytes: `2GiB`, `500MB`, or plain `1048576`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bytes(pub u64);

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        match text.parse::<bytesize::ByteSize>() {
            Ok(size) if size.as_u64() > 0 => Ok(Bytes(size.as_u64())),
            _ => Err(de::Error::custom(format!(
                "`{text}` is no number of bytes: write it like 2GiB or 500MB"
            ))),
        }
    }
}

/// A regular expression, matched anywhere in a name unless anchored by `^` and `$`.
#[derive(Debug, Clone)]
pub struct Pattern(pub Regex);

impl PartialEq for Pattern {
    fn eq(&self, other: &Self) -> bool {
        self.0.as_str() == other.0.as_str()
    }
}

impl Eq for Pattern {}

impl PartialOrd for Pattern {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Pattern {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.as_str().cmp(other.0.as_str())
    }
}

impl Pattern {
    pub fn is_match(&self, name: &str) -> bool {
        self.0.is_match(name)
    }
}

impl<'de> Deserialize<'de> for Pattern {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        pattern(&String::deserialize(deserializer)?).map_err(de::Error::custom)
    }
}

/// Compiles a pattern, or says in one line what is wrong with it.
pub fn pattern(text: &str) -> Result<Pattern, String> {
    Regex::new(text).map(Pattern).map_err(|error| {
        // The regex crate draws a picture of several lines; the last one is the reason.
        let picture = error.to_string();
        let reason = picture.lines().last().unwrap_or_default().trim_start();
        let reason = reason.strip_prefix("error: ").unwrap_or(reason);
        format!(
            "`{text}` is no regular expression ({reason}): mend it, or write \\ before a sign that \
             stands for itself"
        )
    })
}

/// Names that match one of `include` and none of `exclude`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Names {
    pub include: Vec<Pattern>,
    pub exclude: Vec<Pattern>,
}

impl Default for Names {
    /// Everything but Kafka's own, which begin with two underscores.
    fn default() -> Self {
        let only = |text| pattern(text).into_iter().collect();
        Names {
            include: only(".*"),
            exclude: only("^__"),
        }
    }
}

impl Names {
    pub fn is_match(&self, name: &str) -> bool {
        let any = |patterns: &[Pattern]| patterns.iter().any(|pattern| pattern.is_match(name));
        any(&self.include) && !any(&self.exclude)
    }
}

/// The columns that make a row unique.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Key {
    /// These columns.
    Columns(Vec<String>),
    /// Whatever the table is sorted by, asked for explicitly.
    SortingKey,
}

const KEY_MEND: &str =
    "write a list of columns, like [device_id, event_id], or the word sorting_key";

impl<'de> Deserialize<'de> for Key {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct KeyVisitor;
        impl<'de> Visitor<'de> for KeyVisitor {
            type Value = Key;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a list of columns, or the word sorting_key")
            }

            fn visit_str<E: de::Error>(self, word: &str) -> Result<Key, E> {
                match word {
                    "sorting_key" => Ok(Key::SortingKey),
                    _ => Err(E::custom(format!("`{word}` is no key: {KEY_MEND}"))),
                }
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Key, A::Error> {
                let mut columns: Vec<String> = Vec::new();
                while let Some(column) = items.next_element::<String>()? {
                    if column.is_empty() {
                        return Err(de::Error::custom(format!(
                            "a column of the key is empty: {KEY_MEND}"
                        )));
                    }
                    if columns.contains(&column) {
                        return Err(de::Error::custom(format!(
                            "column `{column}` stands twice in the key: keep one"
                        )));
                    }
                    columns.push(column);
                }
                if columns.is_empty() {
                    return Err(de::Error::custom(format!(
                        "the key is empty, so every row would be a duplicate: {KEY_MEND}"
                    )));
                }
                Ok(Key::Columns(columns))
            }
        }
        deserializer.deserialize_any(KeyVisitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn env(name: &str) -> Option<String> {
        (name == "PW").then(|| "p#a@s%s$x,y}".to_owned())
    }

    #[test]
    fn only_braced_names_are_expanded_and_only_once() {
        assert_eq!(expand("${PW}", env).unwrap(), "p#a@s%s$x,y}");
        assert_eq!(expand("a${PW}b", env).unwrap(), "ap#a@s%s$x,y}b");
        assert_eq!(expand("p#a@s%s$x,y}", env).unwrap(), "p#a@s%s$x,y}");
        assert_eq!(expand("a$$b$${PW}", env).unwrap(), "a$b${PW}");
        assert_eq!(expand("^audit$", env).unwrap(), "^audit$");
    }

    #[test]
    fn an_unset_variable_is_an_error_that_names_it() {
        assert_eq!(
            expand("x${NOPE}", env).unwrap_err(),
            "environment variable `NOPE` is not set: set it, or write $$ for a dollar"
        );
        assert!(expand("x${PW", env).is_err());
    }

    #[test]
    fn spans_are_written_normalised() {
        for (seconds, text) in [
            (1, "1s"),
            (90, "1m30s"),
            (600, "10m"),
            (3_600, "1h"),
            (86_400, "1d"),
            (90_000, "1d1h"),
            (2_592_000, "30d"),
        ] {
            assert_eq!(Span::seconds(seconds).to_string(), text);
        }
    }
}
