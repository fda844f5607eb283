//! Sources of the tables that requests are decided by: control with the
//! last-known-good copy on disk, or a configuration file. Never on the request
//! path.

mod current;
pub mod file;

pub(crate) use current::CurrentSnapshot;
pub(crate) use file::{ConfigFile, FileError, Watcher};
