use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use rustls::ServerConfig;
use rustls::crypto::CryptoProvider;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use super::TlsError;

/// How often the files are looked at for a new certificate.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// Largest certificate or key file, in bytes.
const MOST: u64 = 1 << 20;

/// The certificate that clients see, and where it comes from. A new one is
/// shown to new connections; open ones stay.
#[derive(Debug)]
pub(crate) struct Certificate {
    chain: PathBuf,
    key: PathBuf,
    shown: ArcSwap<CertifiedKey>,
}

#[derive(Debug)]
struct Shown(Arc<Certificate>);

impl ResolvesServerCert for Shown {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.shown.load_full())
    }
}

impl Certificate {
    /// Reads a chain and its key (PEM).
    pub(crate) fn read(chain: &Path, key: &Path) -> Result<Arc<Self>, TlsError> {
        let shown = load(&default_provider(), chain, key)?;
        Ok(Arc::new(Self {
            chain: chain.to_owned(),
            key: key.to_owned(),
            shown: ArcSwap::from_pointee(shown),
        }))
    }

    /// How handshakes are done; offers HTTP/2 and HTTP/1.1.
    pub(crate) fn config(self: &Arc<Self>) -> Result<Arc<ServerConfig>, TlsError> {
        let mut config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(Shown(Arc::clone(self))));
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(Arc::new(config))
    }

    /// Shows a new certificate soon after its files have changed, until `stop`.
    /// Files that do not fit together, as in the middle of a change, change
    /// nothing.
    pub(crate) async fn follow(self: Arc<Self>, stop: CancellationToken) {
        let mut tick = interval(LOOK_EVERY);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut complained = false;
        loop {
            tokio::select! {
                _ = tick.tick() => {}
                () = stop.cancelled() => return,
            }
            let this = Arc::clone(&self);
            let looked = tokio::task::spawn_blocking(move || this.look()).await;
            match looked {
                Ok(Ok(changed)) => {
                    if changed {
                        tracing::info!("a new certificate is shown to clients");
                    }
                    complained = false;
                }
                Ok(Err(error)) if !complained => {
                    complained = true;
                    tracing::warn!(%error, "the certificate stays as it is");
                }
                Ok(Err(_)) | Err(_) => {}
            }
        }
    }

    /// Reads the files again; true where they hold something new.
    fn look(&self) -> Result<bool, TlsError> {
        let read = load(&default_provider(), &self.chain, &self.key)?;
        let before = self.shown.load();
        // A new key comes with a new certificate.
        if read.cert == before.cert {
            return Ok(false);
        }
        self.shown.store(Arc::new(read));
        Ok(true)
    }
}

fn load(provider: &CryptoProvider, chain: &Path, key: &Path) -> Result<CertifiedKey, TlsError> {
    let certificates = CertificateDer::pem_slice_iter(&read(chain)?)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| failed(chain, &error))?;
    if certificates.is_empty() {
        return Err(failed(chain, &"it holds no certificate"));
    }
    let private =
        PrivateKeyDer::from_pem_slice(&read(key)?).map_err(|error| failed(key, &error))?;
    CertifiedKey::from_der(certificates, private, provider).map_err(|error| failed(key, &error))
}

fn read(path: &Path) -> Result<Vec<u8>, TlsError> {
    let length = path.metadata().map_err(|error| failed(path, &error))?.len();
    if length > MOST {
        return Err(failed(path, &"it is too large"));
    }
    std::fs::read(path).map_err(|error| failed(path, &error))
}

fn failed(path: &Path, reason: &dyn std::fmt::Display) -> TlsError {
    TlsError::Files {
        path: path.to_owned(),
        reason: reason.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::Certificate;

    fn write(folder: &Path, name: &str) -> rcgen::CertifiedKey<rcgen::KeyPair> {
        let made = rcgen::generate_simple_self_signed([name.to_owned()]).unwrap();
        std::fs::write(folder.join("tls.crt"), made.cert.pem()).unwrap();
        std::fs::write(folder.join("tls.key"), made.signing_key.serialize_pem()).unwrap();
        made
    }

    #[test]
    fn a_new_certificate_is_shown_and_half_of_one_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let (chain, key) = (folder.path().join("tls.crt"), folder.path().join("tls.key"));
        let first = write(folder.path(), "one.test");
        let certificate = Certificate::read(&chain, &key).unwrap();
        assert!(!certificate.look().unwrap());
        let second = write(folder.path(), "two.test");
        std::fs::write(&key, first.signing_key.serialize_pem()).unwrap();
        assert!(certificate.look().is_err());
        assert_eq!(certificate.shown.load().cert[0], *first.cert.der());
        std::fs::write(&key, second.signing_key.serialize_pem()).unwrap();
        assert!(certificate.look().unwrap());
        assert_eq!(certificate.shown.load().cert[0], *second.cert.der());
        std::fs::remove_file(&chain).unwrap();
        let error = certificate.look().unwrap_err().to_string();
        assert!(error.contains("tls.crt"), "{error}");
    }
}
