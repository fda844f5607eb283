use proptest::prelude::*;

use super::*;
use crate::tests::cut;

const TEXT: &str = "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}],\"usage\":null}\n\n";
const USAGE: &str =
    "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":3}}\n\n";
const DONE: &str = "data: [DONE]\n\n";

/// The inspector of a chat with one choice.
fn chat(hide_usage: bool) -> StreamInspector {
    StreamInspector::new(hide_usage, StreamEnding::Choices(1))
}

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
    received(chat(hide_usage), stream)
}

fn received(inspector: StreamInspector, stream: &str) -> (String, StreamInspector) {
    let (out, inspector) = forwarded(inspector, &[stream.as_bytes().to_vec()]);
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
    let audio = StreamInspector::new(false, StreamEnding::Audio);
    let (_, inspector) = received(audio, &[delta, delta, &done].concat());
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
        "data: {\"choices\":[],\"error\":{\"code\":500},\"usage\":{\"prompt_tokens\":1}}\n\n",
        "data: {\"type\":\"message_delta\",\"delta\":{},\"usage\":{\"prompt_tokens\":1}}\n\n",
        "data: {\"message\":{\"content\":\"a\"},\"usage\":{\"prompt_tokens\":1}}\n\n",
        "data: {\"choices\":null,\"usage\":null}\n\n",
        "data: {\"choices\":[{\"delta\":{\"content\":\"\\\"choices\\\":[],\\\"usage\\\":{}\"}}]}\n\n",
        ": \"choices\":[],\"usage\":{}\n\n",
        "data: not json \"usage\":{}\n\n",
        "\n",
    ] {
        assert_eq!(whole(true, event).0, event);
    }
}

#[test]
fn a_usage_event_without_choices_is_held_back() {
    let usage = "\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":3}";
    for members in [
        usage.to_owned(),
        format!("\"choices\":null,{usage}"),
        format!("\"choices\":[],{usage}"),
        format!("\"choices\" : [ ],\"error\":null,{usage}"),
        format!("{usage},\"id\":\"c-1\",\"object\":\"chat.completion.chunk\",\"model\":\"m\""),
    ] {
        let event = format!("data: {{{members}}}\n\n");
        let (out, inspector) = whole(true, &[TEXT, &event].concat());
        assert_eq!(out, TEXT, "{event}");
        assert_eq!(inspector.usage().unwrap().prompt_tokens, 7);
        assert!(inspector.is_complete(), "{event}");
        assert_eq!(whole(false, &event).0, event);
    }
}

#[test]
fn one_read_is_one_range_unless_something_is_held_back() {
    let mut inspector = chat(true);
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
    let mut inspector = chat(true);
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
    let (out, inspector) = forwarded(chat(true), &reads);
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
fn the_last_usage_counts_unless_it_is_implausible() {
    let later = USAGE.replace('3', "4");
    let odd = USAGE.replace('3', "18446744073709551615");
    let without = "data: {\"choices\":[],\"usage\":{}}\n\n";
    let (_, inspector) = whole(true, &[USAGE, &odd, &later, without].concat());
    assert_eq!(inspector.usage().unwrap().completion_tokens, Some(4));
    assert!(!inspector.has_implausible_usage());
    let (_, inspector) = whole(true, &[TEXT, USAGE, &later, &odd].concat());
    assert_eq!(inspector.usage(), None);
    assert!(inspector.has_implausible_usage() && inspector.estimated_tokens() > 0);
}

#[test]
fn the_first_event_is_classified_as_error_or_response() {
    let first = |stream: &str| whole(true, stream).1.first();
    assert_eq!(first(""), FirstEvent::Pending);
    assert_eq!(first(": ping\n\n: ping\n\n\n"), FirstEvent::Pending);
    assert_eq!(first(&[": ping\n\n", TEXT].concat()), FirstEvent::Response);
    assert_eq!(first(DONE), FirstEvent::Response);
    let role = "data: {\"choices\":[{\"delta\":{\"role\":\"assistant\"}}]}\n\n";
    assert_eq!(first(role), FirstEvent::Pending);
    assert_eq!(first(&[role, TEXT].concat()), FirstEvent::Response);
    assert_eq!(
        first("data: {\"error\":null,\"choices\":[{\"text\":\"a\"}]}\n\n"),
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
fn announcements_of_the_responses_api_are_not_the_first_event() {
    let first = |stream: &str| {
        let inspector = StreamInspector::new(true, StreamEnding::Response);
        received(inspector, stream).1.first()
    };
    let failed = "event: response.failed\ndata: {\"response\":{\"error\":\
        {\"code\":\"server_error\"}}}\n\n";
    let too_long = "event: response.failed\ndata: {\"response\":{\"error\":\
        {\"code\":\"context_length_exceeded\"}}}\n\n";
    for announce in [named, typed] {
        let announced = [
            "response.created",
            "response.queued",
            "response.in_progress",
        ]
        .map(announce)
        .concat();
        let after = |event: &str| first(&[&announced, event].concat());
        assert_eq!(after(""), FirstEvent::Pending);
        assert_eq!(after(failed), FirstEvent::Error(ErrorClass::Backend));
        assert_eq!(after(too_long), FirstEvent::Error(ErrorClass::Client));
        for event in ["response.output_item.added", "response.completed"] {
            assert_eq!(after(&announce(event)), FirstEvent::Response, "{event}");
        }
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

/// A chat event with these choices: index and finish reason.
fn finish(choices: &[(u32, &str)]) -> String {
    let choices: Vec<_> = choices
        .iter()
        .map(|(index, reason)| {
            format!("{{\"index\":{index},\"delta\":{{}},\"finish_reason\":{reason}}}")
        })
        .collect();
    format!("data: {{\"choices\":[{}]}}\n\n", choices.join(","))
}

fn named(name: &str) -> String {
    format!("event: {name}\ndata: {{\"response\":{{}}}}\n\n")
}

fn typed(name: &str) -> String {
    format!("data: {{ \"type\" : \"{name}\",\"text\":\"a\"}}\n\n")
}

fn is_complete(ending: StreamEnding, stream: &str) -> bool {
    let inspector = StreamInspector::new(true, ending);
    received(inspector, stream).1.is_complete()
}

#[test]
fn each_api_has_its_own_end() {
    use StreamEnding::{Audio, Body, Choices, Image, Response};
    let complete = is_complete;
    for ending in [Choices(1), Choices(9), Response, Audio, Image, Body] {
        assert!(complete(ending, &[TEXT, DONE].concat()), "{ending:?}");
    }
    for (ending, name) in [
        (Response, "response.completed"),
        (Response, "response.incomplete"),
        (Response, "response.failed"),
        (Response, "response.cancelled"),
        (Audio, "transcript.text.done"),
        (Audio, "speech.audio.done"),
        (Image, "image_generation.completed"),
        (Image, "image_edit.completed"),
    ] {
        for event in [named(name), typed(name)] {
            assert!(complete(ending, &event), "{event}");
            assert!(!complete(Choices(1), &event), "{event}");
        }
    }
    let reason = finish(&[(0, "\"stop\"")]);
    let top = "data: {\"text\":\"a\",\"finish_reason\" : \"stop\"}\n\n";
    for (ending, event) in [
        (Choices(1), reason.as_str()),
        (Choices(1), top),
        (Choices(1), USAGE),
        (Audio, &reason),
        (Body, ""),
        (Body, TEXT),
        // An engine with a format of its own.
        (Audio, "data: {\"text\":\"a\"}\n\n"),
        (Image, "data: {\"b64_json\":\"a\"}\n\n"),
    ] {
        assert!(complete(ending, event), "{ending:?} {event}");
    }
}

#[test]
fn other_events_are_no_end() {
    use StreamEnding::{Audio, Choices, Image, Response};
    let complete = is_complete;
    for (ending, event) in [
        (Choices(1), ""),
        (Choices(1), TEXT),
        (Choices(1), &finish(&[(0, "null")])),
        (Choices(1), &finish(&[(0, "\"\"")])),
        (Choices(1), &finish(&[(0, "\"null\"")])),
        // Usage in every event is no end.
        (
            Choices(1),
            "data: {\"choices\":[{}],\"usage\":{\"prompt_tokens\":1}}\n\n",
        ),
        (
            Choices(1),
            "data: {\"choices\":[{\"delta\":{\"content\":\"\\\"finish_reason\\\":\\\"a\\\"\"}}]}\n\n",
        ),
        (Response, &typed("response.created")),
        (Response, &typed("response.output_text.done")),
        (Response, "data: {\"delta\":\"response.completed\"}\n\n"),
        (
            Response,
            "data: {\"delta\":{\"type\":\"response.completed\"}}\n\n",
        ),
        (Response, "event: response.completed\n\n"),
        (Response, USAGE),
        (Audio, &typed("transcript.text.delta")),
        (Audio, &typed("speech.audio.delta")),
        (Audio, &finish(&[(0, "null")])),
        (Image, &typed("image_generation.partial_image")),
    ] {
        assert!(!complete(ending, event), "{ending:?} {event}");
    }
}

#[test]
fn several_choices_are_complete_when_each_has_a_finish_reason() {
    let complete = |choices, events: &[String]| {
        let inspector = StreamInspector::new(true, StreamEnding::Choices(choices));
        received(inspector, &events.concat()).1.is_complete()
    };
    let stop = "\"stop\"";
    let one = |index| finish(&[(index, stop)]);
    assert!(!complete(2, &[one(0)]));
    assert!(!complete(2, &[one(1), one(1)]));
    assert!(!complete(2, &[finish(&[(0, stop), (1, "null")])]));
    assert!(complete(2, &[one(1), TEXT.to_owned(), one(0)]));
    assert!(complete(2, &[finish(&[(0, stop), (1, "\"length\"")])]));
    // Any number of choices needs a bounded amount of memory.
    let many: Vec<_> = (0..300).map(one).collect();
    assert!(complete(300, &many));
    assert!(!complete(300, &many[..127]));
}

#[test]
fn a_stream_is_final_after_its_last_event_only() {
    let of = |ending, stream: &str| received(StreamInspector::new(true, ending), stream).1;
    assert!(of(StreamEnding::Choices(1), DONE).is_final());
    let completed = "event: response.completed\ndata: {}\n\n";
    assert!(of(StreamEnding::Response, completed).is_final());
    for event in [finish(&[(0, "\"stop\"")]).as_str(), USAGE] {
        let inspector = of(StreamEnding::Choices(1), event);
        assert!(inspector.is_complete() && !inspector.is_final(), "{event}");
    }
}

#[test]
fn an_unterminated_event_is_forwarded_only_if_the_stream_is_complete_with_it() {
    let stop = finish(&[(0, "\"stop\"")]);
    for last in [DONE, stop.as_str()] {
        let stream = [TEXT, last.trim_end()].concat();
        assert_eq!(whole(true, &stream).0, stream);
    }
    let error = "data: {\"error\":{\"code\":500}}";
    for last in ["data: {\"cho", ": comment", "event: x", error] {
        let (out, inspector) = whole(true, &[TEXT, last].concat());
        assert_eq!(out, TEXT, "{last}");
        assert_eq!(inspector.position(), StreamPosition::BetweenEvents);
        assert!(!inspector.reports_error(), "{last}");
        assert_eq!(inspector.later_error().is_some(), last == error);
    }
    let (_, inspector) = whole(true, &format!("{TEXT}{error}\n\n"));
    assert!(inspector.reports_error());
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
        let inspector = StreamInspector::new(true, StreamEnding::Response);
        let (out, inspector) = received(inspector, &stream);
        assert_eq!(out, stream);
        let used = inspector.usage().unwrap();
        assert_eq!((used.prompt_tokens, used.completion_tokens), (7, Some(3)));
        assert_eq!(
            (used.cached_tokens, used.reasoning_tokens),
            (Some(4), Some(1))
        );
        assert!(inspector.is_complete());
        let failed = FirstEvent::Error(ErrorClass::Backend);
        let first = if kind == "failed" {
            failed
        } else {
            FirstEvent::Response
        };
        assert_eq!(inspector.first(), first);
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
    let mut inspector = StreamInspector::with_limit(true, StreamEnding::Response, 1000);
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
    let (out, inspector) = forwarded(
        StreamInspector::with_limit(true, StreamEnding::Response, 1000),
        &reads,
    );
    assert!(out == [&event, DONE].concat().as_bytes());
    let (_, alone) = forwarded(
        StreamInspector::with_limit(true, StreamEnding::Response, 1000),
        &reads[..reads.len() - 1],
    );
    assert!(alone.is_complete());
    assert!(inspector.is_complete());
}

#[test]
fn a_line_can_be_inserted_only_between_events() {
    use StreamPosition::{AfterCr, BetweenEvents, InEvent};
    let with_limit = |limit| StreamInspector::with_limit(true, StreamEnding::Choices(1), limit);
    let mut inspector = with_limit(10);
    assert_eq!(inspector.position(), BetweenEvents);
    // Bytes that are not forwarded yet do not matter.
    assert!(inspector.push(b"data: 1").is_empty());
    assert_eq!(inspector.position(), BetweenEvents);
    assert!(!inspector.push(b"23456").is_empty());
    assert_eq!(inspector.position(), InEvent);
    inspector.push(b"7\n");
    assert_eq!(inspector.position(), InEvent);
    let mut ended = inspector.clone();
    assert!(ended.finish().is_empty());
    assert_eq!(ended.position(), InEvent);
    inspector.push(b"\n");
    assert_eq!(inspector.position(), BetweenEvents);

    for (reads, expected) in [
        (&["data: 1\r\n\r"][..], AfterCr),
        (&["data: 1\r\n\r", "\n"], BetweenEvents),
        (&["data: 1\r\n\r", "\ndata"], BetweenEvents),
        (&["data: 1\n\r"], AfterCr),
        (&["data: 1\r\r"], BetweenEvents),
        (&["data: 1\r\r", "\r"], BetweenEvents),
        (&["data: 1\r\r", "data: 2\n\r"], BetweenEvents),
        (&["data: 1\r\r", "data: 2\n\n", "data: 3\r\n\r"], AfterCr),
        // What the client does not receive does not matter.
        (
            &[TEXT, &USAGE.trim_end().replace(' ', ""), "\r\n\r"],
            BetweenEvents,
        ),
        (&[": ping\r\n"], BetweenEvents),
        (&[": ping\r"], BetweenEvents),
        (&["data: 1\n\n", "data: 2\r"], BetweenEvents),
    ] {
        let mut inspector = with_limit(1000);
        for read in reads {
            inspector.push(read.as_bytes());
        }
        assert_eq!(inspector.position(), expected, "{reads:?}");
        // An event that was cut is not forwarded.
        inspector.finish();
        assert_eq!(inspector.position(), expected, "{reads:?}");
    }
}

#[test]
fn comments_are_forwarded_before_their_event_is_complete() {
    for (reads, passed) in [
        (&[": a\n"][..], ": a\n"),
        (&[": a\r\n: b\n: c"], ": a\r\n: b\n"),
        (&[": a", "\n"], ": a\n"),
        (&[": a\r", "\n", ": b\n"], ": a\r\n: b\n"),
        (&[TEXT, ": a\n", "data"], &[TEXT, ": a\n"].concat()),
        // A CR may be half of a line end, and within an event nothing may pass.
        (&[": a\r"], ""),
        (&["data: 1\n: a\n"], ""),
    ] {
        let mut inspector = chat(true);
        let mut out = Vec::new();
        for read in reads {
            let forward = inspector.push(read.as_bytes());
            forward
                .slices(read.as_bytes())
                .for_each(|part| out.extend_from_slice(part));
        }
        assert_eq!(String::from_utf8(out).unwrap(), passed, "{reads:?}");
    }
}

proptest! {
    /// Read boundaries do not change the bytes for the client, which are the
    /// stream without the held events, or the data for accounting.
    #[test]
    fn read_boundaries_do_not_matter(
        parts in proptest::collection::vec((0_usize..8, 0_usize..3), 0..12),
        positions in proptest::collection::vec(any::<usize>(), 0..20),
        hide_usage: bool,
    ) {
        let kinds = [TEXT, USAGE, DONE, ": ping\n\n", "\n", "event: x\ndata: {\n\n", "data: é\ndata\n\n", ": ping\n"];
        let mut stream = String::new();
        let mut expected = String::new();
        for (kind, end) in parts {
            let event = kinds[kind].replace('\n', ["\n", "\r\n", "\r"][end]);
            // A CR before an event that begins with LF is one line end.
            let merges = stream.ends_with('\r') && event.starts_with('\n');
            // A comment that ends with CR is a part of the next event.
            if merges || event == ": ping\r" {
                continue;
            }
            stream.push_str(&event);
            if !(hide_usage && kind == 1) {
                expected.push_str(&event);
            }
        }
        let bytes = stream.as_bytes();
        let (whole, one) = forwarded(chat(hide_usage), &[bytes.to_vec()]);
        prop_assert_eq!(&whole, expected.as_bytes());
        let (parts, many) = forwarded(chat(hide_usage), &cut(bytes, &positions));
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
        let mut inspector = StreamInspector::with_limit(false, StreamEnding::Image, limit);
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
