//! Inspects a compressed response while its bytes are forwarded unchanged.
//!
//! The gateway requests uncompressed responses. If an upstream sends gzip
//! anyway, the response is also decoded for inspection only. A usage event that
//! only the gateway requested can then not be hidden from the client: it is
//! forwarded with the rest.
//!
//! The decoded output is limited to [`RATIO`] bytes per received byte. Beyond
//! that, and for bytes that are not gzip, inspection stops and the usage is
//! unknown.

use std::fmt;
use std::io::{self, Write};

use flate2::write::GzDecoder;

use crate::stream::{StreamEnding, StreamInspector};
use crate::usage::{BodyInspector, Measure};

/// Maximum number of decoded bytes per received byte. Model responses reach 5
/// to 20, deflate at most 1,032.
pub const RATIO: u64 = 64;

/// Decoded bytes that are allowed in addition, because the first few received
/// bytes may decode to many.
pub const ALLOWANCE: u64 = 64 << 10;

/// What the decoded bytes are.
#[derive(Debug)]
enum Inspector {
    Events(Box<StreamInspector>),
    Whole(BodyInspector),
}

/// The writer of the decoder.
struct Sink {
    decoded: Inspector,
    /// Remaining number of bytes that it may write.
    left: u64,
}

impl Write for Sink {
    fn write(&mut self, part: &[u8]) -> io::Result<usize> {
        let left = self.left.checked_sub(part.len() as u64);
        self.left = left.ok_or(io::ErrorKind::FileTooLarge)?;
        match &mut self.decoded {
            Inspector::Events(inspector) => drop(inspector.push(part)),
            Inspector::Whole(inspector) => inspector.push(part),
        }
        Ok(part.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Inspects a gzip response for accounting. Uses about 100 KiB in addition to
/// the inspector of the decoded response; anything after the first gzip member
/// is ignored.
pub struct Gunzip {
    /// `None` after inspection was abandoned.
    decoder: Option<GzDecoder<Sink>>,
    /// The response ended before its checksums, or they did not match.
    truncated: bool,
}

impl fmt::Debug for Gunzip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gunzip")
            .field("given_up", &self.decoder.is_none())
            .finish_non_exhaustive()
    }
}

impl Gunzip {
    /// An event stream with this ending.
    pub fn events(ending: StreamEnding) -> Self {
        let inspector = StreamInspector::new(false, ending);
        Self::new(Inspector::Events(Box::new(inspector)))
    }

    /// A response in one piece.
    pub fn whole(measure: Measure) -> Self {
        Self::new(Inspector::Whole(BodyInspector::new(measure)))
    }

    fn new(decoded: Inspector) -> Self {
        let sink = Sink {
            decoded,
            left: ALLOWANCE,
        };
        Self {
            decoder: Some(GzDecoder::new(sink)),
            truncated: false,
        }
    }

    /// Processes the next bytes of the response.
    pub fn push(&mut self, part: &[u8]) {
        let Some(decoder) = &mut self.decoder else {
            return;
        };
        let sink = decoder.get_mut();
        let more = RATIO.saturating_mul(part.len() as u64);
        sink.left = sink.left.saturating_add(more);
        if decode(decoder, part).is_err() {
            self.decoder = None;
        }
    }

    /// Processes the end of the response. If its checksums do not match, all
    /// decoded data is discarded.
    pub fn finish(&mut self) {
        let Some(decoder) = &mut self.decoder else {
            return;
        };
        if decoder.try_finish().is_err() {
            self.decoder = None;
            self.truncated = true;
        } else if let Inspector::Events(inspector) = &mut decoder.get_mut().decoded {
            drop(inspector.finish());
        }
    }

    /// Whether the response has ended before its checksums, or they do not match.
    pub fn is_truncated(&self) -> bool {
        self.truncated
    }

    /// The inspector of the event stream; `None` for other responses and after
    /// inspection was abandoned.
    pub fn stream(&self) -> Option<&StreamInspector> {
        match &self.decoder.as_ref()?.get_ref().decoded {
            Inspector::Events(inspector) => Some(inspector),
            Inspector::Whole(_) => None,
        }
    }

    /// The inspector of a response in one piece; `None` in the same cases.
    pub fn piece(&mut self) -> Option<&mut BodyInspector> {
        match &mut self.decoder.as_mut()?.get_mut().decoded {
            Inspector::Whole(inspector) => Some(inspector),
            Inspector::Events(_) => None,
        }
    }
}

/// Decodes all of `part` up to the end of the member.
fn decode(decoder: &mut GzDecoder<Sink>, part: &[u8]) -> io::Result<()> {
    let mut rest = part;
    while !rest.is_empty() {
        let taken = decoder.write(rest)?;
        if taken == 0 {
            break;
        }
        rest = rest.get(taken..).unwrap_or_default();
    }
    // An event counts with the read that completes it.
    decoder.flush()
}

#[cfg(test)]
mod tests;
