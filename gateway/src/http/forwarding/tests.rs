use fastllm_wire::http1::{Framing, HeadWriter, Limits, Persistence, ResponseHead};
use http::header::HeaderValue;

use super::{ClientFields, Coding, ForwardedHeader, UpstreamFields, is_event_stream};
use crate::http::Head;

/// The fields of a request to an upstream, sorted.
fn written(client: &Head, forwarded: &[ForwardedHeader]) -> Vec<String> {
    let mut out = Vec::new();
    let mut head = HeadWriter::request(&mut out, b"POST", b"/");
    let fields = UpstreamFields {
        client: ClientFields {
            fields: client.fields(),
            forwarded,
        },
        backend: &[],
        content_type: "application/json",
        traceparent: None,
        request_id: &HeaderValue::from_static("ours"),
    };
    fields.write(&mut head);
    head.end(Framing::None, Persistence::Keep).unwrap();
    let text = String::from_utf8(out).unwrap();
    let mut lines: Vec<_> = text
        .lines()
        .skip(1)
        .filter(|line| !line.is_empty())
        .map(str::to_owned)
        .collect();
    lines.sort();
    lines
}

#[test]
fn fields_that_identify_the_client_are_not_forwarded() {
    let client = Head::read(
        b"POST / HTTP/1.1\r\nauthorization: Bearer canary\r\nx-api-key: canary\r\n\
          cookie: canary\r\nproxy-authorization: canary\r\nx-forwarded-for: canary\r\n\
          host: gateway\r\nconnection: close, x-secret\r\ntransfer-encoding: chunked\r\n\
          accept-encoding: gzip\r\nAccept: text/event-stream\r\n\
          content-type: multipart/form-data; boundary=b\r\n\
          openai-organization: org-of-the-client\r\nopenai-project: project-of-the-client\r\n\
          openai-beta: one\r\nopenai-beta: two\r\ntraceparent: 00-1-2-01\r\n\
          x-request-id: theirs\r\n\r\n"
            .to_vec(),
    )
    .unwrap();
    assert_eq!(
        written(&client, &[]),
        [
            "Accept: text/event-stream",
            "accept-encoding: identity",
            "content-type: application/json",
            "openai-beta: one",
            "openai-beta: two",
            "traceparent: 00-1-2-01",
            "x-request-id: ours",
        ]
    );
}

#[test]
fn listed_headers_are_forwarded_in_addition() {
    let lines = "X-Team: search\r\nx-team: ads\r\nx-hop: 1\r\nconnection: x-hop\r\nx-other: 1\r\n";
    let client = Head::with(lines);
    let listed: Vec<ForwardedHeader> = ["x-team", " X-Hop"]
        .iter()
        .map(|name| name.parse().unwrap())
        .collect();
    assert_eq!(
        written(&client, &listed),
        [
            "X-Team: search",
            "accept-encoding: identity",
            "content-type: application/json",
            "x-request-id: ours",
            "x-team: ads",
        ]
    );
    for never in [
        "Authorization",
        "x-api-key",
        "cookie",
        "content-length",
        "host",
        "te",
        "x-request-id",
        "two words",
        "",
    ] {
        assert!(never.parse::<ForwardedHeader>().is_err(), "{never}");
    }
}

fn on_answer<R>(fields: &str, work: impl FnOnce(fastllm_wire::http1::Response<'_>) -> R) -> R {
    let bytes = format!("HTTP/1.1 200 OK\r\n{fields}\r\n");
    let mut head = ResponseHead::default();
    let parsed = head.parse(bytes.as_bytes(), false, Limits::default());
    assert_eq!(parsed, Ok(Some(bytes.len())));
    work(head.on(bytes.as_bytes()))
}

#[test]
fn bodies_are_distinguished_by_type_and_coding() {
    let streams = |fields: &str| on_answer(fields, |answer| is_event_stream(answer.fields()));
    assert!(streams(
        "content-type: Text/Event-Stream; charset=utf-8\r\n"
    ));
    assert!(!streams("content-type: application/json\r\n"));
    assert!(!streams(""));
    let coding = |fields: &str| on_answer(fields, |answer| Coding::of(answer.fields()));
    for (fields, expected) in [
        ("", Coding::Identity),
        ("content-encoding: identity\r\n", Coding::Identity),
        ("content-encoding: GZIP \r\n", Coding::Gzip),
        (
            "content-encoding: x-gzip\r\ncontent-encoding: identity\r\n",
            Coding::Gzip,
        ),
        ("content-encoding: br\r\n", Coding::Other),
        ("content-encoding: gzip, br\r\n", Coding::Other),
        (
            "content-encoding: gzip\r\ncontent-encoding: gzip\r\n",
            Coding::Other,
        ),
    ] {
        assert_eq!(coding(fields), expected, "{fields}");
    }
}
