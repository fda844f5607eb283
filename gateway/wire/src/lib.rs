//! Wire formats as pure functions of bytes: no I/O, no clock, no tasks.
//!
//! | module | purpose |
//! | --- | --- |
//! | [`mod@scan`] | the members of a JSON request body that the gateway uses |
//! | [`multipart`] | the model in a form, and its position |
//! | [`splice`] | the request body for the upstream, with as few changed bytes
//! as possible |
//! | [`sse`] | the events of a stream, independent of read boundaries |
//! | [`usage`] | the usage that a response reports |
//! | [`estimate`] | estimated tokens if the response reports none |
//! | [`mod@gzip`] | the usage of a compressed response |
//! | [`stored`] | the IDs of responses and conversations that an upstream stores |
//! | [`stream`] | the bytes of a streamed response that are forwarded to the
//! client |
//! | [`redact`] | secrets in the errors of an upstream |
//! | [`upstream_error`] | who has to act on an error of an upstream |
//! | [`http1`] | message boundaries of an HTTP/1.1 connection |
//! | [`json`] | the members of the outermost object of a JSON text |
//!
//! Invariant: nothing here keeps more than a stated number of bytes, and
//! nothing recurses on peer input.

pub mod error;
pub mod estimate;
pub mod gzip;
pub mod http1;
pub mod json;
pub mod multipart;
mod quotes;
pub mod redact;
pub mod scan;
pub mod splice;
pub mod sse;
pub mod stored;
pub mod stream;
pub mod upstream_error;
pub mod usage;

pub use error::ScanError;
pub use estimate::{TOKENS_PER_FILE, estimated_tokens};
pub use gzip::Gunzip;
pub use multipart::FormReader;
pub use redact::{Redactor, contains_secret};
pub use scan::{Members, RequestSchema, scan};
pub use splice::{Segment, Splice};
pub use stored::{stored_id, streamed_response_id};
pub use stream::{FirstEvent, Passthrough, StreamEnding, StreamInspector, StreamPosition};
pub use upstream_error::ErrorClass;
pub use usage::{BodyExcerpt, BodyInspector, Measure, Quantities, Usage, UsageReport};

#[cfg(test)]
mod tests;
