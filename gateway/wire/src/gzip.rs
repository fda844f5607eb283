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
mod tests {
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::GzEncoder;
    use proptest::prelude::*;

    use super::{ALLOWANCE, Gunzip, RATIO};
    use crate::stream::{FirstEvent, StreamEnding};
    use crate::usage::{Measure, Usage};

    const RESPONSE: &str = r#"{"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":3}}"#;

    fn packed(parts: &[&[u8]]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        for part in parts {
            encoder.write_all(part).unwrap();
            encoder.flush().unwrap();
        }
        encoder.finish().unwrap()
    }

    fn read(response: &[u8], mut gunzip: Gunzip, read: usize) -> Gunzip {
        response.chunks(read).for_each(|part| gunzip.push(part));
        gunzip.finish();
        gunzip
    }

    fn usage(gunzip: &mut Gunzip) -> Option<Usage> {
        match gunzip.stream() {
            Some(inspector) => inspector.usage(),
            None => gunzip.piece()?.usage(),
        }
    }

    fn expected() -> Option<Usage> {
        Usage::from_response(RESPONSE.as_bytes())
    }

    #[test]
    fn a_response_in_one_piece_reports_usage() {
        let packed = packed(&[RESPONSE.as_bytes()]);
        for step in [1, 7, 10_000] {
            let mut gunzip = read(&packed, Gunzip::whole(Measure::Tokens), step);
            assert_eq!(usage(&mut gunzip), expected());
            assert_eq!(gunzip.piece().unwrap().total(), RESPONSE.len() as u64);
        }
        // Bytes after the first member are ignored.
        let followed = [packed.as_slice(), b"and more", &packed].concat();
        let mut gunzip = read(&followed, Gunzip::whole(Measure::Tokens), 9);
        assert_eq!(usage(&mut gunzip), expected());
    }

    #[test]
    fn an_event_counts_with_the_read_that_completes_it() {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        let mut gunzip = Gunzip::events(StreamEnding::Choices(1));
        let mut push = |gunzip: &mut Gunzip, text: &str| {
            encoder.write_all(text.as_bytes()).unwrap();
            encoder.flush().unwrap();
            gunzip.push(&std::mem::take(encoder.get_mut()));
        };
        push(&mut gunzip, ": comment\n\n");
        assert_eq!(gunzip.stream().unwrap().first(), FirstEvent::Pending);
        push(&mut gunzip, "data: {\"choices\":[{}]}\n\n");
        assert_eq!(gunzip.stream().unwrap().first(), FirstEvent::Response);
        assert!(!gunzip.stream().unwrap().is_complete());
        push(
            &mut gunzip,
            &format!("data: {RESPONSE}\n\ndata: [DONE]\n\n"),
        );
        assert_eq!(usage(&mut gunzip), expected());
        assert!(gunzip.stream().unwrap().is_complete());
    }

    #[test]
    fn the_usage_of_invalid_gzip_is_unknown() {
        let packed = packed(&[RESPONSE.as_bytes()]);
        let mut wrong = packed.clone();
        let sum = wrong.len() - 6;
        wrong[sum] ^= 1;
        let cut = packed[..packed.len() - 1].to_vec();
        for (broken, truncated) in [
            (wrong, true),
            (cut, true),
            (packed[..12].to_vec(), true),
            (Vec::new(), true),
            (RESPONSE.into(), false),
        ] {
            let mut gunzip = read(&broken, Gunzip::whole(Measure::Tokens), 11);
            assert_eq!(usage(&mut gunzip), None);
            assert_eq!(gunzip.is_truncated(), truncated, "{broken:?}");
        }
        assert!(!read(&packed, Gunzip::events(StreamEnding::Choices(1)), 11).is_truncated());
    }

    #[test]
    fn decoding_is_bounded_by_the_received_bytes() {
        let zeros = vec![b' '; 32 << 20];
        let bomb = packed(&[RESPONSE.as_bytes(), &zeros]);
        assert!(bomb.len() < zeros.len() / 500);
        let mut gunzip = Gunzip::whole(Measure::Tokens);
        let mut most = 0;
        for part in bomb.chunks(20) {
            gunzip.push(part);
            most = most.max(gunzip.piece().map_or(0, |inspector| inspector.total()));
        }
        gunzip.finish();
        assert!(gunzip.piece().is_none());
        assert!(most > 0 && most <= RATIO * bomb.len() as u64 + ALLOWANCE);
        assert!(most < zeros.len() as u64 / 4, "{most}");
    }

    #[test]
    fn realistic_responses_are_within_the_limit() {
        let event = |text: &str| {
            format!(
                "data: {{\"id\":\"chatcmpl-123\",\"object\":\"chat.completion.chunk\",\
                 \"created\":1767225600,\"model\":\"m\",\"choices\":[{{\"index\":0,\
                 \"delta\":{{\"content\":\"{text}\"}},\"finish_reason\":null}}]}}\n\n"
            )
        };
        // Even if the model repeats one word indefinitely, each in its own
        // event.
        let events = vec![event(" word"); 5000];
        let mut parts: Vec<&[u8]> = events.iter().map(String::as_bytes).collect();
        let last = format!("data: {RESPONSE}\n\n");
        parts.push(last.as_bytes());
        let mut gunzip = read(
            &packed(&parts),
            Gunzip::events(StreamEnding::Choices(1)),
            4096,
        );
        assert_eq!(usage(&mut gunzip), expected());
        assert_eq!(gunzip.stream().unwrap().events(), 5000);
    }

    proptest! {
        #[test]
        fn accepts_arbitrary_input(
            bytes in proptest::collection::vec(any::<u8>(), 0..2000),
            at in 0_usize..2000, step in 1_usize..500,
        ) {
            let mut packed = packed(&[&bytes]);
            let len = packed.len();
            packed[at % len] ^= 0x55;
            for gunzip in [Gunzip::events(StreamEnding::Choices(1)), Gunzip::whole(Measure::Images)] {
                let mut gunzip = read(&packed, gunzip, step);
                let _ = usage(&mut gunzip);
            }
        }
    }
}
