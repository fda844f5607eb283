//! The chunked coding, one byte of framing after the other, so that it may be
//! cut anywhere and nothing of it is kept.

use std::ops::Range;

use super::Http1Error;
use super::body::DecodedBody;
use super::fields::{is_text, is_token};

/// Bytes of extensions that a body may have in all of its chunks together.
/// They are ignored; without a bound they could carry a body of their own.
pub(super) const EXTENSIONS: u16 = 16 << 10;

/// Bytes of trailers that a body may have, without line ends. They are
/// discarded.
pub(super) const TRAILERS: u16 = 8 << 10;

/// Trailers that a body may have: other peers hold no more than some of them.
pub(super) const TRAILER_LINES: u8 = 64;

/// Sixteen digits are what 64 bits can hold.
const DIGITS: u8 = 16;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ChunkedState {
    /// In the size, of which this many digits came.
    Size(u8),
    Extension,
    /// After the CR of the line with the size.
    SizeEnd,
    Data,
    /// After the data.
    DataEnd,
    /// After the CR that follows the data.
    DataEndLf,
    /// At the beginning of a trailer line.
    Trailer,
    TrailerName,
    TrailerValue,
    /// After the CR of a trailer line.
    TrailerEnd,
    /// After the CR of the blank line.
    LastLf,
    Done,
}

/// Where in a chunked body the decoder is.
#[derive(Debug, Clone)]
pub(super) struct Chunked {
    state: ChunkedState,
    /// Bytes of data that the chunk still has, or its size as far as it came.
    left: u64,
    extensions: u16,
    trailers: u16,
    trailer_lines: u8,
}

impl Chunked {
    pub(super) fn new() -> Self {
        Self {
            state: ChunkedState::Size(0),
            left: 0,
            extensions: EXTENSIONS,
            trailers: TRAILERS,
            trailer_lines: TRAILER_LINES,
        }
    }

    pub(super) fn is_done(&self) -> bool {
        self.state == ChunkedState::Done
    }

    pub(super) fn decode(&mut self, input: &[u8]) -> Result<DecodedBody, Http1Error> {
        let mut at = 0;
        loop {
            match self.state {
                ChunkedState::Done => return Ok(DecodedBody::new(at, at..at, true)),
                ChunkedState::Data => return Ok(self.data(input, at)),
                _ => {}
            }
            let Some(byte) = input.get(at) else {
                return Ok(DecodedBody::new(at, at..at, false));
            };
            self.state = self.next(*byte)?;
            at += 1;
        }
    }

    fn data(&mut self, input: &[u8], at: usize) -> DecodedBody {
        let there = input.len().saturating_sub(at);
        let taken = usize::try_from(self.left).map_or(there, |left| left.min(there));
        self.left -= taken as u64;
        if self.left == 0 {
            self.state = ChunkedState::DataEnd;
        }
        let data: Range<usize> = at..at + taken;
        DecodedBody::new(data.end, data, false)
    }

    /// The state after one byte of framing.
    fn next(&mut self, byte: u8) -> Result<ChunkedState, Http1Error> {
        match (self.state, byte) {
            (ChunkedState::Size(0), b'\r' | b';') => Err(Http1Error::ChunkSize),
            (ChunkedState::Size(_) | ChunkedState::Extension, b'\r') => Ok(ChunkedState::SizeEnd),
            (ChunkedState::Size(_), b';') => Ok(ChunkedState::Extension),
            (ChunkedState::Size(digits), _) => self.digit(digits, byte),
            (ChunkedState::Extension, _) => self.extension(byte),
            (ChunkedState::SizeEnd, b'\n') if self.left == 0 => Ok(ChunkedState::Trailer),
            (ChunkedState::SizeEnd, b'\n') => Ok(ChunkedState::Data),
            (ChunkedState::SizeEnd, _) => Err(Http1Error::ChunkSize),
            (ChunkedState::DataEnd, b'\r') => Ok(ChunkedState::DataEndLf),
            (ChunkedState::DataEndLf, b'\n') => {
                self.left = 0;
                Ok(ChunkedState::Size(0))
            }
            (ChunkedState::DataEnd | ChunkedState::DataEndLf, _) => Err(Http1Error::ChunkEnd),
            (ChunkedState::Trailer, b'\r') => Ok(ChunkedState::LastLf),
            (ChunkedState::LastLf, b'\n') => Ok(ChunkedState::Done),
            (ChunkedState::Trailer, _) if is_token(byte) => {
                let left = self.trailer_lines.checked_sub(1);
                self.trailer_lines = left.ok_or(Http1Error::Trailer)?;
                self.trailer(ChunkedState::TrailerName)
            }
            (ChunkedState::TrailerName, _) if is_token(byte) => {
                self.trailer(ChunkedState::TrailerName)
            }
            (ChunkedState::TrailerName, b':') => self.trailer(ChunkedState::TrailerValue),
            (ChunkedState::TrailerValue, b'\r') => Ok(ChunkedState::TrailerEnd),
            (ChunkedState::TrailerValue, _) if is_text(byte) => {
                self.trailer(ChunkedState::TrailerValue)
            }
            (ChunkedState::TrailerEnd, b'\n') => Ok(ChunkedState::Trailer),
            (ChunkedState::Data | ChunkedState::Done, _) => Err(Http1Error::OutOfOrder),
            _ => Err(Http1Error::Trailer),
        }
    }

    fn digit(&mut self, digits: u8, byte: u8) -> Result<ChunkedState, Http1Error> {
        let value = char::from(byte).to_digit(16).ok_or(Http1Error::ChunkSize)?;
        if digits == DIGITS {
            return Err(Http1Error::ChunkSize);
        }
        self.left = self.left << 4 | u64::from(value);
        Ok(ChunkedState::Size(digits + 1))
    }

    fn extension(&mut self, byte: u8) -> Result<ChunkedState, Http1Error> {
        let left = self.extensions.checked_sub(1).filter(|_| is_text(byte));
        self.extensions = left.ok_or(Http1Error::ChunkExtension)?;
        Ok(ChunkedState::Extension)
    }

    fn trailer(&mut self, state: ChunkedState) -> Result<ChunkedState, Http1Error> {
        let left = self.trailers.checked_sub(1);
        self.trailers = left.ok_or(Http1Error::Trailer)?;
        Ok(state)
    }
}
