//! Names and values as SQL writes them, so that whatever stands in a name is a name.

/// An identifier, in backticks.
pub fn name(identifier: &str) -> String {
    quoted(identifier, '`')
}

/// A string literal.
pub fn string(text: &str) -> String {
    quoted(text, '\'')
}

/// ClickHouse unescapes identifiers and strings alike: a backslash before the quote, before
/// itself, and for NUL, which ends a query in old servers.
fn quoted(text: &str, quote: char) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push(quote);
    for c in text.chars() {
        match c {
            '\0' => out.push_str("\\0"),
            c if c == quote || c == '\\' => out.extend(['\\', c]),
            c => out.push(c),
        }
    }
    out.push(quote);
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn quotes_and_backslashes_are_escaped() {
        assert_eq!(name("a`b"), r"`a\`b`");
        assert_eq!(name(r"a\"), r"`a\\`");
        assert_eq!(string("it's"), r"'it\'s'");
        assert_eq!(string("a`b"), "'a`b'");
        assert_eq!(string("a.b-c"), "'a.b-c'");
    }

    /// Reads a quoted text as ClickHouse does; `None` when something stands behind its end.
    fn unquote(text: &str, quote: char) -> Option<String> {
        let mut chars = text.strip_prefix(quote)?.chars();
        let mut out = String::new();
        loop {
            match chars.next()? {
                '\\' => out.push(match chars.next()? {
                    '0' => '\0',
                    c => c,
                }),
                c if c == quote => return chars.next().is_none().then_some(out),
                c => out.push(c),
            }
        }
    }

    proptest! {
        #[test]
        fn no_text_gets_out_of_its_quotes(text in any::<String>()) {
            let from_name = unquote(&name(&text), '`');
            let from_string = unquote(&string(&text), '\'');
            prop_assert_eq!(from_name.as_deref(), Some(&*text));
            prop_assert_eq!(from_string.as_deref(), Some(&*text));
        }
    }
}
