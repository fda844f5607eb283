//! Faults in streamed responses.

use crate::case::{ASKING, Case, DONE, ONE, TWO, USAGE, cases};
use crate::support::{Barrier, Step, events};

/// A stream without faults.
fn good(parts: &[&str]) -> Vec<Step> {
    vec![Step::Send(events(parts, true))]
}

/// A stream of these events that ends like this once the client has received them.
fn aborts(parts: &[&str], more: &[u8], end: Step) -> Case {
    let barrier = Barrier::new();
    let steps = [
        Step::Send(events(parts, false)),
        Step::Send(more.to_vec()),
        Step::Wait(barrier.clone()),
        end,
    ];
    let length = parts.iter().map(|part| part.len()).sum();
    Case::streamed(steps)
        .opens(&barrier, length)
        .error_after(parts)
}

/// A stream that sends only these bytes after its head, and ends.
fn begins(bytes: &[u8], end: Step) -> Case {
    let mut response = events::<&str>(&[], false);
    response.extend_from_slice(bytes);
    Case::streamed([Step::Send(response), end])
}

fn sized(length: usize, body: &str) -> Vec<u8> {
    format!(
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: {length}\r\n\r\n{body}"
    )
    .into_bytes()
}

const ERROR: &str = "data: {\"error\":{\"message\":\"overloaded\",\"code\":503}}\n\n";
/// In the format of a router of several providers.
const LATE_ERROR: &str = "event: chunk\ndata: {\"id\":\"1\",\"error\":{\"code\":502},\
\"choices\":[{\"delta\":{},\"finish_reason\":\"error\"}]}\n\n";
const NO_ERROR: &str = "data: {\"error\":null,\"choices\":[{\"delta\":\
{\"content\":\"{\\\"error\\\":{}}\"},\"finish_reason\":null}]}\n\n";
const FINISH: &str = "data: {\"choices\": [{\"delta\": {}, \"finish_reason\": \"length\"}]}\n\n";
const BEAT: &str = ": ping\n\n";
/// The first event of some engines, without choices and without usage.
const EMPTY: &str = "data: {\"choices\":[],\"prompt_filter_results\":[]}\n\n";
const NULL: &str = "data: {\"choices\":[],\"usage\":null}\n\n";
const LAST_WITH_USAGE: &str = "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}],\
\"usage\":{\"prompt_tokens\":11,\"completion_tokens\":5}}\n\n";

cases! {
    one_byte_per_read:
        Case::streamed([Step::Trickle(events(&[ONE, BEAT, TWO, USAGE, DONE], true))])
            .shows(&[ONE, BEAT, TWO, DONE])
            .used();
    lines_end_with_cr_lf: {
        let crlf = [ONE, USAGE, DONE].map(|event| event.replace('\n', "\r\n"));
        Case::streamed([Step::Send(events(&crlf, true))])
            .shows(&[crlf[0].as_str(), crlf[2].as_str()])
            .used()
    };
    lines_end_with_cr: {
        let cr = [ONE, USAGE, DONE].map(|event| event.replace('\n', "\r"));
        Case::streamed([Step::Send(events(&cr, true))])
            .shows(&[cr[0].as_str(), cr[2].as_str()])
            .used()
    };
    lines_end_with_cr_lf_one_byte_per_read: {
        let crlf = [ONE, USAGE, DONE].map(|event| event.replace('\n', "\r\n"));
        Case::streamed([Step::Trickle(events(&crlf, true))])
            .shows(&[crlf[0].as_str(), crlf[2].as_str()])
            .used()
    };
    comments_and_heartbeats_are_forwarded:
        Case::streamed(good(&[BEAT, ONE, BEAT, BEAT, TWO, ":\n\n", USAGE, DONE]))
            .shows(&[BEAT, ONE, BEAT, BEAT, TWO, ":\n\n", DONE])
            .used();
    characters_are_split_between_reads: {
        let bytes = [ONE, TWO, USAGE, DONE].concat().into_bytes();
        let chunks: Vec<_> = bytes.chunks(1).collect();
        Case::streamed([Step::Send(events(&chunks, true))])
            .shows(&[ONE, TWO, DONE])
            .used()
    };
    the_last_event_has_no_final_newline:
        Case::streamed(good(&[ONE, USAGE, DONE.trim_end()]))
            .shows(&[ONE, DONE.trim_end()])
            .used();
    usage_without_final_newline_is_removed:
        Case::streamed(good(&[ONE, USAGE.trim_end()]))
            .shows(&[ONE])
            .used();
    usage_in_the_last_choice_is_forwarded:
        Case::streamed(good(&[ONE, LAST_WITH_USAGE, DONE]))
            .shows(&[ONE, LAST_WITH_USAGE, DONE])
            .used();
    usage_requested_by_the_client_is_forwarded:
        Case::streamed(good(&[ONE, USAGE, DONE]))
            .request(ASKING)
            .shows(&[ONE, USAGE, DONE])
            .used();
    usage_requested_by_the_gateway_is_removed:
        Case::streamed(good(&[ONE, USAGE, DONE]))
            .shows(&[ONE, DONE])
            .used();
    empty_choices_without_usage_are_forwarded:
        Case::streamed(good(&[EMPTY, ONE, NULL, USAGE, DONE]))
            .shows(&[EMPTY, ONE, NULL, DONE])
            .used();
    a_stream_without_usage_is_unknown:
        Case::streamed(good(&[ONE, DONE])).shows(&[ONE, DONE]);

    an_error_as_first_event_fails_over:
        Case::streamed(good(&[BEAT, ERROR]))
            .backup(good(&[ONE, USAGE, DONE]))
            .shows(&[ONE, DONE])
            .used();
    a_later_error_event_is_forwarded_and_counted:
        Case::streamed(good(&[ONE, ERROR, DONE]))
            .shows(&[ONE, ERROR, DONE])
            .counted_as("upstream_error");

    an_error_in_another_format_is_counted:
        Case::streamed(good(&[ONE, LATE_ERROR]))
            .shows(&[ONE, LATE_ERROR])
            .counted_as("upstream_error");
    text_about_errors_is_not_an_error:
        Case::streamed(good(&[ONE, NO_ERROR, DONE])).shows(&[ONE, NO_ERROR, DONE]);

    an_end_without_done_is_an_abort:
        Case::streamed(good(&[ONE, TWO])).error_after(&[ONE, TWO]);
    an_end_without_an_event_is_an_abort:
        Case::streamed(good(&[BEAT])).refused(502, "upstream_unavailable");
    a_finish_reason_marks_the_end:
        Case::streamed(good(&[ONE, FINISH])).shows(&[ONE, FINISH]);
    the_usage_marks_the_end:
        Case::streamed(good(&[ONE, USAGE])).shows(&[ONE]).used();

    reset_before_the_head:
        Case::streamed([Step::Reset]).refused(502, "upstream_unavailable");
    reset_before_the_head_fails_over:
        Case::streamed([Step::Reset]).backup(good(&[ONE, DONE])).shows(&[ONE, DONE]);
    end_before_the_head_fails_over:
        Case::streamed([Step::Close]).backup(good(&[ONE, DONE])).shows(&[ONE, DONE]);
    reset_within_the_head:
        Case::streamed([Step::Send(b"HTTP/1.1 200 O".to_vec()), Step::Reset])
            .refused(502, "upstream_unavailable");
    end_within_the_head:
        Case::streamed([Step::Send(b"HTTP/1.1 200 O".to_vec()), Step::Close])
            .refused(502, "upstream_unavailable");
    reset_between_head_and_body:
        begins(b"", Step::Reset).refused(502, "upstream_unavailable");
    end_between_head_and_body_fails_over:
        begins(b"", Step::Close).backup(good(&[ONE, DONE])).shows(&[ONE, DONE]);
    end_within_the_first_event_fails_over:
        begins(b"8\r\ndata: {\"\r\n", Step::Close)
            .backup(good(&[ONE, DONE]))
            .shows(&[ONE, DONE]);
    reset_between_events: aborts(&[ONE, TWO], b"", Step::Reset);
    end_between_events: aborts(&[ONE, TWO], b"", Step::Close);
    reset_within_a_chunk: aborts(&[ONE], b"40\r\ndata: {\"cho", Step::Reset);
    end_within_a_chunk: aborts(&[ONE], b"40\r\ndata: {\"cho", Step::Close);
    end_within_the_size_of_a_chunk: aborts(&[ONE], b"4", Step::Close);
    end_before_the_final_crlf:
        Case::streamed([Step::Send(events(&[ONE, DONE], false)), Step::Close])
            .shows(&[ONE, DONE]);
    end_within_a_length: {
        let barrier = Barrier::new();
        let body = [ONE, "data: {\"cho"].concat();
        let steps = [
            Step::Send(sized(500, &body)),
            Step::Wait(barrier.clone()),
            Step::Close,
        ];
        Case::streamed(steps).opens(&barrier, ONE.len()).error_after(&[ONE])
    };
    reset_of_a_body_that_ends_with_the_connection: {
        let barrier = Barrier::new();
        let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n";
        let steps = [
            Step::Send([head, ONE].concat().into_bytes()),
            Step::Wait(barrier.clone()),
            Step::Reset,
        ];
        Case::streamed(steps).opens(&barrier, ONE.len()).error_after(&[ONE])
    };
    an_invalid_size_of_a_later_chunk: aborts(&[ONE], b"zz\r\n", Step::UntilDisconnect).hangs_up();
    an_invalid_size_of_the_first_chunk:
        begins(b"zz\r\n", Step::UntilDisconnect).refused(502, "upstream_unavailable").hangs_up();
    an_overflowing_chunk_size:
        aborts(&[ONE], b"fffffffffffffffff\r\n", Step::UntilDisconnect).hangs_up();
    a_chunk_longer_than_its_size:
        aborts(&[ONE], b"1\r\n\n\n\n", Step::UntilDisconnect).hangs_up();
    endless_trailers: {
        let flood = Step::Flood { part: b"x-a: b\r\n".repeat(1 << 10), most: 1 << 30 };
        aborts(&[ONE], b"0\r\n", flood).hangs_up()
    };
    endless_chunk_extensions: {
        let flood = Step::Flood { part: vec![b'x'; 8 << 10], most: 1 << 30 };
        aborts(&[ONE], b"5;", flood).hangs_up()
    };

    a_content_length_instead_of_chunks: {
        let body = [ONE, TWO, USAGE, DONE].concat();
        Case::streamed([Step::Send(sized(body.len(), &body))])
            .shows(&[ONE, TWO, DONE])
            .used()
    };
    the_end_of_the_connection_instead_of_chunks: {
        let head = "HTTP/1.0 200 OK\r\ncontent-type: text/event-stream\r\n\r\n";
        let bytes = [head, ONE, USAGE, DONE].concat().into_bytes();
        Case::streamed([Step::Send(bytes), Step::Close])
            .shows(&[ONE, DONE])
            .used()
    };
    interim_responses_are_skipped: {
        let mut bytes = b"HTTP/1.1 100 Continue\r\n\r\n\
HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n"
            .to_vec();
        bytes.extend(events(&[ONE, USAGE, DONE], true));
        Case::streamed([Step::Send(bytes)]).shows(&[ONE, DONE]).used()
    };
    trailers_are_not_forwarded: {
        let mut bytes = events(&[ONE, USAGE, DONE], false);
        bytes.extend(b"0\r\nx-checksum: 7\r\nset-cookie: a=b\r\n\r\n");
        Case::streamed([Step::Send(bytes)]).shows(&[ONE, DONE]).used()
    };
    chunk_extensions_are_ignored: {
        let mut bytes = events(&[ONE], false);
        bytes.extend(format!("{:X};a=b;c=\"d\"\r\n{DONE}\r\n000\r\n\r\n", DONE.len()).bytes());
        Case::streamed([Step::Send(bytes)]).shows(&[ONE, DONE])
    };
    an_html_page_instead_of_a_stream_is_forwarded: {
        let page = b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: 13\r\n\r\n\
<html></html>";
        Case::streamed([Step::Send(page.to_vec())])
            .without_event()
            .shows(&["<html></html>"])
    };
    an_unrequested_coding_is_forwarded_uninspected: {
        let bytes = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\
content-encoding: gzip\r\ncontent-length: 6\r\n\r\n\x1f\x8b\x08\n\n\x00";
        Case::streamed([Step::Send(bytes.to_vec())])
            .without_event()
            .shows(&[b"\x1f\x8b\x08\n\n\x00"])
    };
    length_and_chunked_encoding_are_invalid: {
        let text = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: 4\r\n\
transfer-encoding: chunked\r\n\r\n";
        let chunk = format!("{:x}\r\n{ONE}\r\n0\r\n\r\n", ONE.len());
        Case::streamed([Step::Send([text, &chunk].concat().into_bytes()), Step::UntilDisconnect])
            .refused(502, "upstream_unavailable")
            .hangs_up()
    };
    timeout_before_the_head:
        Case::streamed([Step::UntilDisconnect])
            .flag("--upstream-timeout=1")
            .refused(504, "upstream_timeout")
            .hangs_up();
    timeout_before_the_head_fails_over:
        Case::streamed([Step::UntilDisconnect])
            .flag("--upstream-timeout=1")
            .backup(good(&[ONE, DONE]))
            .shows(&[ONE, DONE])
            .hangs_up();
}
