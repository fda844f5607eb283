use proptest::prelude::*;

use super::*;
use crate::tests::cut;

/// Complete events with their line ends joined to them, and whether they are
/// oversized.
fn frames(limit: usize, reads: &[Vec<u8>]) -> Vec<(bool, Vec<u8>)> {
    let mut framer = Framer::new(limit);
    let mut out: Vec<(bool, Vec<u8>)> = Vec::new();
    let mut open = false;
    let mut comments = Vec::new();
    let mut sink = |frame: &Frame<'_>| match frame.kind {
        // Joined with the event that they precede.
        FrameKind::Comment => comments.extend_from_slice(frame.bytes),
        FrameKind::Event => {
            let mut event = std::mem::take(&mut comments);
            event.extend_from_slice(frame.bytes);
            out.push((true, event));
        }
        FrameKind::LineEnd => out.last_mut().unwrap().1.extend_from_slice(frame.bytes),
        FrameKind::Overlong { last } => {
            if open {
                out.last_mut().unwrap().1.extend_from_slice(frame.bytes);
            } else {
                let mut event = std::mem::take(&mut comments);
                event.extend_from_slice(frame.bytes);
                out.push((false, event));
            }
            open = !last;
        }
    };
    for read in reads {
        framer.push(read, |frame| {
            if let Some(at) = frame.at {
                assert_eq!(frame.bytes, &read[at..at + frame.bytes.len()]);
            }
            sink(&frame);
        });
    }
    framer.finish(|frame| sink(&frame));
    if !comments.is_empty() {
        out.push((true, comments));
    }
    out
}

fn events(reads: &[&str]) -> Vec<String> {
    let reads: Vec<_> = reads.iter().map(|read| read.as_bytes().to_vec()).collect();
    let text = |(_, bytes)| String::from_utf8(bytes).unwrap();
    frames(EVENT_LIMIT, &reads).into_iter().map(text).collect()
}

/// The data of every event according to the standard's parser, one byte at a
/// time. Unlike in the standard, an unterminated last event counts.
fn reference(stream: &[u8]) -> Vec<Vec<u8>> {
    let stream = stream.strip_prefix(BOM).unwrap_or(stream);
    let mut lines = vec![Vec::new()];
    let mut cr = false;
    for &byte in stream {
        match byte {
            b'\n' if cr => cr = false,
            b'\n' | b'\r' => {
                cr = byte == b'\r';
                lines.push(Vec::new());
            }
            _ => {
                cr = false;
                lines.last_mut().unwrap().push(byte);
            }
        }
    }
    lines.push(Vec::new());
    let mut out = Vec::new();
    let mut data: Option<Vec<u8>> = None;
    for line in lines {
        if line.is_empty() {
            out.extend(data.take());
            continue;
        }
        let colon = line.iter().position(|byte| *byte == b':');
        let (field, value) = line.split_at(colon.unwrap_or(line.len()));
        let value = value.strip_prefix(b":").unwrap_or(value);
        let value = value.strip_prefix(b" ").unwrap_or(value);
        if field == b"data" {
            if let Some(data) = &mut data {
                data.push(b'\n');
                data.extend_from_slice(value);
            } else {
                data = Some(value.to_vec());
            }
        }
    }
    out
}

#[test]
fn an_event_ends_at_a_blank_line_of_any_kind() {
    for end in ["\n", "\r\n", "\r"] {
        let one = format!("event: a{end}data: 1{end}{end}");
        let two = format!("data: 2{end}{end}");
        assert_eq!(
            events(&[&format!("{one}{two}")]),
            [one.clone(), two.clone()],
            "{end:?}"
        );
    }
    assert_eq!(
        events(&["a\r\r\nb\n\r\nc\r\n\n"]),
        ["a\r\r\n", "b\n\r\n", "c\r\n\n"]
    );
}

#[test]
fn an_event_is_yielded_with_the_read_that_completes_it() {
    let mut framer = Framer::default();
    let mut seen = Vec::new();
    for read in ["data: 1\r", "\n\r", "\ndata: 2\n", "\n", "data", ": 3"] {
        framer.push(read.as_bytes(), |frame| {
            seen.push((frame.kind, frame.bytes.to_vec()));
        });
        seen.push((FrameKind::LineEnd, Vec::new()));
    }
    let read = (FrameKind::LineEnd, Vec::new());
    let event = |text: &str| (FrameKind::Event, text.as_bytes().to_vec());
    let expected = [
        read.clone(),
        event("data: 1\r\n\r"),
        read.clone(),
        (FrameKind::LineEnd, b"\n".to_vec()),
        read.clone(),
        event("data: 2\n\n"),
        read.clone(),
        read.clone(),
        read.clone(),
    ];
    assert_eq!(seen, expected);
    assert_eq!(framer.carried(), 7);
    framer.finish(|frame| assert_eq!(frame.event().unwrap().data().unwrap(), b"3".as_slice()));
    assert_eq!(framer.carried(), 0);
}

#[test]
fn a_whole_event_is_not_copied() {
    let mut positions = Vec::new();
    Framer::default().push(b"data: 1\n\ndata: 2\n\ndata", |frame| {
        positions.push(frame.at);
    });
    assert_eq!(positions, [Some(0), Some(9)]);
}

#[test]
fn fields_are_parsed_according_to_the_standard() {
    let data = |raw: &str| Event::new(raw.as_bytes()).data().map(Cow::into_owned);
    assert_eq!(data("data: x\n\n").unwrap(), b"x");
    assert_eq!(data("data:x\r\r").unwrap(), b"x");
    assert_eq!(data("data:  x \n\n").unwrap(), b" x ");
    assert_eq!(data("data\n\n").unwrap(), b"");
    assert_eq!(data("id: 1\ndata: a\r\n: c\ndata:b\n\n").unwrap(), b"a\nb");
    assert_eq!(data(": data: x\n\n"), None);
    assert_eq!(data("database: x\n data: y\n\n"), None);
    assert_eq!(
        Event::new(b"event: a\nevent:b\ndata: 1\n\n").kind(),
        Some(b"b".as_slice())
    );
    assert!(matches!(
        Event::new(b"data: x\n\n").data(),
        Some(Cow::Borrowed(_))
    ));
}

#[test]
fn the_done_marker_is_recognized_in_every_form() {
    for raw in [
        "data: [DONE]\n\n",
        "data:[DONE]",
        "id: 4\r\ndata: [DONE] \r\n\r\n",
    ] {
        assert!(Event::new(raw.as_bytes()).is_done(), "{raw:?}");
    }
    for raw in [
        "data: \"[DONE]\"\n\n",
        ": [DONE]\n\n",
        "data: [DONE]\ndata: [DONE]\n\n",
    ] {
        assert!(!Event::new(raw.as_bytes()).is_done(), "{raw:?}");
    }
}

/// The LF of a line end may be in another read.
#[test]
fn the_last_line_end_does_not_affect_the_done_marker() {
    let comment = "x".repeat(128 - "data: [DONE]\n".len());
    for end in ["", "\r\n\r", "\r\n\r\n", "\n\n"] {
        let raw = format!("data: [DONE]\n{comment}{end}");
        assert!(Event::new(raw.as_bytes()).is_done(), "{raw:?}");
        let longer = format!("data: [DONE]\nx{comment}{end}");
        assert!(!Event::new(longer.as_bytes()).is_done(), "{longer:?}");
    }
}

#[test]
fn a_byte_order_mark_is_skipped_only_at_the_start() {
    let mut data = Vec::new();
    let mut framer = Framer::default();
    for read in [
        "\u{FEFF}data: 1\n\n".as_bytes(),
        "\u{FEFF}data: 2\n\n".as_bytes(),
    ] {
        framer.push(read, |frame| {
            data.push(frame.event().unwrap().data().map(Cow::into_owned));
        });
    }
    assert_eq!(data, [Some(b"1".to_vec()), None]);
}

#[test]
fn an_oversized_event_is_yielded_in_parts_and_framing_continues() {
    let reads = [
        "data: 1\n\ndata: ",
        "0123456789",
        "0123456789\r",
        "\n\r\nda",
        "ta: 3\n\n",
    ];
    let reads: Vec<_> = reads.iter().map(|read| read.as_bytes().to_vec()).collect();
    let text = |text: &str| text.as_bytes().to_vec();
    let expected = [
        (true, text("data: 1\n\n")),
        (false, text("data: 01234567890123456789\r\n\r\n")),
        (true, text("data: 3\n\n")),
    ];
    assert_eq!(frames(16, &reads), expected);
}

#[test]
fn the_buffer_is_bounded() {
    let mut framer = Framer::new(100);
    for _ in 0..1000 {
        framer.push(b"data: no end", |_| {});
        assert!(framer.carried() <= 100);
    }
    let mut ends = Vec::new();
    framer.finish(|frame| ends.push(frame.kind));
    assert_eq!(ends, [FrameKind::Overlong { last: true }]);
}

fn stream() -> impl Strategy<Value = Vec<u8>> {
    let end = prop::sample::select(vec!["\n", "\r\n", "\r"]);
    let line = prop::sample::select(vec![
        "",
        "",
        "",
        "data: x",
        "data:y",
        "data",
        "data: é",
        ": comment",
        "event: e",
        "id",
        "odd",
        "data: {\"a\":\"\\n\"}",
    ]);
    (
        any::<bool>(),
        proptest::collection::vec((line, end), 0..16),
        any::<bool>(),
    )
        .prop_map(|(mark, lines, open)| {
            let mut out = if mark {
                "\u{FEFF}".to_owned()
            } else {
                String::new()
            };
            out.extend(lines.into_iter().flat_map(|(line, end)| [line, end]));
            if open {
                out.push_str("data: last");
            }
            out.into_bytes()
        })
}

proptest! {
    #[test]
    fn read_boundaries_do_not_matter(
        stream in stream(), positions in proptest::collection::vec(any::<usize>(), 0..12),
    ) {
        let whole = frames(EVENT_LIMIT, std::slice::from_ref(&stream));
        prop_assert_eq!(&whole, &frames(EVENT_LIMIT, &cut(&stream, &positions)));
        let joined: Vec<u8> = whole.iter().flat_map(|(_, bytes)| bytes.clone()).collect();
        prop_assert_eq!(joined, stream);
    }

    #[test]
    fn agrees_with_the_standards_parser(
        stream in stream(), positions in proptest::collection::vec(any::<usize>(), 0..12),
    ) {
        let mut framer = Framer::default();
        let mut data = Vec::new();
        let mut take = |frame: &Frame<'_>| {
            if let Some(event) = frame.event() {
                data.extend(event.data().map(Cow::into_owned));
            }
        };
        for read in cut(&stream, &positions) {
            framer.push(&read, |frame| take(&frame));
        }
        framer.finish(|frame| take(&frame));
        prop_assert_eq!(data, reference(&stream));
    }

    #[test]
    fn a_limit_loses_no_bytes(
        stream in stream(), limit in 0_usize..30,
        positions in proptest::collection::vec(any::<usize>(), 0..12),
    ) {
        let joined: Vec<u8> =
            frames(limit, &cut(&stream, &positions)).into_iter().flat_map(|(_, bytes)| bytes).collect();
        prop_assert_eq!(joined, stream);
    }
}
