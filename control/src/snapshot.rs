//! Snapshots of the configuration for gateways: read from the database in one
//! transaction, assembled in a canonical form, and published after changes.

mod allowance;
mod backend;
mod build;
mod etag;
mod publish;
mod routing;
mod watch;

pub(crate) use etag::Etag;
pub(crate) use publish::{Published, Publisher};
pub(crate) use watch::{DatabaseStatus, Watcher};
