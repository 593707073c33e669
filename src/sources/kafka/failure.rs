//! What a broker or librdkafka answers when it does not answer the question: a numeric code, and
//! what that code means to an operator.
//!
//! The codes stay plain numbers. Brokers may send codes that no list of ours has, so nothing here
//! may depend on a code being known.

use std::sync::Mutex;

use rdkafka::ClientContext;

use crate::error::{Error, Reason};

/// Local codes of librdkafka (negative) and codes of the Kafka protocol (positive) that decide
/// something here.
pub(super) mod code {
    pub const BAD_MSG: i32 = -199;
    pub const TRANSPORT: i32 = -195;
    pub const RESOLVE: i32 = -193;
    pub const ALL_BROKERS_DOWN: i32 = -187;
    pub const INVALID_ARG: i32 = -186;
    pub const TIMED_OUT: i32 = -185;
    pub const SSL: i32 = -181;
    pub const WAIT_COORD: i32 = -180;
    pub const AUTHENTICATION: i32 = -169;
    pub const TIMED_OUT_QUEUE: i32 = -166;
    pub const UNSUPPORTED_FEATURE: i32 = -165;
    pub const UNKNOWN_BROKER: i32 = -146;
    pub const DESTROY_BROKER: i32 = -137;
    pub const LEADER_NOT_AVAILABLE: i32 = 5;
    pub const NOT_LEADER: i32 = 6;
    pub const REQUEST_TIMED_OUT: i32 = 7;
    pub const BROKER_NOT_AVAILABLE: i32 = 8;
    pub const NETWORK_EXCEPTION: i32 = 13;
    pub const COORDINATOR_LOAD_IN_PROGRESS: i32 = 14;
    pub const COORDINATOR_NOT_AVAILABLE: i32 = 15;
    pub const NOT_COORDINATOR: i32 = 16;
    pub const TOPIC_AUTHORIZATION_FAILED: i32 = 29;
    pub const GROUP_AUTHORIZATION_FAILED: i32 = 30;
    pub const CLUSTER_AUTHORIZATION_FAILED: i32 = 31;
    pub const UNSUPPORTED_SASL_MECHANISM: i32 = 33;
    pub const ILLEGAL_SASL_STATE: i32 = 34;
    pub const UNSUPPORTED_VERSION: i32 = 35;
    pub const SASL_AUTHENTICATION_FAILED: i32 = 58;
}

/// An error code with the words that came with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Failure {
    pub code: i32,
    pub text: String,
}

impl Failure {
    /// Nobody answered in time.
    pub fn timed_out(text: impl Into<String>) -> Self {
        Failure {
            code: code::TIMED_OUT,
            text: text.into(),
        }
    }

    pub fn reason(&self) -> Reason {
        match self.code {
            // A peer that hangs up in the midst of a handshake, or says after its own end of it (so
            // TLS 1.3 refuses a client's certificate), is told as a lost connection.
            code::TRANSPORT if self.has_any(&["SSL handshake failed", "SSL alert"]) => Reason::Tls,
            code::TIMED_OUT | code::TIMED_OUT_QUEUE | code::REQUEST_TIMED_OUT => Reason::Timeout,
            code::TRANSPORT
            | code::RESOLVE
            | code::ALL_BROKERS_DOWN
            | code::UNKNOWN_BROKER
            | code::DESTROY_BROKER
            | code::BROKER_NOT_AVAILABLE
            | code::NETWORK_EXCEPTION => Reason::Connection,
            code::SSL => Reason::Tls,
            code::AUTHENTICATION
            | code::UNSUPPORTED_SASL_MECHANISM
            | code::ILLEGAL_SASL_STATE
            | code::SASL_AUTHENTICATION_FAILED => Reason::Auth,
            code::TOPIC_AUTHORIZATION_FAILED
            | code::GROUP_AUTHORIZATION_FAILED
            | code::CLUSTER_AUTHORIZATION_FAILED => Reason::Authorization,
            code::WAIT_COORD
            | code::COORDINATOR_LOAD_IN_PROGRESS
            | code::COORDINATOR_NOT_AVAILABLE
            | code::NOT_COORDINATOR => Reason::Coordinator,
            code::UNSUPPORTED_FEATURE | code::UNSUPPORTED_VERSION => Reason::Unsupported,
            code::BAD_MSG => Reason::Protocol,
            _ => Reason::Server,
        }
    }

    fn has_any(&self, words: &[&str]) -> bool {
        words.iter().any(|words| self.text.contains(words))
    }

    /// The words for people. librdkafka does not tell of a broker that hangs up at once, as one does
    /// that is spoken to in another protocol than that of its port.
    fn told(self) -> String {
        const ASK: &str = "does security.protocol fit this port?";
        let is_cut = self.has_any(&["Broken pipe", "Connection reset"]);
        match self.code {
            code::ALL_BROKERS_DOWN => format!("all brokers are down, and none said why: {ASK}"),
            code::TRANSPORT if is_cut => format!("{}: the broker hung up; {ASK}", self.text),
            _ => self.text,
        }
    }

    /// A coordinator on the move, or a broker that went away under the request: asking once more,
    /// of whoever coordinates the group now, may well work.
    pub fn is_passing(&self) -> bool {
        matches!(
            self.code,
            code::WAIT_COORD
                | code::COORDINATOR_LOAD_IN_PROGRESS
                | code::COORDINATOR_NOT_AVAILABLE
                | code::NOT_COORDINATOR
                | code::TRANSPORT
                | code::DESTROY_BROKER
        )
    }

    /// A leader on the move: librdkafka has forgotten it by now and will look it up again.
    pub fn is_moved_leader(&self) -> bool {
        matches!(self.code, code::LEADER_NOT_AVAILABLE | code::NOT_LEADER)
    }

    /// The answer to a question for members: there is a group of that name, but it is of another
    /// kind, such as one of Kafka Connect. librdkafka says so by a code of its own.
    pub fn is_other_kind(&self) -> bool {
        self.code == code::INVALID_ARG
    }

    pub fn into_error(self, what: &str) -> Error {
        Error::new(self.reason(), format!("{what}: {}", self.text))
    }
}

/// The most telling error event since the last good answer. When brokers can't be reached,
/// requests only time out; why they can't is told by events alone.
#[derive(Debug, Default)]
pub(super) struct Trouble(Mutex<Option<Error>>);

impl ClientContext for Trouble {}

impl Trouble {
    /// Remembers a failure, unless a more telling one is known: a refusal says more than the
    /// closed connection that often follows it, and "all brokers down" says nothing of its own.
    pub fn note(&self, failure: Failure) {
        let weight = |reason| match reason {
            Reason::Auth | Reason::Tls => 2,
            Reason::Connection => 1,
            _ => 0,
        };
        let Ok(mut last) = self.0.lock() else { return };
        let known = last.as_ref().map_or(0, |error| weight(error.reason()));
        let new = weight(failure.reason());
        let vague = failure.code == code::ALL_BROKERS_DOWN && known > 0;
        if new > 0 && new >= known && !vague {
            *last = Some(Error::new(failure.reason(), failure.told()));
        }
    }

    pub fn last(&self) -> Option<Error> {
        self.0.lock().ok()?.clone()
    }

    pub fn forget(&self) {
        if let Ok(mut last) = self.0.lock() {
            *last = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_password_is_not_forgotten_when_the_connection_closes() {
        let trouble = Trouble::default();
        for (code, text) in [
            (code::TRANSPORT, "refused"),
            (code::AUTHENTICATION, "wrong password"),
            (code::TRANSPORT, "closed"),
            (code::ALL_BROKERS_DOWN, "1/1 brokers are down"),
        ] {
            let text = text.to_owned();
            trouble.note(Failure { code, text });
        }
        let last = trouble.last().unwrap();
        assert_eq!(last.reason(), Reason::Auth);
        assert_eq!(last.to_string(), "wrong password");
        trouble.forget();
        assert_eq!(trouble.last(), None);
    }

    #[test]
    fn an_alert_after_the_handshake_is_a_matter_of_tls_and_a_lost_connection_is_not() {
        for (text, reason) in [
            (
                "Receive failed: error:0A000412:SSL routines::sslv3 alert bad certificate: SSL alert \
                 number 42 (after 0ms in state APIVERSION_QUERY)",
                Reason::Tls,
            ),
            (
                "SSL handshake failed: Disconnected: SSL connection closed by peer",
                Reason::Tls,
            ),
            (
                "Receive failed: error:0A000126:SSL routines::unexpected eof while reading",
                Reason::Connection,
            ),
            (
                "Send failed: SSL transport error: Broken pipe (after 2ms in state UP)",
                Reason::Connection,
            ),
        ] {
            let (code, text) = (code::TRANSPORT, text.to_owned());
            assert_eq!(Failure { code, text }.reason(), reason);
        }
    }

    #[test]
    fn brokers_that_hang_up_without_a_word_raise_a_question_unless_more_is_known() {
        let last = |trouble: &Trouble| trouble.last().unwrap().to_string();
        let trouble = Trouble::default();
        let down = || Failure {
            code: code::ALL_BROKERS_DOWN,
            text: "0/1 brokers are down".to_owned(),
        };
        trouble.note(down());
        assert!(last(&trouble).contains("security.protocol"));
        trouble.note(Failure {
            code: code::TRANSPORT,
            text: "Connect to ipv4#127.0.0.1:1 failed: Connection refused".to_owned(),
        });
        trouble.note(down());
        assert!(!last(&trouble).contains("security.protocol"));
    }

    #[test]
    fn a_code_that_no_list_has_is_an_error_of_the_server() {
        for code in [-1, 1, 97, 133, 9999, i32::MIN] {
            let failure = Failure {
                code,
                text: String::new(),
            };
            assert_eq!(failure.reason(), Reason::Server);
            assert!(!failure.is_passing());
        }
    }
}
