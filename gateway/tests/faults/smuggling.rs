//! Request smuggling: ambiguous requests are rejected and the connection is closed,
//! so that no bytes after them are parsed as a request.

use crate::case::WHOLE;
use crate::requests::until_closed;
use crate::support::{KEY, TestGateway, Upstream, json_response};

/// A request that follows a rejected one and must not be answered.
const HIDDEN: &str = "GET /livez HTTP/1.1\r\nhost: g\r\n\r\n";

/// Header fields and body of a POST request.
type Shape = (&'static str, &'static str);

const CHUNKS: &str = "11\r\n{\"model\":\"small\"}\r\n0\r\n\r\n";

fn with_line(line: &str, (fields, body): Shape) -> String {
    format!("{line}\r\nhost: g\r\nauthorization: Bearer {KEY}\r\n{fields}\r\n{body}{HIDDEN}")
}

async fn refused(requests: impl IntoIterator<Item = String>) {
    let upstream = Upstream::start([json_response("200 OK", "{}")]).await;
    let gateway = TestGateway::start(&[&upstream]).await;
    let mut faults = Vec::new();
    for request in requests {
        let wait = until_closed(gateway.address, request.as_bytes());
        let response = tokio::time::timeout(std::time::Duration::from_secs(2), wait).await;
        let seen = match &response {
            Err(_) => "not closed".to_owned(),
            Ok(response) => response.lines().next().unwrap_or("nothing").to_owned(),
        };
        let once = response.is_ok_and(|response| {
            response
                .lines()
                .filter(|line| line.starts_with("HTTP/"))
                .count()
                == 1
                && !response.contains("\"status\"")
        });
        let status = seen.get(9..12).unwrap_or_default();
        if !once || !matches!(status, "400" | "501" | "505") {
            faults.push(format!("{request:?}: {seen}"));
        }
    }
    let forwarded = upstream.seen().requests.len();
    assert!(faults.is_empty(), "{forwarded} went upstream: {faults:#?}");
    assert_eq!(forwarded, 0);
    // None of them was counted as a request.
    assert!(gateway.finish().await.is_empty());
}

async fn shapes(list: &[Shape]) {
    let line = "POST /v1/chat/completions HTTP/1.1";
    refused(list.iter().map(|shape| with_line(line, *shape))).await;
}

#[test]
fn the_test_body_is_17_bytes() {
    assert_eq!(WHOLE.len(), 17);
}

#[tokio::test]
async fn content_length_with_chunked_encoding() {
    shapes(&[
        (
            "content-length: 17\r\ntransfer-encoding: chunked\r\n",
            CHUNKS,
        ),
        (
            "transfer-encoding: chunked\r\ncontent-length: 17\r\n",
            CHUNKS,
        ),
        (
            "transfer-encoding: chunked\r\nContent-Length: 0\r\n",
            CHUNKS,
        ),
    ])
    .await;
}

#[tokio::test]
async fn different_content_lengths() {
    shapes(&[
        ("content-length: 17\r\ncontent-length: 18\r\n", WHOLE),
        ("content-length: 0\r\ncontent-length: 17\r\n", WHOLE),
    ])
    .await;
}

#[tokio::test]
async fn repeated_content_lengths() {
    shapes(&[
        ("content-length: 17\r\nCONTENT-LENGTH: 17\r\n", WHOLE),
        ("content-length: 17, 17\r\n", WHOLE),
    ])
    .await;
}

#[tokio::test]
async fn invalid_content_lengths() {
    shapes(&[
        ("content-length: +17\r\n", WHOLE),
        ("content-length: -17\r\n", WHOLE),
        ("content-length: 0x11\r\n", WHOLE),
        ("content-length: 17a\r\n", WHOLE),
        ("content-length: 1 7\r\n", WHOLE),
        ("content-length: 18446744073709551633\r\n", WHOLE),
        ("content-length:\r\n", WHOLE),
    ])
    .await;
}

#[tokio::test]
async fn transfer_codings_that_hide_the_end() {
    shapes(&[
        ("transfer-encoding: gzip\r\n", CHUNKS),
        ("transfer-encoding: chunked, gzip\r\n", CHUNKS),
        ("transfer-encoding: xchunked\r\n", CHUNKS),
        ("transfer-encoding: chunked;a=b\r\n", CHUNKS),
        ("transfer-encoding: \"chunked\"\r\n", CHUNKS),
        ("transfer-encoding:\r\n", CHUNKS),
    ])
    .await;
}

#[tokio::test]
async fn unsupported_transfer_codings() {
    shapes(&[
        ("transfer-encoding: gzip, chunked\r\n", CHUNKS),
        ("transfer-encoding: identity, chunked\r\n", CHUNKS),
        ("transfer-encoding: chunked, chunked\r\n", CHUNKS),
        (
            "transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n",
            CHUNKS,
        ),
        (
            "transfer-encoding: identity\r\ntransfer-encoding: chunked\r\n",
            CHUNKS,
        ),
    ])
    .await;
}

#[tokio::test]
async fn malformed_field_names() {
    shapes(&[
        ("content-length : 17\r\n", WHOLE),
        ("transfer-encoding : chunked\r\n", CHUNKS),
        ("transfer-encoding\t: chunked\r\n", CHUNKS),
        (
            "content-length: 17\r\n transfer-encoding: chunked\r\n",
            WHOLE,
        ),
        ("content-length:\r\n 17\r\n", WHOLE),
        ("x\0-a: b\r\ncontent-length: 17\r\n", WHOLE),
        ("x a: b\r\ncontent-length: 17\r\n", WHOLE),
        ("no colon\r\ncontent-length: 17\r\n", WHOLE),
    ])
    .await;
}

#[tokio::test]
async fn field_values_with_control_characters() {
    shapes(&[
        ("x-a: b\rcontent-length: 0\r\ncontent-length: 17\r\n", WHOLE),
        ("x-a: b\0\r\ncontent-length: 17\r\n", WHOLE),
        ("x-a: b\x0b\r\ncontent-length: 17\r\n", WHOLE),
    ])
    .await;
}

#[tokio::test]
async fn lines_that_end_with_a_bare_lf() {
    shapes(&[
        ("content-length: 17\n", WHOLE),
        ("x-a: b\ncontent-length: 17\r\n", WHOLE),
    ])
    .await;
}

#[tokio::test]
async fn invalid_chunk_sizes() {
    shapes(&[
        (
            "transfer-encoding: chunked\r\n",
            "0x11\r\n{\"model\":\"small\"}\r\n0\r\n\r\n",
        ),
        (
            "transfer-encoding: chunked\r\n",
            "+11\r\n{\"model\":\"small\"}\r\n0\r\n\r\n",
        ),
        (
            "transfer-encoding: chunked\r\n",
            "-11\r\n{\"model\":\"small\"}\r\n0\r\n\r\n",
        ),
        (
            "transfer-encoding: chunked\r\n",
            "g\r\n{\"model\":\"small\"}\r\n0\r\n\r\n",
        ),
        (
            "transfer-encoding: chunked\r\n",
            "\r\n{\"model\":\"small\"}\r\n0\r\n\r\n",
        ),
        (
            "transfer-encoding: chunked\r\n",
            "10000000000000011\r\n{\"model\":\"small\"}\r\n0\r\n\r\n",
        ),
    ])
    .await;
}

#[tokio::test]
async fn chunks_that_do_not_match_their_size() {
    shapes(&[
        (
            "transfer-encoding: chunked\r\n",
            "11\r\n{\"model\":\"small\"}xx\r\n0\r\n\r\n",
        ),
        (
            "transfer-encoding: chunked\r\n",
            "11\r\n{\"model\":\"small\"}\n0\r\n\r\n",
        ),
        (
            "transfer-encoding: chunked\r\n",
            "10\r\n{\"model\":\"small\"}\r\n0\r\n\r\n",
        ),
    ])
    .await;
}

#[tokio::test]
async fn chunk_lines_with_malformed_line_endings() {
    shapes(&[
        (
            "transfer-encoding: chunked\r\n",
            "11\n{\"model\":\"small\"}\r\n0\r\n\r\n",
        ),
        (
            "transfer-encoding: chunked\r\n",
            "11;a\n{\"model\":\"small\"}\r\n0\r\n\r\n",
        ),
        (
            "transfer-encoding: chunked\r\n",
            "11\r\n{\"model\":\"small\"}\r\n0\r\n bad\r\n\r\n",
        ),
    ])
    .await;
}

#[tokio::test]
async fn chunk_lines_with_additional_bytes() {
    shapes(&[
        (
            "transfer-encoding: chunked\r\n",
            "11 \r\n{\"model\":\"small\"}\r\n0\r\n\r\n",
        ),
        (
            "transfer-encoding: chunked\r\n",
            "11\r\n{\"model\":\"small\"}\r\n0\r\nx: y\n\r\n",
        ),
    ])
    .await;
}

#[tokio::test]
async fn invalid_requests() {
    let shape = ("content-length: 17\r\n", WHOLE);
    refused([
        with_line("POST /v1/chat/completions HTTP/1.1 x", shape),
        with_line("POST /v1/chat/completions", shape),
        with_line("POST /v1/chat/completions HTTP/3.0", shape),
        with_line("POST /v1/chat /completions HTTP/1.1", shape),
        with_line(" POST /v1/chat/completions HTTP/1.1", shape),
        with_line("PO ST /v1/chat/completions HTTP/1.1", shape),
    ])
    .await;
}

#[tokio::test]
async fn chunked_encoding_in_http_1_0() {
    let shape = (
        "transfer-encoding: chunked\r\nconnection: keep-alive\r\n",
        CHUNKS,
    );
    refused([with_line("POST /v1/chat/completions HTTP/1.0", shape)]).await;
}

#[tokio::test]
async fn missing_repeated_and_invalid_hosts() {
    let without = with_line(
        "POST /v1/chat/completions HTTP/1.1",
        ("content-length: 17\r\n", WHOLE),
    );
    let line = "POST /v1/chat/completions HTTP/1.1\r\n";
    refused([
        without.replacen("host: g\r\n", "", 1),
        without.replacen("host: g\r\n", "host: g\r\nhost: h\r\n", 1),
        without.replacen("host: g\r\n", "host: g, h\r\n", 1),
        without.replacen(line, &format!("{line}host: u@g\r\n"), 1),
    ])
    .await;
}

#[tokio::test]
async fn a_connect_request() {
    refused([with_line("CONNECT g:80 HTTP/1.1", ("", ""))]).await;
}
