//! Where the tables that requests are decided by come from: control and the
//! last-known-good copy on disk, or a configuration file. Never on the request
//! path.

mod current;
mod disk;
pub mod file;
mod follow;
mod http;

pub(crate) use current::CurrentSnapshot;
pub(crate) use disk::{SnapshotFile, SnapshotWriter, read_json, write_json};
pub(crate) use file::{ConfigFile, FileError, Watcher};
pub(crate) use follow::SnapshotFollower;
pub(crate) use http::SnapshotClient;
