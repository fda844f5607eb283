//! What crosses a socket, as bytes in and bytes out. No I/O, no clock, no
//! tasks: every part is a function of the bytes that it was given.
//!
//! | module | question it answers |
//! | --- | --- |
//! | [`mod@scan`] | which model, streamed or not, how many answers, what ceiling does this JSON body name? |
//! | [`multipart`] | which model does this form name, and where? |
//! | [`splice`] | what does the upstream get, with as few bytes changed as possible? |
//! | [`sse`] | where does each event of a stream end, whatever the reads? |
//! | [`usage`] | what did the answer say that it used? |
//! | [`estimate`] | how many tokens may it be, where nothing says so? |
//! | [`mod@gzip`] | what did it say, where it is compressed? |
//! | [`stream`] | which bytes of a streamed answer does the client get? |
//! | [`http1`] | where do the messages of an HTTP/1.1 connection begin and end? |
//! | [`json`] | which members has the outermost object of this text? |
//!
//! Invariant: nothing here keeps more than a stated number of bytes, and
//! nothing recurses on what a peer sent.

pub mod error;
pub mod estimate;
pub mod gzip;
pub mod http1;
pub mod json;
pub mod multipart;
mod quotes;
pub mod scan;
pub mod splice;
pub mod sse;
pub mod stream;
pub mod usage;

pub use error::ScanError;
pub use estimate::{estimated_tokens, text_bytes};
pub use gzip::Gunzip;
pub use multipart::FormReader;
pub use scan::{Members, RequestSchema, scan};
pub use splice::{Segment, Splice};
pub use stream::{FirstEvent, Passthrough, StreamInspector};
pub use usage::{BodyInspector, Measure, PrefixInspector, Quantities, Usage};

#[cfg(test)]
mod tests;
