//! Times single steps of a request: loops over what the crates of the request
//! path offer, nothing with a socket.

mod bodies;
mod stopwatch;
mod tables;

pub use bodies::{ANSWER_HEAD, answer, chat, event, key, model, request_head, stream_end};
pub use stopwatch::Stopwatch;
pub use tables::{Size, snapshot, tables};
