//! The chunked coding, one byte of framing after the other, so that it may be
//! cut anywhere and nothing of it is kept.

use std::ops::Range;

use super::Http1Error;
use super::body::Decoded;
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
enum State {
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
    state: State,
    /// Bytes of data that the chunk still has, or its size as far as it came.
    left: u64,
    extensions: u16,
    trailers: u16,
    trailer_lines: u8,
}

impl Chunked {
    pub(super) fn new() -> Self {
        Self {
            state: State::Size(0),
            left: 0,
            extensions: EXTENSIONS,
            trailers: TRAILERS,
            trailer_lines: TRAILER_LINES,
        }
    }

    pub(super) fn is_done(&self) -> bool {
        self.state == State::Done
    }

    pub(super) fn decode(&mut self, input: &[u8]) -> Result<Decoded, Http1Error> {
        let mut at = 0;
        loop {
            match self.state {
                State::Done => return Ok(Decoded::new(at, at..at, true)),
                State::Data => return Ok(self.data(input, at)),
                _ => {}
            }
            let Some(byte) = input.get(at) else {
                return Ok(Decoded::new(at, at..at, false));
            };
            self.state = self.next(*byte)?;
            at += 1;
        }
    }

    fn data(&mut self, input: &[u8], at: usize) -> Decoded {
        let there = input.len().saturating_sub(at);
        let taken = usize::try_from(self.left).map_or(there, |left| left.min(there));
        self.left -= taken as u64;
        if self.left == 0 {
            self.state = State::DataEnd;
        }
        let data: Range<usize> = at..at + taken;
        Decoded::new(data.end, data, false)
    }

    /// The state after one byte of framing.
    fn next(&mut self, byte: u8) -> Result<State, Http1Error> {
        match (self.state, byte) {
            (State::Size(0), b'\r' | b';') => Err(Http1Error::ChunkSize),
            (State::Size(_) | State::Extension, b'\r') => Ok(State::SizeEnd),
            (State::Size(_), b';') => Ok(State::Extension),
            (State::Size(digits), _) => self.digit(digits, byte),
            (State::Extension, _) => self.extension(byte),
            (State::SizeEnd, b'\n') if self.left == 0 => Ok(State::Trailer),
            (State::SizeEnd, b'\n') => Ok(State::Data),
            (State::SizeEnd, _) => Err(Http1Error::ChunkSize),
            (State::DataEnd, b'\r') => Ok(State::DataEndLf),
            (State::DataEndLf, b'\n') => {
                self.left = 0;
                Ok(State::Size(0))
            }
            (State::DataEnd | State::DataEndLf, _) => Err(Http1Error::ChunkEnd),
            (State::Trailer, b'\r') => Ok(State::LastLf),
            (State::LastLf, b'\n') => Ok(State::Done),
            (State::Trailer, _) if is_token(byte) => {
                let left = self.trailer_lines.checked_sub(1);
                self.trailer_lines = left.ok_or(Http1Error::Trailer)?;
                self.trailer(State::TrailerName)
            }
            (State::TrailerName, _) if is_token(byte) => self.trailer(State::TrailerName),
            (State::TrailerName, b':') => self.trailer(State::TrailerValue),
            (State::TrailerValue, b'\r') => Ok(State::TrailerEnd),
            (State::TrailerValue, _) if is_text(byte) => self.trailer(State::TrailerValue),
            (State::TrailerEnd, b'\n') => Ok(State::Trailer),
            (State::Data | State::Done, _) => Err(Http1Error::OutOfOrder),
            _ => Err(Http1Error::Trailer),
        }
    }

    fn digit(&mut self, digits: u8, byte: u8) -> Result<State, Http1Error> {
        let value = char::from(byte).to_digit(16).ok_or(Http1Error::ChunkSize)?;
        if digits == DIGITS {
            return Err(Http1Error::ChunkSize);
        }
        self.left = self.left << 4 | u64::from(value);
        Ok(State::Size(digits + 1))
    }

    fn extension(&mut self, byte: u8) -> Result<State, Http1Error> {
        let left = self.extensions.checked_sub(1).filter(|_| is_text(byte));
        self.extensions = left.ok_or(Http1Error::ChunkExtension)?;
        Ok(State::Extension)
    }

    fn trailer(&mut self, state: State) -> Result<State, Http1Error> {
        let left = self.trailers.checked_sub(1);
        self.trailers = left.ok_or(Http1Error::Trailer)?;
        Ok(state)
    }
}
