//! Rows as `JSONEachRow` gives them. Old servers quote 64-bit numbers and new ones do not; both
//! are read, and anything else is refused rather than guessed.

use serde_json::{Map, Value};

use crate::error::{Error, Reason};

/// One row of an answer, by column name.
#[derive(Debug, Clone, PartialEq)]
pub struct Row(Map<String, Value>);

impl Row {
    /// A count: a whole number, not below zero.
    ///
    /// # Errors
    /// `protocol`, when the column is missing or holds anything else.
    pub fn count(&self, column: &str) -> Result<u64, Error> {
        let value = self.value(column)?;
        as_count(value).ok_or_else(|| unexpected(column, "a count", value))
    }

    /// A number of any kind, such as a sum over a column of a user's choice.
    ///
    /// # Errors
    /// `protocol`, when the column is missing or holds no finite number.
    pub fn number(&self, column: &str) -> Result<f64, Error> {
        let value = self.value(column)?;
        let number = match value {
            Value::Number(number) => number.as_f64(),
            Value::String(text) => text.parse().ok(),
            _ => None,
        };
        number
            .filter(|number: &f64| number.is_finite())
            .ok_or_else(|| unexpected(column, "a number", value))
    }

    /// Lists of counts, all in one column.
    ///
    /// # Errors
    /// `protocol`, when the column is missing or holds anything else.
    pub fn lists_of_counts(&self, column: &str) -> Result<Vec<Vec<u64>>, Error> {
        let value = self.value(column)?;
        let lists = value.as_array().and_then(|lists| {
            let counts = |list: &Value| list.as_array()?.iter().map(as_count).collect();
            lists.iter().map(counts).collect()
        });
        lists.ok_or_else(|| unexpected(column, "lists of counts", value))
    }

    /// A text.
    ///
    /// # Errors
    /// `protocol`, when the column is missing or holds none.
    pub fn text(&self, column: &str) -> Result<String, Error> {
        match self.value(column)? {
            Value::String(text) => Ok(text.clone()),
            other => Err(unexpected(column, "a text", other)),
        }
    }

    fn value(&self, column: &str) -> Result<&Value, Error> {
        self.0.get(column).ok_or_else(|| {
            let message = format!("the answer has no column {column}");
            Error::new(Reason::Protocol, message)
        })
    }
}

fn as_count(value: &Value) -> Option<u64> {
    match value {
        Value::Number(number) => number.as_u64(),
        Value::String(text) => text.parse().ok(),
        _ => None,
    }
}

fn unexpected(column: &str, what: &str, value: &Value) -> Error {
    let message = format!("{column} should be {what}, but the answer says {value}");
    Error::new(Reason::Protocol, message)
}

/// The rows of a whole answer; each is a line that ends in a newline, so a cut one shows.
pub(super) fn parse(body: &[u8]) -> Result<Vec<Row>, String> {
    if !body.is_empty() && body.last() != Some(&b'\n') {
        return Err("the answer ends in the middle of a row".into());
    }
    body.split(|&byte| byte == b'\n')
        .filter(|line| !line.is_empty())
        .map(|line| match serde_json::from_slice(line) {
            Ok(Value::Object(columns)) => Ok(Row(columns)),
            Ok(_) => Err("a row of the answer is no JSON object".into()),
            Err(error) => Err(format!("a row of the answer is no JSON: {error}")),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(json: &str) -> Row {
        parse(format!("{json}\n").as_bytes()).unwrap().remove(0)
    }

    #[test]
    fn r18_counts_are_read_quoted_and_bare_and_above_two_to_the_53() {
        let row = row(r#"{"a":"7597","b":7597,"c":"18446744073709551615","d":9007199254740993}"#);
        assert_eq!(row.count("a"), Ok(7597));
        assert_eq!(row.count("b"), Ok(7597));
        assert_eq!(row.count("c"), Ok(u64::MAX));
        assert_eq!(row.count("d"), Ok(9_007_199_254_740_993));
    }

    #[test]
    fn r18_what_is_no_number_is_refused_and_never_zero() {
        let row = row(r#"{"null":null,"nan":"nan","inf":"inf","minus":-1,"half":0.5,"t":"x"}"#);
        for column in ["null", "nan", "inf", "minus", "half", "t", "missing"] {
            let error = row.count(column).unwrap_err();
            assert_eq!(error.reason(), Reason::Protocol, "{column}");
        }
        for column in ["null", "nan", "inf", "t", "missing"] {
            assert!(row.number(column).is_err(), "{column}");
        }
        assert_eq!(row.number("minus"), Ok(-1.0));
        assert_eq!(row.number("half"), Ok(0.5));
    }

    #[test]
    fn lists_of_counts_are_read_quoted_and_bare_and_refused_when_anything_else_is_in_them() {
        let row = row(r#"{"a":[[1,"2"],[]],"b":[],"c":[[1],2],"d":[["x"]],"e":[[null]]}"#);
        assert_eq!(row.lists_of_counts("a"), Ok(vec![vec![1, 2], vec![]]));
        assert_eq!(row.lists_of_counts("b"), Ok(vec![]));
        for column in ["c", "d", "e", "missing"] {
            assert!(row.lists_of_counts(column).is_err(), "{column}");
        }
    }

    #[test]
    fn a_cut_answer_is_refused() {
        assert!(parse(b"{\"a\":1}\n{\"a\":").is_err());
        assert!(parse(b"{\"a\":1}").is_err());
        assert!(parse(b"{\"a\":1\n").is_err());
        assert!(parse(b"Code: 159. DB::Exception: too slow\n").is_err());
        assert_eq!(parse(b"").unwrap(), []);
    }
}
