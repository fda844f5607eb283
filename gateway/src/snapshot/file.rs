//! A configuration file as the source of a gateway that runs by itself: a
//! superset of LiteLLM's YAML, read into the same snapshot that control sends.
//!
//! `yaml` makes a tree of the text, `value` walks it, and the files named after
//! the sections take from it what they know. Everything up to [`read`] is pure;
//! `config_file` reads the disk and `watch` follows the file.

mod allowance;
mod auth;
mod backend;
mod config_file;
mod models;
mod problem;
mod read;
mod tuning;
mod value;
mod virtual_models;
mod watch;
mod yaml;

pub use config_file::{ConfigFile, FileError};
pub use problem::{Place, Problem, Problems, Severity};
pub use read::{FileContents, ReadOutcome, Surroundings, read};
pub(crate) use watch::Watcher;

#[cfg(test)]
mod tests;
