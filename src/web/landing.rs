//! The page at `/`, for people: every check with its state, the age of its data, and its last
//! error.

use std::fmt::Write;
use std::time::SystemTime;

use crate::config::values::Span;
use crate::self_metrics::{CheckHealth, Health};

const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:70rem;\
    padding:0 1rem}table{border-collapse:collapse;width:100%}th,td{text-align:left;\
    padding:.3rem .8rem;border-bottom:1px solid #ccc;vertical-align:top}\
    .up{color:#0a6640}.down{color:#b00020;font-weight:600}.wait{color:#666}";

/// The page as HTML.
pub fn page(health: &Health, telemetry_path: &str) -> String {
    let mut rows = String::new();
    for check in &health.checks {
        row(&mut rows, check);
    }
    let reload = match &*health.reload_error() {
        Some(error) => format!(
            "<p class=\"down\">The last reload failed, so the configuration before it is in use: \
             {}</p>",
            escape(error)
        ),
        None => String::new(),
    };
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>dup_exporter</title>\
         <style>{STYLE}</style></head><body><h1>dup_exporter</h1>\
         <p>Tells whether anything was processed twice, since when, how much, and by which layer. \
         Version {version}.</p>\
         <p><a href=\"{path}\">Metrics</a> · <a href=\"-/healthy\">healthy</a> · \
         <a href=\"-/ready\">ready</a></p>{reload}\
         <table><tr><th>source</th><th>check</th><th>state</th><th>data is</th><th>last poll took\
         </th><th>last error</th></tr>\n{rows}</table></body></html>\n",
        version = env!("CARGO_PKG_VERSION"),
        path = escape(telemetry_path.trim_start_matches('/')),
    )
}

fn row(out: &mut String, check: &CheckHealth) {
    let state = check.state();
    let (class, word) = match (state.polls, state.up) {
        (0, _) => ("wait", "not polled yet"),
        (_, true) => ("up", "up"),
        (_, false) => ("down", "failing"),
    };
    let age = match state.last_success {
        Some(at) => match SystemTime::now()
            .duration_since(at)
            .unwrap_or_default()
            .as_secs()
        {
            0 => "new".to_owned(),
            seconds => format!("{} old", Span::seconds(seconds)),
        },
        None => "none".to_owned(),
    };
    let took = state
        .took
        .map_or_else(String::new, |took| format!("{:.3} s", took.as_secs_f64()));
    let error = match &state.last_error {
        Some(error) => format!("{}: {error}", error.reason().as_str()),
        None => String::new(),
    };
    // Writing to a String can't fail.
    let _ = writeln!(
        out,
        "<tr><td>{}</td><td>{}</td><td class=\"{class}\">{word}</td><td>{age}</td><td>{took}</td>\
         <td>{}</td></tr>",
        escape(&check.source),
        escape(&check.check),
        escape(&error),
    );
}

/// Text as HTML shows it; names of groups and tables may hold anything.
fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::{Error, Reason};
    use crate::snapshot::Report;
    use std::sync::Mutex;
    use std::time::Duration;

    #[test]
    fn every_check_is_shown_with_its_state_and_nothing_gets_out_of_its_cell() {
        let checks: Vec<_> = ["table:a.<b>", "summary:a.c", "groups"]
            .map(|name| CheckHealth::new("logs", name, &[]))
            .into();
        let error = Error::new(Reason::Connection, "refused by <host>");
        checks[0].polled(&Err(error), Duration::from_millis(1500));
        checks[1].polled(&Ok(Report::default()), Duration::from_millis(20));
        let health = Health {
            checks,
            sources: Vec::new(),
            config_read_at: SystemTime::now(),
            reload_error: Mutex::new(Some("c.yml:1:1: no <source>".into())),
        };
        let page = page(&health, "/metrics");
        for expected in [
            "<p class=\"down\">The last reload failed, so the configuration before it is in use: \
             c.yml:1:1: no &lt;source&gt;</p>",
            "<td>table:a.&lt;b&gt;</td><td class=\"down\">failing</td><td>none</td><td>1.500 s</td>\
             <td>connection: refused by &lt;host&gt;</td>",
            "<td>summary:a.c</td><td class=\"up\">up</td><td>new</td><td>0.020 s</td><td></td>",
            "<td>groups</td><td class=\"wait\">not polled yet</td>",
            "<a href=\"metrics\">",
        ] {
            assert!(page.contains(expected), "{expected} in {page}");
        }
    }
}
