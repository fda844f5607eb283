//! TLS towards upstreams and control (the system's roots, `--ca-bundle`), and
//! towards clients; `ring` does the cryptography.

mod server;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
pub(crate) use server::Certificate;

/// Why TLS could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read or holds something else.
    #[error("cannot read certificates or a key from {path}: {reason}")]
    Files {
        /// The file.
        path: PathBuf,
        /// Why not.
        reason: String,
    },
    /// The library refused its own defaults.
    #[error("cannot set up TLS: {0}")]
    Setup(#[from] rustls::Error),
}

/// A configuration for clients, without ALPN.
pub(crate) fn client_config(ca_bundle: Option<&Path>) -> Result<ClientConfig, TlsError> {
    let mut roots = RootCertStore::empty();
    let system = rustls_native_certs::load_native_certs();
    for error in &system.errors {
        tracing::warn!(%error, "some system certificates cannot be read");
    }
    roots.add_parsable_certificates(system.certs);
    if let Some(path) = ca_bundle {
        for certificate in read_bundle(path)? {
            roots.add(certificate).map_err(|error| TlsError::Files {
                path: path.to_owned(),
                reason: error.to_string(),
            })?;
        }
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    Ok(ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth())
}

fn read_bundle(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let failed = |reason: String| TlsError::Files {
        path: path.to_owned(),
        reason,
    };
    let certificates = CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| failed(error.to_string()))?;
    if certificates.is_empty() {
        return Err(failed("it holds no certificate".to_owned()));
    }
    Ok(certificates)
}
