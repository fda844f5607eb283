//! The control plane: admin API, accounting, audit, snapshot.
//!
//! All persistent state is in PostgreSQL. Each change is one transaction together
//! with its audit record, and increments the version of the configuration. Every
//! replica watches the database and serves the same snapshot to gateways.

mod accounting;
mod api;
mod app;
pub mod cli;
mod clock;
mod config;
mod crypto;
mod db;
mod encryption_key;
mod error;
mod gateway_api;
mod housekeeping;
mod login_throttle;
mod metrics;
mod name;
mod objects;
mod proxy_tokens;
mod request_timeout;
mod run;
mod serve;
mod set_password;
mod shares;
mod snapshot;

pub use api::openapi_document;
pub use config::{Command, Config, DatabaseConfig, SetPassword};
pub use error::Error;
pub use run::{Control, run};
pub use set_password::{PasswordOutcome, set_password};
