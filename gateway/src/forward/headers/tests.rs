use http::header::{HeaderMap, HeaderName, HeaderValue};

use super::{is_event_stream, is_identity, request_headers, response_headers};

fn headers(list: &[(&'static str, &'static str)]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in list {
        headers.append(
            HeaderName::from_static(name),
            HeaderValue::from_static(value),
        );
    }
    headers
}

fn sorted(headers: &HeaderMap) -> Vec<String> {
    let mut list: Vec<_> = headers
        .iter()
        .map(|(name, value)| format!("{name}: {}", value.to_str().unwrap()))
        .collect();
    list.sort();
    list
}

#[test]
fn nothing_that_says_who_the_client_is_goes_upstream() {
    let client = headers(&[
        ("authorization", "Bearer canary"),
        ("x-api-key", "canary"),
        ("cookie", "canary"),
        ("proxy-authorization", "canary"),
        ("x-forwarded-for", "canary"),
        ("host", "gateway"),
        ("connection", "close, x-secret"),
        ("content-length", "5"),
        ("transfer-encoding", "chunked"),
        ("accept-encoding", "gzip"),
        ("accept", "text/event-stream"),
        ("content-type", "multipart/form-data; boundary=b"),
        ("openai-organization", "org-of-the-client"),
        ("openai-project", "project-of-the-client"),
        ("openai-beta", "one"),
        ("openai-beta", "two"),
        ("traceparent", "00-1-2-01"),
        ("x-request-id", "theirs"),
    ]);
    let upstream = request_headers(&client, &HeaderValue::from_static("ours"));
    assert_eq!(
        sorted(&upstream),
        [
            "accept-encoding: identity",
            "accept: text/event-stream",
            "content-type: application/json",
            "openai-beta: one",
            "openai-beta: two",
            "traceparent: 00-1-2-01",
            "x-request-id: ours",
        ]
    );
}

#[test]
fn what_belongs_to_the_upstream_connection_stays_there() {
    let upstream = headers(&[
        ("connection", "X-Hop, keep-alive"),
        ("keep-alive", "timeout=5"),
        ("x-hop", "1"),
        ("set-cookie", "a=b"),
        ("alt-svc", "h3"),
        ("content-length", "12"),
        ("content-type", "application/json"),
        ("x-request-id", "theirs"),
        ("openai-processing-ms", "7"),
    ]);
    let ours = HeaderValue::from_static("ours");
    let passed = response_headers(&upstream, false, &ours);
    assert_eq!(
        sorted(&passed),
        [
            "content-length: 12",
            "content-type: application/json",
            "openai-processing-ms: 7",
            "x-request-id: ours",
        ]
    );
    assert!(!response_headers(&upstream, true, &ours).contains_key("content-length"));
    let mut both = upstream;
    both.insert("transfer-encoding", HeaderValue::from_static("chunked"));
    let passed = response_headers(&both, false, &ours);
    assert!(!passed.contains_key("content-length") && !passed.contains_key("transfer-encoding"));
}

#[test]
fn bodies_are_told_apart_by_their_type_and_coding() {
    assert!(is_event_stream(&headers(&[(
        "content-type",
        "Text/Event-Stream; charset=utf-8"
    )])));
    assert!(!is_event_stream(&headers(&[(
        "content-type",
        "application/json"
    )])));
    assert!(!is_event_stream(&headers(&[])));
    assert!(is_identity(&headers(&[])));
    assert!(is_identity(&headers(&[("content-encoding", "identity")])));
    assert!(!is_identity(&headers(&[("content-encoding", "gzip")])));
}
