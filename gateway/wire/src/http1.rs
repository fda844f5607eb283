//! HTTP/1.1 at both ends: heads in and out, body framing, and the order of a
//! connection. No I/O: the caller owns sockets and buffers, and every function
//! here says exactly how many of the bytes that it was given are done with, so
//! that pipelined bytes stay where they are.
//!
//! | module | question it answers |
//! | --- | --- |
//! | [`request`] | what does a client ask for? |
//! | [`response`] | what does an upstream answer? |
//! | [`fields`] | which header fields has a head, and which end here? |
//! | [`framing`] | how is the body of a message delimited? |
//! | [`body`] | which bytes are the body's, and where does it end? |
//! | [`encode`] | how is a head or a chunk written? |
//! | [`server`] | what may happen next on a client's connection? |
//! | [`client`] | what may happen next on an upstream's connection? |
//!
//! Where RFC 9112 lets a recipient repair a message, this codec refuses it:
//! two parsers that repair differently are how requests are smuggled.
//!
//! Invariant: a message that is accepted has one reading. It has one way to
//! find the end of its body, lines that end with CRLF, and values without
//! control characters.

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

/// The most header fields that any head may have, whatever [`Limits`] say.
pub const MAX_FIELDS: usize = 100;

/// What a head may be at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of a head, its blank line included.
    pub head: usize,
    /// Bytes of the first line.
    pub line: usize,
    /// Header fields; no more than [`MAX_FIELDS`].
    pub fields: usize,
}

impl Default for Limits {
    /// 64 KiB, of which the first line takes 8 KiB at most; 100 fields.
    fn default() -> Self {
        Self {
            head: 64 << 10,
            line: 8 << 10,
            fields: MAX_FIELDS,
        }
    }
}

/// The version that a message was sent in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Version {
    /// HTTP/1.0
    Http10,
    /// HTTP/1.1
    #[default]
    Http11,
}
