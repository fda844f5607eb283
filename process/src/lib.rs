//! What every program of this project needs at its edges, each in one module:
//! logging, signals, certificates from files, listening, back-off, and the
//! parsing of addresses.
//!
//! Nothing here depends on the other crates.

pub mod accept;
pub mod address;
pub mod back_off;
pub mod error;
pub mod logging;
pub mod signals;
#[cfg(feature = "tls")]
pub mod tls;
pub mod upstream_addresses;
