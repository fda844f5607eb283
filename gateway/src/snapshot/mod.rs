//! Where the tables that requests are decided by come from: control, and the
//! last-known-good copy on disk. Never on the request path.

mod current;
mod disk;
mod follow;
mod http;

pub(crate) use current::Current;
pub(crate) use disk::{DiskCache, DiskWriter};
pub(crate) use follow::Follower;
pub(crate) use http::HttpSource;
