//! Extracts the content of a body from received bytes, without a copy.

use std::ops::Range;

use super::chunked::Chunked;
use super::{Framing, Http1Error};

/// The result of one call of [`BodyDecoder::decode`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DecodedBody {
    /// Number of consumed bytes. The caller passes the bytes after them again;
    /// after the end they belong to the next message.
    pub consumed: usize,
    /// The range of the next content bytes in the input. Empty if there are
    /// none.
    pub data: Range<usize>,
    /// Whether the body is complete.
    pub end: bool,
}

impl DecodedBody {
    pub(super) fn new(consumed: usize, data: Range<usize>, end: bool) -> Self {
        Self {
            consumed,
            data,
            end,
        }
    }
}

/// Decodes one body, independent of read boundaries.
///
/// Trailers and chunk extensions are validated and discarded: the two ends
/// could not process them in the same way.
///
/// ```
/// use fastllm_wire::http1::{BodyDecoder, Framing};
///
/// let mut body = BodyDecoder::new(Framing::Chunked);
/// let input = b"3\r\nabc\r\n0\r\n\r\nGET ";
/// let first = body.decode(input).unwrap();
/// assert_eq!(&input[first.data.clone()], b"abc");
/// let rest = &input[first.consumed..];
/// let last = body.decode(rest).unwrap();
/// assert!(last.end && last.data.is_empty());
/// assert_eq!(&rest[last.consumed..], b"GET ");
/// ```
#[derive(Debug, Clone)]
pub struct BodyDecoder(BodyState);

#[derive(Debug, Clone)]
enum BodyState {
    Length(u64),
    Chunked(Chunked),
    UntilClose { closed: bool },
}

impl BodyDecoder {
    /// A decoder at the beginning of a body.
    pub fn new(framing: Framing) -> Self {
        Self(match framing {
            Framing::None => BodyState::Length(0),
            Framing::Length(length) => BodyState::Length(length),
            Framing::Chunked => BodyState::Chunked(Chunked::new()),
            Framing::UntilClose => BodyState::UntilClose { closed: false },
        })
    }

    /// Whether the body is complete.
    pub fn is_done(&self) -> bool {
        match &self.0 {
            BodyState::Length(left) => *left == 0,
            BodyState::Chunked(chunked) => chunked.is_done(),
            BodyState::UntilClose { closed } => *closed,
        }
    }

    /// Number of remaining bytes, if known.
    pub fn left(&self) -> Option<u64> {
        match &self.0 {
            BodyState::Length(left) => Some(*left),
            BodyState::Chunked(chunked) if chunked.is_done() => Some(0),
            BodyState::UntilClose { closed: true } => Some(0),
            BodyState::Chunked(_) | BodyState::UntilClose { .. } => None,
        }
    }

    /// Decodes the next content bytes from `input`. If nothing is consumed, the
    /// input is empty or lies after the end.
    pub fn decode(&mut self, input: &[u8]) -> Result<DecodedBody, Http1Error> {
        match &mut self.0 {
            BodyState::Length(left) => {
                let taken = usize::try_from(*left).map_or(input.len(), |n| n.min(input.len()));
                *left -= taken as u64;
                Ok(DecodedBody::new(taken, 0..taken, *left == 0))
            }
            BodyState::Chunked(chunked) => chunked.decode(input),
            BodyState::UntilClose { closed: true } => Ok(DecodedBody::new(0, 0..0, true)),
            BodyState::UntilClose { closed: false } => {
                Ok(DecodedBody::new(input.len(), 0..input.len(), false))
            }
        }
    }

    /// Processes the end of the connection: an error unless the body is
    /// complete.
    pub fn eof(&mut self) -> Result<(), Http1Error> {
        if let BodyState::UntilClose { closed } = &mut self.0 {
            *closed = true;
        }
        if self.is_done() {
            Ok(())
        } else {
            Err(Http1Error::Truncated)
        }
    }
}

#[cfg(test)]
mod tests;
