//! The command line of the program.

use std::net::TcpListener;
use std::time::Duration;

use crate::program::{Hanging, Program, command, run};
use crate::support::{get, root, wait_for};

#[test]
fn the_version_is_that_of_the_package() {
    let (status, stdout, stderr) = run(&mut command(&["--version"]));
    let expected = format!("dup_exporter {}\n", env!("CARGO_PKG_VERSION"));
    assert_eq!((status, stdout, stderr), (Some(0), expected, String::new()));
}

#[test]
fn help_lists_every_flag_with_its_default() {
    let (status, stdout, _) = run(&mut command(&["--help"]));
    assert_eq!(status, Some(0));
    insta::assert_snapshot!(stdout);
}

#[test]
fn an_unknown_flag_is_refused() {
    let (status, _, stderr) = run(&mut command(&["--web.listen", ":9977"]));
    assert_eq!(status, Some(2));
    assert!(stderr.contains("'--web.listen'"), "{stderr}");
}

#[test]
fn config_check_accepts_a_valid_file_and_listens_nowhere() {
    let file = root().join("tests/fixtures/config/valid/minimal.yml");
    let (status, stdout, stderr) = run(command(&["--config.check", "--config.file"]).arg(&file));
    assert_eq!(status, Some(0));
    assert_eq!(stdout, "");
    assert_eq!(stderr, format!("{}: valid\n", file.display()));
}

#[test]
fn a_refused_file_is_named_with_line_and_column() {
    let file = root().join("tests/fixtures/config/invalid/unknown_key_table.yml");
    for check in [&["--config.check", "--config.file"][..], &["--config.file"]] {
        let (status, stdout, stderr) = run(command(check).arg(&file));
        assert_eq!(status, Some(1));
        assert_eq!(stdout, "");
        let start = format!("dup_exporter: {}:9:9: unknown key", file.display());
        assert!(stderr.starts_with(&start), "{stderr}");
    }
}

#[test]
fn a_missing_file_is_named() {
    let flags = ["--config.check", "--config.file=no/such.yml"];
    let (status, _, stderr) = run(&mut command(&flags));
    assert_eq!(status, Some(1));
    let start = "dup_exporter: no/such.yml: can't be read";
    assert!(stderr.starts_with(start), "{stderr}");
}

#[test]
fn another_telemetry_path_is_served_in_place_of_the_usual_one() {
    let hanging = Hanging::new();
    let mut program = hanging.start(&["--web.telemetry-path=/dup/metrics"]);
    let address = program.address();
    let (status, page) = get(&format!("http://{address}/dup/metrics"));
    assert_eq!(status, 200);
    assert!(page.contains("dup_exporter_build_info"), "{page}");
    assert_eq!(get(&format!("http://{address}/metrics")).0, 404);
    let (_, landing) = get(&format!("http://{address}/"));
    assert!(landing.contains("<a href=\"dup/metrics\">"), "{landing}");
}

#[test]
fn a_telemetry_path_that_can_not_be_served_is_refused() {
    for path in ["", "/", "metrics", "/-/ready", "/a b", "/{name}", "/a?b"] {
        let flag = format!("--web.telemetry-path={path}");
        let (status, _, stderr) = run(&mut command(&[&flag]));
        assert_eq!(status, Some(2), "{path}: {stderr}");
        assert!(stderr.contains("write a path like /metrics"), "{stderr}");
    }
}

#[test]
fn an_address_in_use_ends_the_program_with_its_name() {
    let hanging = Hanging::new();
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("an address").to_string();
    let mut command = command(&["--web.listen-address", &address, "--config.file"]);
    let (status, _, stderr) = run(command.arg(hanging.config()));
    assert_eq!(status, Some(1));
    let expected = format!("dup_exporter: can't listen on {address}: Address already in use");
    assert!(stderr.starts_with(&expected), "{stderr}");
}

#[test]
fn messages_are_logfmt_unless_asked_for_as_json() {
    let hanging = Hanging::new();
    let mut program = hanging.start(&[]);
    let line = program.logged("listening");
    assert!(line.contains("level=info"), "{line}");
    assert!(line.contains("checks=2"), "{line}");

    let mut program = hanging.start(&["--log.format=json", "--log.level=debug"]);
    program.logged("listening");
    program.logged("SELECT");
    program.stop("-TERM");
    let rest = program.rest();
    program.seen.extend(rest);
    assert!(program.seen.len() > 2, "{:?}", program.seen);
    for line in &program.seen {
        let message: serde_json::Value = serde_json::from_str(line).expect("a line of JSON");
        assert!(message["level"].is_string(), "{line}");
        assert!(message["fields"]["message"].is_string(), "{line}");
    }
}

#[test]
fn less_is_logged_at_a_higher_level() {
    let hanging = Hanging::new();
    let config = hanging.config();
    let mut program = hanging.start(&["--log.level=debug"]);
    program.logged("level=debug");
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("an address").to_string();
    drop(taken);
    let flags = ["--log.level=error", "--web.listen-address", &address];
    let mut quiet = Program::spawn(command(&flags).arg("--config.file").arg(config));
    wait_for("the page of a quiet program", || {
        std::net::TcpStream::connect(&address).ok()
    });
    assert!(quiet.stop("-TERM").0.success());
    assert_eq!(quiet.rest(), [""; 0], "nothing was worth an error");
}

#[test]
fn a_signal_ends_it_within_a_second_whatever_hangs() {
    let hanging = Hanging::new();
    for signal in ["-TERM", "-INT"] {
        let mut program = hanging.start(&["--log.level=debug"]);
        let address = program.address();
        // A query that gets no answer, a worker that waits for its broker, and a client that never
        // ends its request.
        program.logged("SELECT");
        let mut client = std::net::TcpStream::connect(&address).expect("it listens");
        std::io::Write::write_all(&mut client, b"GET /metrics HTTP/1.1\r\n").expect("it reads");
        let (status, took) = program.stop(signal);
        assert!(status.success(), "{signal}: {status}");
        assert!(took < Duration::from_secs(1), "{signal}: {took:?}");
    }
}
