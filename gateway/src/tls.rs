//! TLS to upstreams and the control plane, which trusts the system's roots and
//! `--ca-bundle`; `ring` does the cryptography.

use std::path::Path;
use std::sync::Arc;

use fastllm_process::tls::{TlsError, read_certificates};
use rustls::{ClientConfig, RootCertStore};

/// A configuration for clients, without ALPN.
pub(crate) fn client_config(ca_bundle: Option<&Path>) -> Result<ClientConfig, TlsError> {
    let mut roots = RootCertStore::empty();
    let system = rustls_native_certs::load_native_certs();
    for error in &system.errors {
        tracing::warn!(%error, "some system certificates cannot be read");
    }
    roots.add_parsable_certificates(system.certs);
    if let Some(path) = ca_bundle {
        for certificate in read_certificates(path)? {
            roots
                .add(certificate)
                .map_err(|source| TlsError::Unusable {
                    path: path.to_owned(),
                    source,
                })?;
        }
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    Ok(ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth())
}
