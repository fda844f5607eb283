//! Faults in unstreamed responses.

use crate::case::{Case, JSON, cases};
use crate::support::{Barrier, Step, json_response};

fn head(fields: &str) -> String {
    format!("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n{fields}\r\n")
}

fn sized(length: usize) -> String {
    head(&format!("content-length: {length}\r\n"))
}

fn good() -> Vec<Step> {
    json_response("200 OK", JSON)
}

fn send(parts: &[&str]) -> Step {
    Step::Send(parts.concat().into_bytes())
}

fn chunked(body: &str) -> String {
    format!("{:x}\r\n{body}\r\n", body.len())
}

const CHUNKED: &str = "transfer-encoding: chunked\r\n";
const CUT: &str = "{\"choices\":[";

/// A rejected response: nothing of it reaches the client, and its connection is
/// not reused.
fn refused(parts: &[&str]) -> Case {
    Case::whole([send(parts), Step::UntilDisconnect])
        .refused(502, "upstream_unavailable")
        .hangs_up()
}

/// An endless head.
fn endless(start: &[u8], part: &[u8]) -> Case {
    let flood = Step::Flood {
        part: part.repeat((8 << 10) / part.len()),
        most: 1 << 30,
    };
    Case::whole([Step::Send(start.to_vec()), flood])
        .refused(502, "upstream_unavailable")
        .hangs_up()
}

cases! {
    one_byte_per_read:
        Case::whole([Step::Trickle([sized(JSON.len()).as_str(), JSON].concat().into_bytes())])
            .shows(&[JSON])
            .used();
    one_byte_per_chunk: {
        let chunks: Vec<u8> = JSON
            .bytes()
            .flat_map(|byte| [b'1', b'\r', b'\n', byte, b'\r', b'\n'])
            .collect();
        let steps = [
            send(&[&head(CHUNKED)]),
            Step::Send(chunks),
            send(&["0\r\n\r\n"]),
        ];
        Case::whole(steps).shows(&[JSON]).used()
    };
    a_response_without_usage_is_unknown: Case::whole(json_response("200 OK", "{}")).shows(&["{}"]);
    an_empty_body_is_valid:
        Case::whole([send(&[&sized(0)])]).shows(&[""]);
    no_content_is_valid:
        Case::whole([send(&["HTTP/1.1 204 No Content\r\n\r\n"])]).responds(204, b"");
    an_error_is_forwarded_unchanged:
        Case::whole(json_response("422 X", "{\"error\":{\"message\":\"no\"}}"))
            .responds(422, b"{\"error\":{\"message\":\"no\"}}");
    an_html_page_is_forwarded: {
        let text = "HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: 6\r\n\r\n<html>";
        Case::whole([send(&[text])]).shows(&["<html>"])
    };
    an_unrequested_coding_is_forwarded_uninspected: {
        let mut bytes = head("content-encoding: gzip\r\ncontent-length: 4\r\n").into_bytes();
        bytes.extend(b"\x1f\x8b\x08\x00");
        Case::whole([Step::Send(bytes)]).shows(&[b"\x1f\x8b\x08\x00"])
    };
    interim_responses_are_skipped: {
        let hints = "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n";
        Case::whole([send(&[hints, &sized(JSON.len()), JSON])])
            .shows(&[JSON])
            .used()
    };
    trailers_are_not_forwarded: {
        let trailers = "0\r\nx-checksum: 7\r\nset-cookie: a=b\r\n\r\n";
        Case::whole([send(&[&head(CHUNKED), &chunked(JSON), trailers])])
            .shows(&[JSON])
            .used()
    };
    a_body_may_end_with_the_connection:
        Case::whole([send(&["HTTP/1.0 200 OK\r\n\r\n", JSON]), Step::Close])
            .shows(&[JSON])
            .used();
    a_body_may_end_with_the_connection_in_http_1_1:
        Case::whole([send(&[&head(""), JSON]), Step::Close])
            .shows(&[JSON])
            .used();
    a_response_may_precede_the_request_body:
        Case::whole(json_response("413 X", "{\"error\":1}"))
            .hasty()
            .responds(413, b"{\"error\":1}");

    reset_before_the_head: Case::whole([Step::Reset]).refused(502, "upstream_unavailable");
    reset_before_the_head_fails_over:
        Case::whole([Step::Reset]).backup(good()).shows(&[JSON]).used();
    end_before_the_head: Case::whole([Step::Close]).refused(502, "upstream_unavailable");
    end_within_the_head:
        Case::whole([send(&["HTTP/1.1 200 OK\r\ncontent-"]), Step::Close])
            .refused(502, "upstream_unavailable");
    reset_within_the_head_fails_over:
        Case::whole([send(&["HTTP/1.1 200 OK\r\ncontent-"]), Step::Reset])
            .backup(good())
            .shows(&[JSON])
            .used();
    a_body_that_ends_early_fails_over:
        Case::whole([send(&[&sized(50), CUT]), Step::Close])
            .backup(good())
            .shows(&[JSON])
            .used();
    a_body_that_is_reset_fails_over:
        Case::whole([send(&[&head(CHUNKED), "40\r\n", CUT]), Step::Reset])
            .backup(good())
            .shows(&[JSON])
            .used();
    a_body_without_its_last_brace_fails_over:
        Case::whole([send(&[&sized(CUT.len()), CUT])])
            .backup(good())
            .shows(&[JSON])
            .used();
    a_body_that_ends_early_is_replaced_by_an_error:
        Case::whole([send(&[&sized(50), CUT]), Step::Close]).refused(502, "upstream_unavailable");
    end_between_head_and_body:
        Case::whole([send(&[&sized(50)]), Step::Close]).breaks_within(&[""]);
    reset_between_head_and_body:
        Case::whole([send(&[&sized(50)]), Step::Reset]).breaks_within(&[""]);
    end_within_a_length:
        Case::whole([send(&[&sized(50), CUT]), Step::Close]).breaks_within(&[CUT]);
    reset_within_a_length: {
        let barrier = Barrier::new();
        let steps = [
            send(&[&sized(50), CUT]),
            Step::Wait(barrier.clone()),
            Step::Reset,
        ];
        Case::whole(steps).opens(&barrier, CUT.len()).breaks_within(&[CUT])
    };
    end_within_a_chunk:
        Case::whole([send(&[&head(CHUNKED), "40\r\n", CUT]), Step::Close])
            .breaks_within(&[CUT]);
    reset_within_a_chunk:
        Case::whole([send(&[&head(CHUNKED), "40\r\n", CUT]), Step::Reset])
            .breaks_within(&[CUT]);
    end_between_chunks:
        Case::whole([send(&[&head(CHUNKED), &chunked(CUT)]), Step::Close])
            .breaks_within(&[CUT]);
    end_before_the_final_crlf:
        Case::whole([send(&[&head(CHUNKED), &chunked(JSON), "0\r\n"]), Step::Close])
            .breaks_within(&[JSON])
            .used();
    an_invalid_chunk_size:
        Case::whole([send(&[&head(CHUNKED), "zz\r\n"]), Step::UntilDisconnect])
            .breaks_within(&[""])
            .hangs_up();
    an_invalid_size_of_a_later_chunk:
        Case::whole([send(&[&head(CHUNKED), &chunked(CUT), "-1\r\n"]), Step::UntilDisconnect])
            .breaks_within(&[CUT])
            .hangs_up();
    a_chunk_longer_than_its_size:
        Case::whole([send(&[&head(CHUNKED), "1\r\n{}\r\n0\r\n\r\n"]), Step::UntilDisconnect])
            .breaks_within(&["{"])
            .hangs_up();

    length_and_chunked_encoding_are_invalid:
        refused(&[&head("content-length: 2\r\ntransfer-encoding: chunked\r\n"), "0\r\n\r\n"]);
    chunked_encoding_and_length_are_invalid:
        refused(&[&head("transfer-encoding: chunked\r\ncontent-length: 2\r\n"), "0\r\n\r\n"]);
    two_lengths_are_invalid:
        refused(&[&head("content-length: 2\r\ncontent-length: 3\r\n"), "{}"]);
    a_list_of_lengths_is_invalid:
        refused(&[&head("content-length: 2, 2\r\n"), "{}"]);
    a_length_with_a_sign_is_invalid:
        refused(&[&head("content-length: +2\r\n"), "{}"]);
    an_unknown_transfer_coding_is_invalid:
        refused(&[&head("transfer-encoding: gzip, chunked\r\n"), "0\r\n\r\n"]);
    chunked_encoding_in_http_1_0_is_invalid:
        refused(&["HTTP/1.0 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n"]);
    another_protocol_is_invalid:
        refused(&["HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\n\r\n"]);
    a_response_that_is_not_http_is_invalid: refused(&["SSH-2.0-OpenSSH_9.6\r\n"]);
    a_folded_header_line_is_invalid:
        refused(&["HTTP/1.1 200 OK\r\nx-a: b\r\n content-length: 2\r\n\r\n{}"]);
    length_and_chunked_encoding_fail_over: {
        let fields = "content-length: 2\r\ntransfer-encoding: chunked\r\n";
        Case::whole([send(&[&head(fields), "0\r\n\r\n"]), Step::UntilDisconnect])
            .backup(good())
            .shows(&[JSON])
            .used()
            .hangs_up()
    };

    timeout_before_the_head:
        Case::whole([Step::UntilDisconnect])
            .flag("--upstream-timeout=1")
            .refused(504, "upstream_timeout")
            .hangs_up();
    timeout_within_the_head:
        Case::whole([send(&["HTTP/1.1 200 OK\r\nx-a: "]), Step::UntilDisconnect])
            .flag("--upstream-timeout=1")
            .refused(504, "upstream_timeout")
            .hangs_up();
    timeout_after_an_interim_response:
        Case::whole([send(&["HTTP/1.1 103 Early Hints\r\n\r\n"]), Step::UntilDisconnect])
            .flag("--upstream-timeout=1")
            .refused(504, "upstream_timeout")
            .hangs_up();
    timeout_before_the_head_fails_over:
        Case::whole([Step::UntilDisconnect])
            .flag("--upstream-timeout=1")
            .backup(good())
            .shows(&[JSON])
            .used()
            .hangs_up();
    an_endless_field_value: endless(b"HTTP/1.1 200 OK\r\nx-a: ", b"b");
    endless_header_fields: endless(b"HTTP/1.1 200 OK\r\n", b"x-a: b\r\n");
    an_endless_status_line: endless(b"HTTP/1.1 200 ", b"O");
    endless_interim_responses:
        endless(b"", b"HTTP/1.1 103 Early Hints\r\n\r\n").flag("--upstream-timeout=5");
}
