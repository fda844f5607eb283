//! Where the tables that requests are decided by come from: control and the
//! last-known-good copy on disk, or a configuration file. Never on the request
//! path.

mod current;
mod disk;
pub mod file;
mod follow;
mod http;

pub(crate) use current::Current;
pub(crate) use disk::{DiskCache, DiskWriter, read_json, write_json};
pub(crate) use file::{ConfigFile, FileError, Watcher};
pub(crate) use follow::Follower;
pub(crate) use http::HttpSource;
