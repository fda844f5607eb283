use proptest::prelude::*;

use super::*;
use crate::tests::cut;

const TEXT: &str = "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}],\"usage\":null}\n\n";
const USAGE: &str =
    "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":3}}\n\n";
const DONE: &str = "data: [DONE]\n\n";

/// The bytes that the client receives for these reads, and the final state.
fn forwarded(mut inspector: StreamInspector, reads: &[Vec<u8>]) -> (Vec<u8>, StreamInspector) {
    let mut out = Vec::new();
    for read in reads {
        let forward = inspector.push(read);
        let before = out.len();
        forward
            .slices(read)
            .for_each(|part| out.extend_from_slice(part));
        assert_eq!(out.len() - before, forward.len());
        assert_eq!(forward.is_empty(), out.len() == before);
        assert!(forward.runs().all(|run| !run.is_empty()));
    }
    let forward = inspector.finish();
    forward
        .slices(&[])
        .for_each(|part| out.extend_from_slice(part));
    (out, inspector)
}

fn whole(hide_usage: bool, stream: &str) -> (String, StreamInspector) {
    let (out, inspector) = forwarded(
        StreamInspector::new(hide_usage),
        &[stream.as_bytes().to_vec()],
    );
    (String::from_utf8(out).unwrap(), inspector)
}

#[test]
fn only_the_usage_event_for_the_gateway_is_held_back() {
    let stream = [TEXT, TEXT, USAGE, DONE].concat();
    let (out, inspector) = whole(true, &stream);
    assert_eq!(out, [TEXT, TEXT, DONE].concat());
    assert_eq!(inspector.usage().unwrap().completion_tokens, Some(3));
    assert!(inspector.is_complete());
    assert_eq!(
        (inspector.events(), inspector.data_bytes()),
        (2, 2 * (TEXT.len() - "data: \n\n".len()) as u64)
    );
    let (out, inspector) = whole(false, &stream);
    assert_eq!(out, stream);
    assert_eq!(inspector.usage().unwrap().prompt_tokens, 7);
    assert_eq!(inspector.events(), 2);
}

#[test]
fn tokens_are_estimated_by_events_or_by_bytes() {
    let (_, none) = whole(true, ": ping\n\n");
    assert_eq!(none.estimated_tokens(), 0);
    let (_, small) = whole(true, &TEXT.repeat(9));
    assert_eq!(small.estimated_tokens(), 9);
    // The bytes beyond the smallest event, at 3.5 bytes each.
    let event = |text: &str| TEXT.replace("\"a\"", &format!("\"{text}\""));
    let long = event(&"a".repeat(701));
    let (_, long) = whole(true, &[TEXT, &long, &long].concat());
    assert_eq!(long.estimated_tokens(), 400);
    // No frame is this long.
    let (_, one) = whole(true, &format!("data: {}\n\n", "a".repeat(512 + 700)));
    assert_eq!(one.estimated_tokens(), 200);
    let (_, usage) = whole(true, &[TEXT, USAGE, DONE].concat());
    assert_eq!(usage.estimated_tokens(), 1);
}

#[test]
fn the_event_that_ends_a_choice_does_not_set_the_frame_size() {
    let content = |word: &str| {
        format!(
            "data: {{\"id\":\"c-1\",\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\"{word}\"}},\
             \"finish_reason\":null}}]}}\n\n"
        )
    };
    let words = ["A", " stream", " ends", " as", " OpenAI", "'s", " do"].map(content);
    let end = "data: {\"id\":\"c-1\",\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n";
    for ends in [1, 2] {
        let (_, inspector) = whole(false, &[&words.concat(), &end.repeat(ends), DONE].concat());
        assert!(inspector.is_complete());
        let found = usize::try_from(inspector.estimated_tokens()).unwrap();
        assert_eq!(found, words.len() + ends);
    }
    // There may be only one event.
    let all = format!(
        "data: {{\"text\":\"{}\",\"finish_reason\":\"stop\"}}\n\n",
        "a sea ".repeat(700)
    );
    let (_, inspector) = whole(false, &all);
    assert!(inspector.estimated_tokens().abs_diff(1200 - 512 * 2 / 7) < 20);
}

#[test]
fn a_file_in_an_event_is_not_text() {
    let file = "iVBORw0K".repeat(EVENT_LIMIT / 8);
    let image =
        format!("data: {{\"delta\":{{\"images\":[\"data:image/png;base64,{file}\"]}}}}\n\n");
    let (_, inspector) = whole(false, &[TEXT, &image, TEXT].concat());
    assert_eq!(inspector.events(), 3);
    let found = inspector.estimated_tokens();
    assert!(found <= (9 << 10) * 2 / 7 + 100, "{found}");
}

#[test]
fn the_repeated_text_of_a_transcript_is_not_counted() {
    let delta = "data: {\"type\":\"transcript.text.delta\",\"delta\":\"a\"}\n\n";
    let done = format!(
        "data: {{\"type\":\"transcript.text.done\",\"text\":\"{}\"}}\n\n",
        "a".repeat(5000)
    );
    let (_, inspector) = whole(false, &[delta, delta, &done].concat());
    assert!(inspector.is_complete());
    assert_eq!((inspector.events(), inspector.estimated_tokens()), (2, 2));
}

#[test]
fn repeated_text_of_the_responses_api_is_not_counted() {
    let long = "a".repeat(5000);
    let delta = "event: response.output_text.delta\ndata: {\"type\":\"response.output_text.delta\",\"delta\":\"a\"}\n\n";
    let named = |kind: &str| format!("event: {kind}\ndata: {{\"text\":\"{long}\"}}\n\n");
    let typed = |kind: &str| format!("data: {{\"type\":\"{kind}\",\"text\":\"{long}\"}}\n\n");
    let stream = [
        named("response.created"),
        typed("response.in_progress"),
        delta.repeat(2),
        typed("response.output_text.done"),
    ]
    .concat();
    let (_, inspector) = whole(true, &stream);
    assert_eq!((inspector.events(), inspector.estimated_tokens()), (2, 2));
}

#[test]
fn events_that_resemble_usage_events_are_forwarded() {
    for event in [
        "data: {\"choices\":[],\"prompt_filter_results\":[],\"usage\":null}\n\n",
        "data: {\"choices\":[{}],\"usage\":{\"prompt_tokens\":1}}\n\n",
        "data: {\"usage\":{\"prompt_tokens\":1}}\n\n",
        "data: {\"choices\":[{\"delta\":{\"content\":\"\\\"choices\\\":[],\\\"usage\\\":{}\"}}]}\n\n",
        ": \"choices\":[],\"usage\":{}\n\n",
        "data: not json \"usage\":{}\n\n",
        "\n",
    ] {
        assert_eq!(whole(true, event).0, event);
    }
}

#[test]
fn one_read_is_one_range_unless_something_is_held_back() {
    let mut inspector = StreamInspector::new(true);
    let plain = [TEXT, TEXT, ": ping\n\n"].concat();
    let forward = inspector.push(plain.as_bytes());
    assert!(forward.carried.is_empty());
    assert_eq!(
        forward.runs().collect::<Vec<_>>(),
        std::iter::once(0..plain.len()).collect::<Vec<_>>()
    );
    let forward = inspector.push([TEXT, USAGE, DONE].concat().as_bytes());
    let after = TEXT.len() + USAGE.len();
    assert_eq!(
        forward.runs().collect::<Vec<_>>(),
        [0..TEXT.len(), after..after + DONE.len()]
    );
    let forward = inspector.push(USAGE.as_bytes());
    assert!(forward.is_empty());
}

#[test]
fn an_event_in_two_reads_is_forwarded_with_the_second() {
    let mut inspector = StreamInspector::new(true);
    let (one, two) = TEXT.split_at(20);
    assert!(inspector.push(one.as_bytes()).is_empty());
    assert_eq!(inspector.carried(), 20);
    let read = [two, TEXT].concat();
    let forward = inspector.push(read.as_bytes());
    assert_eq!(forward.carried, TEXT.as_bytes());
    assert_eq!(
        forward.runs().collect::<Vec<_>>(),
        std::iter::once(two.len()..read.len()).collect::<Vec<_>>()
    );
}

#[test]
fn the_line_end_of_a_held_event_is_held_back() {
    let usage = USAGE.replace('\n', "\r\n");
    let (one, two) = usage.split_at(usage.len() - 1);
    let reads = [one, two, "data: [DONE]\r\n\r", "\n"].map(|read| read.as_bytes().to_vec());
    let (out, inspector) = forwarded(StreamInspector::new(true), &reads);
    assert_eq!(out, b"data: [DONE]\r\n\r\n");
    assert!(inspector.usage().is_some());
}

#[test]
fn the_last_event_needs_no_terminator() {
    let (out, inspector) = whole(true, &[TEXT, USAGE.trim_end()].concat());
    assert_eq!(out, TEXT);
    assert!(inspector.usage().is_some());
    let (out, inspector) = whole(true, &[TEXT, DONE.trim_end()].concat());
    assert_eq!(out, [TEXT, DONE.trim_end()].concat());
    assert!(inspector.is_complete());
}

#[test]
fn the_last_valid_usage_counts() {
    let later = USAGE.replace('3', "4");
    let broken = USAGE.replace('3', "-4");
    let (_, inspector) = whole(true, &[USAGE, &later, &broken].concat());
    assert_eq!(inspector.usage().unwrap().completion_tokens, Some(4));
}

#[test]
fn the_first_event_is_classified_as_error_or_response() {
    let first = |stream: &str| whole(true, stream).1.first();
    assert_eq!(first(""), FirstEvent::Pending);
    assert_eq!(first(": ping\n\n: ping\n\n\n"), FirstEvent::Pending);
    assert_eq!(first(&[": ping\n\n", TEXT].concat()), FirstEvent::Response);
    assert_eq!(first(DONE), FirstEvent::Response);
    assert_eq!(
        first("data: {\"error\":null,\"choices\":[]}\n\n"),
        FirstEvent::Response
    );
    assert_eq!(
        first("data: {\"type\":\"message_start\"}\n\n"),
        FirstEvent::Response
    );
    for (event, class) in [
        (
            "data: {\"error\":{\"message\":\"busy\",\"code\":429}}\n\n",
            ErrorClass::Capacity,
        ),
        (
            "data: {\"error\":{\"type\":\"invalid_request_error\",\
             \"code\":\"context_length_exceeded\"}}\n\n",
            ErrorClass::Client,
        ),
        ("event: error\ndata: busy\n\n", ErrorClass::Backend),
        (
            "event: response.failed\ndata: {\"response\":{\"status\":\"failed\",\"error\":\
             {\"code\":\"rate_limit_exceeded\"}}}\n\n",
            ErrorClass::Capacity,
        ),
        (": ping\n\ndata: {\"error\":{}}\n\n", ErrorClass::Backend),
    ] {
        let error = FirstEvent::Error(class);
        assert_eq!(first(event), error, "{event}");
        assert_eq!(first(&[event, TEXT].concat()), error);
        let later = whole(true, &[TEXT, event].concat()).1;
        assert_eq!(later.first(), FirstEvent::Response);
        assert_eq!(later.later_error(), Some(class), "{event}");
        assert_eq!(whole(true, &[event, TEXT].concat()).1.later_error(), None);
    }
}

#[test]
fn a_failure_of_the_backend_precedes_other_later_errors() {
    let client = "data: {\"error\":{\"code\":\"content_filter\"}}\n\n";
    let backend = "data: {\"error\":{\"code\":\"server_error\"}}\n\n";
    for errors in [[client, backend], [backend, client]] {
        let later = whole(true, &[TEXT, &errors.concat()].concat()).1;
        assert_eq!(later.later_error(), Some(ErrorClass::Backend));
    }
}

#[test]
fn streams_without_a_done_marker_end_with_their_own_event() {
    let complete = |stream: &str| whole(true, stream).1.is_complete();
    for event in [
        "event: response.completed\ndata: {\"response\":{}}\n\n",
        "data: {\"type\":\"response.incomplete\",\"response\":{}}\n\n",
        "data: { \"type\" : \"response.failed\" }\n\n",
        "data: {\"type\":\"transcript.text.done\",\"text\":\"a\"}\n\n",
        "data: {\"type\":\"speech.audio.done\"}\n\n",
        "event: image_generation.completed\ndata: {\"b64_json\":\"\"}\n\n",
        "event: image_edit.completed\ndata: {}\n\n",
        "data: {\"choices\":[{\"finish_reason\" : \"stop\"}]}\n\n",
        USAGE,
    ] {
        assert!(complete(event), "{event}");
    }
    for event in [
        "",
        TEXT,
        "event: response.created\ndata: {\"type\":\"response.created\"}\n\n",
        "data: {\"type\":\"response.output_text.done\"}\n\n",
        "data: {\"delta\":\"response.completed\"}\n\n",
        "data: {\"delta\":{\"type\":\"response.completed\"}}\n\n",
        "event: response.completed\n\n",
        "data: {\"choices\":[{\"delta\":{\"content\":\"\\\"finish_reason\\\":\\\"a\\\"\"},\"finish_reason\":null}]}\n\n",
    ] {
        assert!(!complete(event), "{event}");
    }
}

#[test]
fn a_stream_of_the_responses_api_reports_usage() {
    let usage = "{\"input_tokens\":7,\"input_tokens_details\":{\"cached_tokens\":4},\
        \"output_tokens\":3,\"output_tokens_details\":{\"reasoning_tokens\":1},\"total_tokens\":10}";
    for kind in ["completed", "incomplete", "failed"] {
        let stream = format!(
            "event: response.created\ndata: {{\"type\":\"response.created\",\"response\":{{\"usage\":null}}}}\n\n\
             event: response.{kind}\ndata: {{\"type\":\"response.{kind}\",\"response\":{{\"usage\":{usage}}}}}\n\n"
        );
        let (out, inspector) = whole(true, &stream);
        assert_eq!(out, stream);
        let used = inspector.usage().unwrap();
        assert_eq!((used.prompt_tokens, used.completion_tokens), (7, Some(3)));
        assert_eq!(
            (used.cached_tokens, used.reasoning_tokens),
            (Some(4), Some(1))
        );
        assert!(inspector.is_complete());
        assert_eq!(inspector.first(), FirstEvent::Response);
    }
}

#[test]
fn an_oversized_event_is_forwarded_as_received_and_its_usage_counts() {
    let text = "x".repeat(50_000);
    let event = format!(
        "event: response.completed\ndata: {{\"type\":\"response.completed\",\"response\":{{\"output\":\"{text}\",\
         \"usage\":{{\"input_tokens\":7,\"output_tokens\":3}},\"user\":null}}}}\n\n"
    );
    let stream = [&event, USAGE, DONE].concat();
    let mut inspector = StreamInspector::with_limit(true, 1000);
    assert_eq!(inspector.push(&event.as_bytes()[..2000]).len(), 2000);
    assert_eq!(
        (inspector.first(), inspector.events(), inspector.carried()),
        (FirstEvent::Response, 1, 0)
    );
    let forward = inspector.push(&event.as_bytes()[2000..]);
    assert_eq!(forward.len(), event.len() - 2000);
    assert_eq!(inspector.usage().unwrap().completion_tokens, Some(3));
    assert_eq!(
        (inspector.events(), inspector.data_bytes()),
        (1, event.len() as u64)
    );

    let reads: Vec<_> = stream.as_bytes().chunks(700).map(<[u8]>::to_vec).collect();
    let (out, inspector) = forwarded(StreamInspector::with_limit(true, 1000), &reads);
    assert!(out == [&event, DONE].concat().as_bytes());
    let (_, alone) = forwarded(
        StreamInspector::with_limit(true, 1000),
        &reads[..reads.len() - 1],
    );
    assert!(alone.is_complete());
    assert!(inspector.is_complete());
}

#[test]
fn events_can_be_appended_only_after_complete_events() {
    let mut inspector = StreamInspector::with_limit(false, 10);
    assert!(inspector.is_between_events());
    // Bytes that are not forwarded yet do not matter.
    assert!(inspector.push(b"data: 1").is_empty() && inspector.is_between_events());
    assert!(!inspector.push(b"23456").is_empty() && !inspector.is_between_events());
    inspector.push(b"7\n");
    assert!(!inspector.is_between_events());
    inspector.push(b"\n");
    assert!(inspector.is_between_events());
}

proptest! {
    /// Read boundaries do not change the bytes for the client, which are the
    /// stream without the held events, or the data for accounting.
    #[test]
    fn read_boundaries_do_not_matter(
        parts in proptest::collection::vec((0_usize..7, 0_usize..3), 0..12),
        positions in proptest::collection::vec(any::<usize>(), 0..20),
        hide_usage: bool,
    ) {
        let kinds = [TEXT, USAGE, DONE, ": ping\n\n", "\n", "event: x\ndata: {\n\n", "data: é\ndata\n\n"];
        let mut stream = String::new();
        let mut expected = String::new();
        for (kind, end) in parts {
            let event = kinds[kind].replace('\n', ["\n", "\r\n", "\r"][end]);
            // A CR before an event that begins with LF is one line end.
            let merges = stream.ends_with('\r') && event.starts_with('\n');
            if merges {
                continue;
            }
            stream.push_str(&event);
            if !(hide_usage && kind == 1) {
                expected.push_str(&event);
            }
        }
        let bytes = stream.as_bytes();
        let (whole, one) = forwarded(StreamInspector::new(hide_usage), &[bytes.to_vec()]);
        prop_assert_eq!(&whole, expected.as_bytes());
        let (parts, many) = forwarded(StreamInspector::new(hide_usage), &cut(bytes, &positions));
        prop_assert_eq!(parts, whole);
        prop_assert_eq!(one.usage(), many.usage());
        prop_assert_eq!(one.first(), many.first());
        prop_assert_eq!(one.is_complete(), many.is_complete());
        prop_assert_eq!(one.later_error(), many.later_error());
        prop_assert_eq!((one.events(), one.data_bytes()), (many.events(), many.data_bytes()));
    }
}

#[test]
fn images_and_audio_of_a_stream_are_reported() {
    let quantities = |stream: &str, limit, measure| {
        let mut inspector = StreamInspector::with_limit(false, limit);
        stream
            .as_bytes()
            .chunks(50)
            .for_each(|part| drop(inspector.push(part)));
        drop(inspector.finish());
        inspector.quantities(measure)
    };
    let image = format!(
        "data: {{\"type\":\"image_generation.partial_image\"}}\n\n\
         data: {{\"type\":\"image_generation.completed\",\"b64_json\":\"{}\",\"usage\":{{}}}}\n\n",
        "A".repeat(4000)
    );
    for limit in [1 << 20, 1000] {
        assert_eq!(quantities(&image, limit, Measure::Images).images, Some(1));
        assert_eq!(
            quantities(&image, limit, Measure::Tokens),
            Quantities::default()
        );
    }
    let partial = &image[..60];
    assert_eq!(quantities(partial, 1000, Measure::Images).images, None);
    let heard = "data: {\"type\":\"transcript.text.done\",\"text\":\"a\",\
         \"usage\":{\"type\":\"duration\",\"seconds\":2}}\n\n";
    assert_eq!(
        quantities(heard, 1000, Measure::AudioInput).audio_ms,
        Some(2000)
    );
}
