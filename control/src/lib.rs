//! The control plane: admin API, accounting, audit, snapshot.
//!
//! Postgres holds everything that lasts. Each change is one transaction with
//! its audit row and raises the configuration's version; every replica follows
//! the database and gives the gateways the same snapshot of it.

mod accounting;
mod api;
mod app;
pub mod cli;
mod clock;
mod config;
mod crypto;
mod db;
mod error;
mod gateway_api;
mod housekeeping;
mod metrics;
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
