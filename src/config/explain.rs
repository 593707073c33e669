//! The words for what the YAML reader refuses: what is wrong, and what to write instead. Its own
//! words are for programmers, and repeat values that may be secrets.

use serde_saphyr::granit_parser::{ErrorKind, ScanError};
use serde_saphyr::{Error, ExternalMessageSource};

/// The words for an error; its position is told apart from it.
pub(super) fn explain(error: &Error) -> String {
    match error {
        // Ours, from the types in `values`.
        Error::Message { msg, .. } => msg.clone(),
        Error::AliasError { error, .. } => explain(error),
        Error::ExternalMessage { source, .. } => match &**source {
            ExternalMessageSource::Parser(error) => explain_syntax(error).into(),
            _ => NOT_YAML.into(),
        },
        Error::SerdeUnknownField {
            field, expected, ..
        } if field.contains(':') => format!(
            // Not shown: this may be `password:` with the password.
            "unknown key with a colon in it: write a space behind the colon, or one of {}",
            expected.join(", ")
        ),
        Error::SerdeUnknownField {
            field, expected, ..
        } => format!(
            "unknown key `{field}`: write one of {}",
            expected.join(", ")
        ),
        Error::SerdeUnknownVariant {
            variant, expected, ..
        } => format!(
            "`{variant}` is not known here: write one of {}",
            expected.join(", ")
        ),
        Error::SerdeMissingField { field, .. } => {
            format!("the key `{field}` is missing beside this one: add it")
        }
        Error::DuplicateMappingKey { key: Some(key), .. } => {
            format!("the key `{key}` stands here twice: keep one")
        }
        Error::SerdeInvalidType { expected, .. } => {
            format!("this is a value of another kind: write {expected}")
        }
        Error::Unexpected { expected, .. } => explain_kind(expected).into(),
        Error::InvalidScalar { ty, .. } => explain_kind(ty).into(),
        other => explain_rare(other).into(),
    }
}

const NOT_YAML: &str = "this is not YAML: look here and on the line above for wrong indentation, \
                        or a missing quote, bracket or comma";

const ODD_YAML: &str =
    "this is more YAML than a configuration needs: write plain keys, lists and values";

fn explain_rare(error: &Error) -> &'static str {
    match error {
        Error::NullIntoString { .. } => {
            "a text is expected here, and there is nothing: write it, or leave the key out"
        }
        Error::MultipleDocuments { .. } => "a second YAML document begins here: keep one",
        Error::UnknownAnchor { .. } => {
            "this repeats a value by a name that no value above has: put &name before the value, \
             or write it out"
        }
        Error::MergeValueNotMapOrSeqOfMaps { .. } => {
            "only keys can be merged by <<: write the keys themselves"
        }
        Error::ExternallyTaggedEnumExpectedScalarOrMapping { .. }
        | Error::ExpectedStringKeyForExternallyTaggedEnum { .. }
        | Error::UnexpectedValueForUnitEnumVariant { .. } => explain_kind("string scalar"),
        _ => ODD_YAML,
    }
}

/// What was expected, by the reader's name of it.
fn explain_kind(expected: &str) -> &'static str {
    match expected {
        "mapping start" => "keys are expected here: write key: value, each on a line of its own",
        "sequence start" => {
            "a list is expected here: write [a, b], or each on a line of its own after a dash"
        }
        "string scalar" => "one value is expected here: write it without brackets, on this line",
        "boolean" => "a yes or no is expected here: write true or false",
        "floating point" => "a number is expected here: write it like 0.95",
        "u32" => "a whole number is expected here: write one from 0 to 4294967295",
        "u64" | "usize" => "a whole number is expected here: write one from 0 up",
        _ => ODD_YAML,
    }
}

fn explain_syntax(error: &ScanError) -> &'static str {
    use ErrorKind as K;
    match error.kind() {
        K::ExpectedBlockMappingKey | K::ExpectedBlockSequenceEntry | K::InvalidIndentation => {
            "this line does not fit the ones above: begin it in the column of its neighbours"
        }
        K::TabNotAllowed | K::TabInBlockIndentation | K::TabInIndentation => {
            "a tab stands here: indent with spaces"
        }
        K::InvalidTrailingSingleQuotedScalar | K::InvalidTrailingDoubleQuotedScalar => {
            "something stands after the closing quote: take it out, or move the quote"
        }
        K::UnclosedQuotedScalar => "a quote is opened here and never closed: close it",
        K::UnclosedFlowCollection { .. }
        | K::MismatchedFlowCollectionEnd { .. }
        | K::ExpectedFlowSequenceSeparator
        | K::ExpectedFlowMappingSeparator
        | K::InvalidColonPlacement => {
            "a [ or { here or before is not closed by its like, or a comma is missing: add it"
        }
        K::MappingValueNotAllowed => {
            "a colon stands inside a value: put the value in quotes, or begin a new line"
        }
        K::UnexpectedCharacter { .. } => "a value can't begin like this: put it in quotes",
        K::UnknownQuotedScalarEscape => {
            "a backslash in this text means nothing: write two of them, or use single quotes"
        }
        _ => NOT_YAML,
    }
}
