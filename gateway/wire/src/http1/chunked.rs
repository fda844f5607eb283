//! The chunked transfer coding, processed byte by byte, so that it may be split
//! anywhere and nothing is buffered.

use std::ops::Range;

use super::Http1Error;
use super::body::DecodedBody;
use super::fields::{is_text, is_token};

/// Maximum size of the extensions in all chunks of a body together, in bytes.
/// They are ignored; without a limit they could carry unlimited data.
pub(super) const EXTENSIONS: u16 = 16 << 10;

/// Maximum size of the trailers of a body, without line ends, in bytes. They
/// are discarded.
pub(super) const TRAILERS: u16 = 8 << 10;

/// Maximum number of trailers of a body: other implementations accept only a
/// few.
pub(super) const TRAILER_LINES: u8 = 64;

/// 64 bits hold sixteen hexadecimal digits.
const DIGITS: u8 = 16;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ChunkedState {
    /// In the size, after this many digits.
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

/// The position of the decoder in a chunked body.
#[derive(Debug, Clone)]
pub(super) struct Chunked {
    state: ChunkedState,
    /// Remaining bytes of the chunk's data, or its size as parsed so far.
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
