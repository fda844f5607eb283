//! Certificates and keys from PEM files, and the certificate of a server.

mod certificate;
mod pem;

use std::io;
use std::path::PathBuf;

pub use certificate::ServerCertificate;
pub use pem::{read_certificates, read_private_key};
use rustls::pki_types::pem::Error as PemError;

/// Why TLS could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read.
    #[error("cannot read {path}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A file does not hold what it should in PEM.
    #[error("{path} is not a valid PEM file")]
    Pem {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: PemError,
    },
    /// A file holds no certificate.
    #[error("{path} contains no certificate")]
    NoCertificate {
        /// The file.
        path: PathBuf,
    },
    /// A file is too large to be certificates.
    #[error("{path} is larger than {} MiB", pem::MAX_BYTES >> 20)]
    TooLarge {
        /// The file.
        path: PathBuf,
    },
    /// A certificate or key cannot be used.
    #[error("cannot use {path}")]
    Unusable {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: rustls::Error,
    },
    /// The library does not accept its own defaults.
    #[error("cannot set up TLS")]
    Setup(#[from] rustls::Error),
}
