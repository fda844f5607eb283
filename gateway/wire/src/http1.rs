//! HTTP/1.1 for clients and servers: parsing and writing of heads, body
//! framing, and the state of a connection. No I/O: the caller owns sockets and
//! buffers, and every function returns the number of bytes that it consumed, so
//! that pipelined bytes stay in the buffer.
//!
//! | module | purpose |
//! | --- | --- |
//! | [`request`] | the head of a client's request |
//! | [`response`] | the head of an upstream's response |
//! | [`fields`] | header fields, and which of them are hop-by-hop |
//! | [`framing`] | the framing of a message body |
//! | [`body`] | the content of a body, and its end |
//! | [`encode`] | writing of heads and chunks |
//! | [`server`] | the state of a client's connection |
//! | [`client`] | the state of an upstream's connection |
//!
//! Where RFC 9112 allows a recipient to repair a message, this codec rejects
//! it: two parsers that repair differently enable request smuggling.
//!
//! Invariant: an accepted message has one interpretation. The end of its body
//! is unambiguous, its lines end with CRLF, and its values have no control
//! characters.

pub mod body;
mod chunked;
pub mod client;
pub mod encode;
mod error;
pub mod fields;
pub mod framing;
mod head;
pub mod request;
pub mod response;
pub mod server;
mod target;

pub use body::{BodyDecoder, DecodedBody};
pub use client::{Client, ClientEof, ReceivedHead};
pub use encode::{CHUNK_END, ChunkLine, HeadWriter, LAST_CHUNK};
pub use error::Http1Error;
pub use fields::{HeaderField, HeaderFields};
pub use framing::{Framing, Persistence};
pub use request::{Request, RequestHead};
pub use response::{Response, ResponseHead};
pub use server::{BodySize, DrainedBody, NextAction, ResponseFraming, Server, ServerEof};

/// Maximum number of header fields of any head, whatever [`Limits`] allow.
pub const MAX_FIELDS: usize = 100;

/// Limits of a head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Maximum size of a head, including its blank line, in bytes.
    pub head: usize,
    /// Maximum size of the first line, in bytes.
    pub line: usize,
    /// Maximum number of header fields; at most [`MAX_FIELDS`].
    pub fields: usize,
}

impl Default for Limits {
    /// 64 KiB, of which the first line takes at most 8 KiB; 100 fields.
    fn default() -> Self {
        Self {
            head: 64 << 10,
            line: 8 << 10,
            fields: MAX_FIELDS,
        }
    }
}

/// The HTTP version of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Version {
    /// HTTP/1.0
    Http10,
    /// HTTP/1.1
    #[default]
    Http11,
}
