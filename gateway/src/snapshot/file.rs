//! Configuration file as the source of a gateway without a control plane: a
//! superset of LiteLLM's YAML, converted to the same snapshot that the control
//! plane sends.
//!
//! `yaml` parses the text into a tree, `value` reads the tree, and the modules
//! named after the sections convert them. Everything up to [`read`] is pure;
//! `config_file` reads the disk and `watch` reloads the file.

mod allowance;
mod auth;
mod backend;
mod config_file;
mod credentials;
mod failover;
mod grants;
mod include;
mod model_info;
mod models;
mod problem;
mod provider;
mod read;
mod router;
mod sections;
mod settings;
mod share;
mod tuning;
mod unsupported;
mod upstream;
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
