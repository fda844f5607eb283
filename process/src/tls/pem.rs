use std::path::Path;

use rustls::pki_types::pem::{Error as PemError, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::TlsError;

/// Maximum size of a file.
pub(super) const MAX_BYTES: u64 = 4 << 20;

/// Reads all certificates of a PEM file; at least one.
pub fn read_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let certificates = CertificateDer::pem_slice_iter(&read(path)?)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|source| invalid(path, source))?;
    if certificates.is_empty() {
        return Err(TlsError::NoCertificate {
            path: path.to_owned(),
        });
    }
    Ok(certificates)
}

/// Reads the private key of a PEM file.
pub fn read_private_key(path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    PrivateKeyDer::from_pem_slice(&read(path)?).map_err(|source| invalid(path, source))
}

fn read(path: &Path) -> Result<Vec<u8>, TlsError> {
    let failed = |source| TlsError::Read {
        path: path.to_owned(),
        source,
    };
    if path.metadata().map_err(failed)?.len() > MAX_BYTES {
        return Err(TlsError::TooLarge {
            path: path.to_owned(),
        });
    }
    std::fs::read(path).map_err(failed)
}

fn invalid(path: &Path, source: PemError) -> TlsError {
    TlsError::Pem {
        path: path.to_owned(),
        source,
    }
}

#[cfg(test)]
mod tests {
    use super::{TlsError, read_certificates};

    #[test]
    fn a_file_without_a_certificate_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ca.pem");
        assert!(matches!(
            read_certificates(&path),
            Err(TlsError::Read { .. })
        ));
        std::fs::write(&path, "no certificate").unwrap();
        assert!(matches!(
            read_certificates(&path),
            Err(TlsError::NoCertificate { .. })
        ));
    }
}
