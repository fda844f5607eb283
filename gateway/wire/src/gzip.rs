//! Looks into an answer that comes compressed, while its bytes pass as they
//! are.
//!
//! The gateway asks for answers that are not. For one that comes in gzip all
//! the same, a decoder stands beside it, of which nothing is forwarded. So what
//! only the gateway asked for cannot be kept from the client: the request has
//! been sent by then, and its usage event passes with the rest.
//!
//! What is decoded has a bound of [`RATIO`] bytes for each that came: beyond
//! that nothing is looked into any more, and what was used is unknown, as it is
//! where the bytes are no gzip.

use std::fmt;
use std::io::{self, Write};

use flate2::write::GzDecoder;

use crate::stream::StreamInspector;
use crate::usage::{BodyInspector, Measure};

/// How many bytes are decoded for each that came. Answers of models come to 5
/// to 20, and deflate to 1,032 at most.
pub const RATIO: u64 = 64;

/// Decoded bytes that are allowed besides: the first few that come may stand
/// for many.
pub const ALLOWANCE: u64 = 64 << 10;

/// What the decoded bytes are.
#[derive(Debug)]
enum Inspector {
    Events(Box<StreamInspector>),
    Whole(BodyInspector),
}

/// Where the decoder writes.
struct Sink {
    decoded: Inspector,
    /// How many bytes more it may write.
    left: u64,
}

impl Write for Sink {
    fn write(&mut self, part: &[u8]) -> io::Result<usize> {
        let left = self.left.checked_sub(part.len() as u64);
        self.left = left.ok_or(io::ErrorKind::FileTooLarge)?;
        match &mut self.decoded {
            Inspector::Events(tail) => drop(tail.push(part)),
            Inspector::Whole(tail) => tail.push(part),
        }
        Ok(part.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Remembers what the accounting needs of an answer in gzip. Takes about
/// 100 KiB beside what the answer's kind takes; what follows the first member
/// is not looked into.
pub struct Gunzip {
    /// Nothing once it was given up.
    decoder: Option<GzDecoder<Sink>>,
}

impl fmt::Debug for Gunzip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gunzip")
            .field("given_up", &self.decoder.is_none())
            .finish_non_exhaustive()
    }
}

impl Gunzip {
    /// A stream of events.
    pub fn events() -> Self {
        Self::new(Inspector::Events(Box::new(StreamInspector::new(false))))
    }

    /// An answer in one piece.
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
        }
    }

    /// Takes the next bytes of the answer.
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

    /// Takes the end of the answer. Where its sums are wrong, nothing that was
    /// decoded is believed.
    pub fn finish(&mut self) {
        let Some(decoder) = &mut self.decoder else {
            return;
        };
        if decoder.try_finish().is_err() {
            self.decoder = None;
        } else if let Inspector::Events(tail) = &mut decoder.get_mut().decoded {
            drop(tail.finish());
        }
    }

    /// What is remembered of the events; nothing for another answer, and once
    /// it was given up.
    pub fn stream(&self) -> Option<&StreamInspector> {
        match &self.decoder.as_ref()?.get_ref().decoded {
            Inspector::Events(tail) => Some(tail),
            Inspector::Whole(_) => None,
        }
    }

    /// What is remembered of an answer in one piece, likewise.
    pub fn piece(&mut self) -> Option<&mut BodyInspector> {
        match &mut self.decoder.as_mut()?.get_mut().decoded {
            Inspector::Whole(tail) => Some(tail),
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
    use crate::stream::FirstEvent;
    use crate::usage::{Measure, Usage};

    const ANSWER: &str = r#"{"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":3}}"#;

    fn packed(parts: &[&[u8]]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        for part in parts {
            encoder.write_all(part).unwrap();
            encoder.flush().unwrap();
        }
        encoder.finish().unwrap()
    }

    fn read(answer: &[u8], mut gunzip: Gunzip, read: usize) -> Gunzip {
        answer.chunks(read).for_each(|part| gunzip.push(part));
        gunzip.finish();
        gunzip
    }

    fn usage(gunzip: &mut Gunzip) -> Option<Usage> {
        match gunzip.stream() {
            Some(tail) => tail.usage(),
            None => gunzip.piece()?.usage(),
        }
    }

    fn expected() -> Option<Usage> {
        Usage::from_response(ANSWER.as_bytes())
    }

    #[test]
    fn an_answer_in_one_piece_says_what_it_used() {
        let packed = packed(&[ANSWER.as_bytes()]);
        for step in [1, 7, 10_000] {
            let mut gunzip = read(&packed, Gunzip::whole(Measure::Tokens), step);
            assert_eq!(usage(&mut gunzip), expected());
            assert_eq!(gunzip.piece().unwrap().total(), ANSWER.len() as u64);
        }
        // What follows the first member is nobody's.
        let followed = [packed.as_slice(), b"and more", &packed].concat();
        let mut gunzip = read(&followed, Gunzip::whole(Measure::Tokens), 9);
        assert_eq!(usage(&mut gunzip), expected());
    }

    #[test]
    fn an_event_counts_with_the_read_that_completes_it() {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        let mut gunzip = Gunzip::events();
        let mut push = |gunzip: &mut Gunzip, text: &str| {
            encoder.write_all(text.as_bytes()).unwrap();
            encoder.flush().unwrap();
            gunzip.push(&std::mem::take(encoder.get_mut()));
        };
        push(&mut gunzip, ": comment\n\n");
        assert_eq!(gunzip.stream().unwrap().first(), FirstEvent::Pending);
        push(&mut gunzip, "data: {\"choices\":[{}]}\n\n");
        assert_eq!(gunzip.stream().unwrap().first(), FirstEvent::Answer);
        assert!(!gunzip.stream().unwrap().is_complete());
        push(&mut gunzip, &format!("data: {ANSWER}\n\ndata: [DONE]\n\n"));
        assert_eq!(usage(&mut gunzip), expected());
        assert!(gunzip.stream().unwrap().is_complete());
    }

    #[test]
    fn what_is_broken_is_unknown() {
        let packed = packed(&[ANSWER.as_bytes()]);
        let mut wrong = packed.clone();
        let sum = wrong.len() - 6;
        wrong[sum] ^= 1;
        let cut = packed[..packed.len() - 1].to_vec();
        for broken in [wrong, cut, ANSWER.into(), Vec::new()] {
            let mut gunzip = read(&broken, Gunzip::whole(Measure::Tokens), 11);
            assert_eq!(usage(&mut gunzip), None);
        }
    }

    #[test]
    fn a_bomb_costs_no_more_than_its_bytes_times_a_constant() {
        let zeros = vec![b' '; 32 << 20];
        let bomb = packed(&[ANSWER.as_bytes(), &zeros]);
        assert!(bomb.len() < zeros.len() / 500);
        let mut gunzip = Gunzip::whole(Measure::Tokens);
        let mut most = 0;
        for part in bomb.chunks(20) {
            gunzip.push(part);
            most = most.max(gunzip.piece().map_or(0, |tail| tail.total()));
        }
        gunzip.finish();
        assert!(gunzip.piece().is_none());
        assert!(most > 0 && most <= RATIO * bomb.len() as u64 + ALLOWANCE);
        assert!(most < zeros.len() as u64 / 4, "{most}");
    }

    #[test]
    fn answers_as_models_write_them_are_within_the_bound() {
        let event = |text: &str| {
            format!(
                "data: {{\"id\":\"chatcmpl-123\",\"object\":\"chat.completion.chunk\",\
                 \"created\":1767225600,\"model\":\"m\",\"choices\":[{{\"index\":0,\
                 \"delta\":{{\"content\":\"{text}\"}},\"finish_reason\":null}}]}}\n\n"
            )
        };
        // Even where the model says the same word for ever, each on its own.
        let events = vec![event(" word"); 5000];
        let mut parts: Vec<&[u8]> = events.iter().map(String::as_bytes).collect();
        let last = format!("data: {ANSWER}\n\n");
        parts.push(last.as_bytes());
        let mut gunzip = read(&packed(&parts), Gunzip::events(), 4096);
        assert_eq!(usage(&mut gunzip), expected());
        assert_eq!(gunzip.stream().unwrap().events(), 5000);
    }

    proptest! {
        #[test]
        fn takes_whatever_comes(
            bytes in proptest::collection::vec(any::<u8>(), 0..2000),
            at in 0_usize..2000, step in 1_usize..500,
        ) {
            let mut packed = packed(&[&bytes]);
            let len = packed.len();
            packed[at % len] ^= 0x55;
            for gunzip in [Gunzip::events(), Gunzip::whole(Measure::Images)] {
                let mut gunzip = read(&packed, gunzip, step);
                let _ = usage(&mut gunzip);
            }
        }
    }
}
