//! From the database to the snapshot that gateways hold: read in one
//! transaction, assembled in one canonical form, published when it changed.

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
