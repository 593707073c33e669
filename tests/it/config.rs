//! What a configuration may say, and the exact words for what it may not.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, channel};

use dup_exporter::Config;

use crate::program::{Program, command, run};
use crate::support::{PATIENCE, root};

/// Has what breaks when it is taken for a part of a URL or a variable, or decoded once too often.
const ODD_PASSWORD: &str = "p#a@s%s$x,y}%41";

fn fixtures(folder: &str, extension: &str) -> BTreeMap<String, PathBuf> {
    let folder = root().join("tests/fixtures/config").join(folder);
    let files = std::fs::read_dir(folder).expect("a folder of fixtures");
    files
        .map(|file| file.expect("a file").path())
        .filter(|path| path.extension().is_some_and(|e| e == extension))
        .map(|path| {
            (
                path.file_stem().expect("a name").display().to_string(),
                path,
            )
        })
        .collect()
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The words for a configuration that must be refused, with `FILE` for its name.
fn refusal(path: &Path) -> String {
    match Config::load(path) {
        Ok(_) => panic!("{} is accepted", path.display()),
        Err(error) => error
            .to_string()
            .replace(&path.display().to_string(), "FILE"),
    }
}

#[test]
fn every_refused_configuration_has_its_exact_words() {
    let configs = fixtures("invalid", "yml");
    let texts = fixtures("invalid", "txt");
    assert_eq!(
        configs.keys().collect::<Vec<_>>(),
        texts.keys().collect::<Vec<_>>(),
        "each NAME.yml stands beside its NAME.txt"
    );
    for (name, config) in &configs {
        assert_eq!(refusal(config) + "\n", read(&texts[name]), "{name}");
    }
}

#[test]
fn every_refusal_names_the_place_and_the_mend() {
    for (name, path) in fixtures("invalid", "txt") {
        let text = read(&path);
        let (place, words) = text.split_once(": ").expect("a place before the words");
        assert!(words.contains(": "), "{name} says what to write instead");
        let mut place = place.split(':');
        assert_eq!(place.next(), Some("FILE"), "{name}");
        // A file that can't be read has no line that could be named.
        if !words.starts_with("can't be read") {
            let numbers: Vec<u32> = place.map(|n| n.parse().expect("a number")).collect();
            assert_eq!(numbers.len(), 2, "{name} names line and column");
        }
    }
}

#[test]
fn r21_no_refusal_repeats_a_secret() {
    for (name, path) in fixtures("invalid", "txt") {
        assert!(!read(&path).contains("S3cr3t"), "{name}");
    }
}

#[test]
fn a_missing_file_is_refused_with_its_name() {
    assert_eq!(
        refusal(Path::new("no/such/file.yml")),
        "FILE: can't be read (No such file or directory (os error 2)): name a readable file with \
         --config.file"
    );
}

#[test]
fn every_valid_fixture_is_accepted() {
    for (name, path) in fixtures("valid", "yml") {
        if let Err(error) = Config::load(&path) {
            panic!("{name}: {error}");
        }
    }
}

#[test]
fn the_example_is_accepted() {
    let credentials = tempfile::tempdir().expect("a temporary folder");
    for name in ["kafka", "clickhouse"] {
        std::fs::write(credentials.path().join(name), "secret\n").expect("a writable folder");
    }
    let example = root().join("examples/dup_exporter.yml");
    let (status, _, stderr) = run(command(&["--config.check", "--config.file"])
        .arg(example)
        .env("CREDENTIALS_DIRECTORY", credentials.path())
        .env("CLICKHOUSE_PASSWORD", "secret"));
    assert_eq!(status, Some(0), "{stderr}");
}

#[test]
fn the_configuration_in_the_readme_is_accepted() {
    let readme = read(&root().join("README.md"));
    // The least that is useful, and what stands beside its tables.
    let blocks = readme.split("```yaml\n").skip(1);
    let blocks = blocks.filter_map(|block| block.split("```").next());
    let ours = |block: &&str| block.starts_with("kafka:") || block.starts_with("    summaries:");
    let parts: Vec<_> = blocks.filter(ours).collect();
    assert_eq!(parts.len(), 2);
    let yaml = parts.concat();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (config, secret) = (folder.path().join("c.yml"), folder.path().join("secret"));
    std::fs::write(&secret, "secret\n").expect("a writable folder");
    let yaml = yaml.replace("/run/secrets/clickhouse", &secret.display().to_string());
    std::fs::write(&config, yaml).expect("a writable folder");
    if let Err(error) = Config::load(&config) {
        panic!("{error}");
    }
}

/// The refusal of an unknown key lists the keys that are known at its place.
#[test]
fn every_key_stands_in_the_example_and_in_the_docs() {
    let example = read(&root().join("examples/dup_exporter.yml"));
    let docs = read(&root().join("docs/configuration.md"));
    let mut keys = 0;
    for (name, path) in fixtures("invalid", "txt") {
        if !name.starts_with("unknown_key_") {
            continue;
        }
        let text = read(&path);
        let (_, known) = text.split_once("write one of ").expect("a list of keys");
        for key in known.trim_end().split(", ") {
            assert!(example.contains(&format!("{key}:")), "{name}: {key}");
            assert!(docs.contains(&format!("| `{key}` |")), "{name}: {key}");
            keys += 1;
        }
    }
    assert!(keys > 50, "{keys} keys were looked for");
}

/// A server that takes requests and answers none. Each request's user and password are told.
fn listen_for_credentials() -> (u16, Receiver<(String, String)>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let (tell, told) = channel();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let lines = BufReader::new(&stream).lines().map_while(Result::ok);
            let headers: BTreeMap<String, String> = lines
                .take_while(|line| !line.is_empty())
                .filter_map(|line| {
                    let (name, value) = line.split_once(": ")?;
                    Some((name.to_lowercase(), value.to_owned()))
                })
                .collect();
            let header = |name: &str| headers.get(name).cloned().unwrap_or_default();
            let (user, key) = (header("x-clickhouse-user"), header("x-clickhouse-key"));
            let refused = "HTTP/1.1 503 Busy\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
            let answered = (&stream).write_all(refused.as_bytes());
            if answered.is_err() || tell.send((user, key)).is_err() {
                return;
            }
        }
    });
    (port, told)
}

#[test]
fn r22_an_odd_password_reaches_the_server_unchanged_however_it_is_given() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (config, secret) = (folder.path().join("c.yml"), folder.path().join("secret"));
    std::fs::write(&secret, format!("{ODD_PASSWORD}\n")).expect("a writable folder");
    let beside = "http://127.0.0.1:PORT\n    user: mon\n    ";
    for given in [
        format!("{beside}password: '{ODD_PASSWORD}'"),
        format!("{beside}password: ${{DUP_ODD_PASSWORD}}"),
        format!("{beside}password_file: {}", secret.display()),
        "http://mon:p%23a%40s%25s%24x%2Cy%7D%2541@127.0.0.1:PORT".to_owned(),
        "http://mon:${DUP_ENCODED_PASSWORD}@127.0.0.1:PORT".to_owned(),
    ] {
        let (port, told) = listen_for_credentials();
        let yaml = format!(
            "clickhouse:\n  - name: ch\n    url: {}\n    tables:\n      \
             - {{database: d, table: t, key: [k], time: ts}}\n",
            given.replace("PORT", &port.to_string())
        );
        std::fs::write(&config, yaml).expect("a writable folder");
        let flags = ["--web.listen-address=127.0.0.1:0", "--config.file"];
        let _program = Program::spawn(
            command(&flags)
                .arg(&config)
                .env("DUP_ODD_PASSWORD", ODD_PASSWORD)
                .env("DUP_ENCODED_PASSWORD", "p%23a%40s%25s%24x%2Cy%7D%2541"),
        );
        let credentials = told.recv_timeout(PATIENCE).expect("the exporter asks");
        assert_eq!(credentials, ("mon".into(), ODD_PASSWORD.into()), "{given}");
    }
}
