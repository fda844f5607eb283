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
