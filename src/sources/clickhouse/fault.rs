//! What a request can come to, other than rows, and the [`Reason`] that each gets.

use std::error::Error as StdError;

use crate::error::{Error, Reason};

/// ClickHouse's words are cut here; a stack trace helps nobody on a landing page.
const MAX_WORDS: usize = 400;

/// A request that brought no rows.
#[derive(Debug)]
pub(super) enum Fault {
    /// The server answered with an error of this code.
    Server { code: u32, words: String },
    /// Something answered, but not as ClickHouse does.
    Nonsense(String),
    /// No answer, or half of one.
    Network(Error),
}

impl Fault {
    pub(super) fn nonsense(words: &str) -> Self {
        Fault::Nonsense(words.into())
    }

    /// What went wrong after `body` had come.
    pub(super) fn of(error: clickhouse::error::Error, body: &[u8]) -> Self {
        match Fault::from(error) {
            Fault::Network(error) if !body.is_empty() => {
                Fault::Nonsense(format!("the answer was cut: {error}"))
            }
            fault => fault,
        }
    }

    /// 164: the user may not change settings; 452: not this one, or not so far.
    pub(super) fn refuses_settings(&self) -> bool {
        matches!(
            self,
            Fault::Server {
                code: 164 | 452,
                ..
            }
        )
    }

    /// 115: a setting that this server does not have.
    pub(super) fn is_unknown_setting(&self) -> bool {
        matches!(self, Fault::Server { code: 115, .. })
    }

    /// 209, 210, 279: the server could not talk to one that it was to ask in its turn.
    pub(super) fn is_of_another_server(&self) -> bool {
        matches!(
            self,
            Fault::Server {
                code: 209 | 210 | 279,
                ..
            }
        )
    }

    /// Whether the server is done with the query.
    pub(super) fn is_answer(&self) -> bool {
        matches!(self, Fault::Server { .. })
    }

    /// Whether the server answered and knows who we are.
    pub(super) fn let_us_in(&self) -> bool {
        match self {
            Fault::Server { code, .. } => reason_of(*code) != Reason::Auth,
            Fault::Nonsense(_) | Fault::Network(_) => false,
        }
    }

    pub(super) fn into_error(self) -> Error {
        match self {
            Fault::Server { code, words } => Error::new(reason_of(code), words),
            Fault::Nonsense(words) => Error::new(Reason::Protocol, words),
            Fault::Network(error) => error,
        }
    }
}

impl From<clickhouse::error::Error> for Fault {
    fn from(error: clickhouse::error::Error) -> Self {
        use clickhouse::error::Error as E;
        match error {
            E::BadResponse(body) => match code_of(&body) {
                Some(code) => Fault::Server {
                    code,
                    words: shorten(&body),
                },
                None => Fault::Nonsense(format!("no answer of ClickHouse: {}", shorten(&body))),
            },
            E::Network(_) => Fault::Network(network(&error)),
            other => Fault::Nonsense(shorten(&chain(&other))),
        }
    }
}

/// The reasons of `docs/metrics.md`, by the codes of ClickHouse's `ErrorCodes.cpp`.
fn reason_of(code: u32) -> Reason {
    match code {
        159 => Reason::Timeout,
        158 | 241 | 307 | 396 => Reason::Limit,
        60 | 81 => Reason::UnknownTable,
        16 | 47 => Reason::UnknownColumn,
        164 | 291 | 452 | 497 => Reason::Authorization,
        192..=195 | 516 => Reason::Auth,
        _ => Reason::Server,
    }
}

/// `Code: 60. DB::Exception: …` and `Code: 60, e.displayText() = …` both begin with the code.
fn code_of(body: &str) -> Option<u32> {
    let after = body.split_once("Code: ")?.1;
    let end = after.find(|c: char| !c.is_ascii_digit())?;
    after[..end].parse().ok()
}

fn shorten(text: &str) -> String {
    let line: Vec<_> = text.split_whitespace().collect();
    let line = line.join(" ");
    match line.char_indices().nth(MAX_WORDS) {
        Some((cut, _)) => format!("{}…", &line[..cut]),
        None => line,
    }
}

fn network(error: &(dyn StdError + 'static)) -> Error {
    let reason = if is_tls(error) {
        Reason::Tls
    } else {
        Reason::Connection
    };
    Error::new(reason, shorten(&chain(error)))
}

/// Whether TLS stands anywhere in the chain. It hides inside an I/O error, which does not name it
/// as its source.
fn is_tls(error: &(dyn StdError + 'static)) -> bool {
    if error.is::<rustls::Error>() {
        return true;
    }
    let inner = error
        .downcast_ref::<std::io::Error>()
        .and_then(std::io::Error::get_ref);
    inner.is_some_and(|inner| is_tls(inner)) || error.source().is_some_and(is_tls)
}

/// The words of an error and of what caused it, each once.
fn chain(error: &(dyn StdError + 'static)) -> String {
    let mut words = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let next = error.to_string();
        if !words.contains(&next) {
            words = format!("{words}: {next}");
        }
        cause = error.source();
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_read_from_old_and_new_servers() {
        let old = "Code: 60, e.displayText() = DB::Exception: Table a.b doesn't exist.";
        let new = "Code: 60. DB::Exception: Unknown table expression identifier 'a.b'. (UNKNOWN)";
        assert_eq!(code_of(old), Some(60));
        assert_eq!(code_of(new), Some(60));
        assert_eq!(code_of("502 Bad Gateway"), None);
    }

    #[test]
    fn every_code_of_the_docs_has_its_reason() {
        for (codes, reason) in [
            (&[159][..], Reason::Timeout),
            (&[158, 241, 307, 396], Reason::Limit),
            (&[60, 81], Reason::UnknownTable),
            (&[16, 47], Reason::UnknownColumn),
            (&[164, 291, 452, 497], Reason::Authorization),
            (&[516, 192, 193, 194, 195], Reason::Auth),
            (&[62, 999], Reason::Server),
        ] {
            for &code in codes {
                assert_eq!(reason_of(code), reason, "{code}");
            }
        }
    }

    #[test]
    fn a_proxy_that_answers_is_not_clickhouse() {
        let error = clickhouse::error::Error::BadResponse("502 Bad Gateway".into());
        let fault = Fault::from(error);
        assert!(!fault.is_answer() && !fault.let_us_in());
        assert_eq!(fault.into_error().reason(), Reason::Protocol);
    }
}
