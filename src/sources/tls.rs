//! TLS for the sources that speak HTTP: whom to trust, who we are, what name to expect.

use std::fs::File;
use std::io::BufReader;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};

use crate::config::Tls;
use crate::error::{Error, Reason};

/// The client's side of TLS, as configured. `wanted` is false for a source without TLS, which needs
/// no certificates.
///
/// # Errors
/// `tls`, when a file can't be read or holds no usable certificate or key.
pub fn client_config(tls: &Tls, wanted: bool) -> Result<ClientConfig, Error> {
    let provider = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|error| Error::new(Reason::Tls, error.to_string()))?;
    let builder = if tls.insecure_skip_verify {
        builder
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(TrustAnybody(provider)))
    } else if wanted {
        builder.with_root_certificates(roots(tls.ca_file.as_deref())?)
    } else {
        builder.with_root_certificates(RootCertStore::empty())
    };
    match &tls.client {
        None => Ok(builder.with_no_client_auth()),
        Some((cert_file, key_file)) => {
            let chain = certificates(cert_file)?;
            let key = PrivateKeyDer::from_pem_file(key_file)
                .map_err(|error| unusable(key_file, &error))?;
            builder
                .with_client_auth_cert(chain, key)
                .map_err(|error| unusable(cert_file, &error))
        }
    }
}

/// The certificate authorities of the file, or the system's.
fn roots(ca_file: Option<&Path>) -> Result<RootCertStore, Error> {
    let mut roots = RootCertStore::empty();
    match ca_file {
        Some(file) => {
            for certificate in certificates(file)? {
                roots.add(certificate).map_err(|e| unusable(file, &e))?;
            }
        }
        // A system store may hold a broken entry; the good ones are used all the same. It is read
        // once for all sources, since that takes its time.
        None => {
            static SYSTEM: OnceLock<Vec<CertificateDer<'static>>> = OnceLock::new();
            let system = SYSTEM.get_or_init(|| rustls_native_certs::load_native_certs().certs);
            roots.add_parsable_certificates(system.iter().cloned());
        }
    }
    Ok(roots)
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, Error> {
    let open = File::open(file).map_err(|error| unusable(file, &error))?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_reader_iter(BufReader::new(open)).collect();
    match found {
        Ok(found) if found.is_empty() => Err(unusable(file, &"no certificate in it")),
        Ok(found) => Ok(found),
        Err(error) => Err(unusable(file, &error)),
    }
}

fn unusable(file: &Path, why: &dyn std::fmt::Display) -> Error {
    let message = format!("{} can't be used for TLS: {why}", file.display());
    Error::new(Reason::Tls, message)
}

/// What `insecure_skip_verify` asks for: the channel is encrypted, the other end unknown.
#[derive(Debug)]
struct TrustAnybody(Arc<CryptoProvider>);

impl ServerCertVerifier for TrustAnybody {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(
            message,
            cert,
            dss,
            &self.0.signature_verification_algorithms,
        )
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(
            message,
            cert,
            dss,
            &self.0.signature_verification_algorithms,
        )
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
