//! Threads, tasks, clocks, timers, buffers and sockets.

pub(crate) mod buffers;
pub(crate) mod clock;
mod deadline;
pub(crate) mod socket;
mod tasks;
mod workers;

pub(crate) use deadline::Deadline;
pub(crate) use socket::Socket;
pub(crate) use tasks::{BackgroundTasks, Tasks};
pub(crate) use workers::{Worker, Workers};
