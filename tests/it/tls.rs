//! TLS to ClickHouse: whom the exporter trusts, and what it says when it does not.

use std::net::SocketAddr;
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::pki_types::PrivateKeyDer;
use tempfile::NamedTempFile;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use crate::support::{Exporter, Page, Server};

/// A TLS front of a real server, whose certificate a CA of its own signed.
struct Front {
    address: SocketAddr,
    ca_file: NamedTempFile,
    server: Server,
    _runtime: tokio::runtime::Runtime,
}

impl Front {
    /// `name` is the host that the certificate is for.
    fn new(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let ca = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new([name.to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &ca).unwrap();
        let ca_file = NamedTempFile::new().unwrap();
        std::fs::write(ca_file.path(), ca.pem()).unwrap();

        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], key)
            .unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(config));

        let server = Server::named("clickhouse-18");
        let behind = server.url.trim_start_matches("http://").to_owned();
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        runtime.spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (acceptor, behind) = (acceptor.clone(), behind.clone());
                tokio::spawn(async move {
                    let mut outside = acceptor.accept(stream).await?;
                    let mut inside = TcpStream::connect(behind).await?;
                    tokio::io::copy_bidirectional(&mut outside, &mut inside).await
                });
            }
        });
        Front {
            address,
            ca_file,
            server,
            _runtime: runtime,
        }
    }

    /// The page of an exporter that polled a table through the front. `CA` in `tls` stands for the
    /// file of the CA.
    fn poll(&self, scheme: &str, host: &str, tls: &str) -> Page {
        let database = self.server.database();
        database.run("CREATE TABLE DB.t (k UInt32, at DateTime) ENGINE = MergeTree PARTITION BY tuple() ORDER BY k");
        database.run("INSERT INTO DB.t SELECT 1, now() FROM numbers(3)");
        let front = Server {
            url: format!("{scheme}://{host}:{}", self.address.port()),
            ..self.server.clone()
        };
        let ca = self.ca_file.path().display().to_string();
        let exporter = Exporter::start(&format!(
            "clickhouse:\n{}{}    tables:\n      - {{database: {}, table: t, key: [k], time: at, \
             interval: 1s, timeout: 5s}}\n",
            front.source("ch"),
            tls.replace("CA", &ca),
            database.name
        ));
        exporter.fresh()
    }
}

/// How often polls failed for a reason.
fn failed(page: &Page, reason: &str) -> bool {
    page.get("dup_check_failures_total", &[("reason", reason)]) > Some(0.0)
}

#[test]
fn r22_a_ca_alone_is_enough() {
    let front = Front::new("localhost");
    let page = front.poll("https", "localhost", "    tls: {ca_file: CA}\n");
    assert_eq!(page.get("dup_factor", &[("window", "10m")]), Some(3.0));
}

#[test]
fn r22_a_server_name_stands_in_for_the_host() {
    let front = Front::new("clickhouse.test");
    let tls = "    tls: {ca_file: CA, server_name: clickhouse.test}\n";
    let page = front.poll("https", "localhost", tls);
    assert_eq!(page.get("dup_factor", &[("window", "10m")]), Some(3.0));
}

#[test]
fn r22_an_unknown_ca_a_wrong_host_and_a_plain_client_each_fail_for_their_reason() {
    let front = Front::new("clickhouse.test");
    let unknown = front.poll("https", "localhost", "");
    assert!(failed(&unknown, "tls"), "{}", unknown.text);
    let wrong_host = front.poll("https", "localhost", "    tls: {ca_file: CA}\n");
    assert!(failed(&wrong_host, "tls"), "{}", wrong_host.text);
    let plain = front.poll("http", "localhost", "");
    assert!(failed(&plain, "connection"), "{}", plain.text);
    for page in [unknown, wrong_host, plain] {
        assert_eq!(page.get("dup_source_up", &[]), Some(0.0));
        assert_eq!(page.get("dup_factor", &[("window", "10m")]), None);
    }
}

#[test]
fn insecure_skip_verify_takes_any_certificate() {
    let front = Front::new("clickhouse.test");
    let page = front.poll(
        "https",
        "localhost",
        "    tls: {insecure_skip_verify: true}\n",
    );
    assert_eq!(page.get("dup_factor", &[("window", "10m")]), Some(3.0));
}
