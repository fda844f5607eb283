use super::{Client, ClientEof, INTERIM, ReceivedHead};
use crate::http1::{Framing, Http1Error, Limits, ResponseHead};

fn client_with_request(is_head: bool) -> (Client, ResponseHead) {
    let mut client = Client::new(Limits::default());
    client.begin(is_head).unwrap();
    client.sent();
    (client, ResponseHead::default())
}

const OK: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n";

#[test]
fn a_connection_is_reused() {
    let (mut client, mut head) = (Client::new(Limits::default()), ResponseHead::default());
    for _ in 0..3 {
        assert!(client.is_reusable());
        client.begin(false).unwrap();
        assert_eq!(client.begin(false), Err(Http1Error::OutOfOrder));
        client.sent();
        assert!(!client.is_reusable());
        assert_eq!(
            client.read_head(&OK[..9], &mut head),
            Ok(ReceivedHead::Nothing)
        );
        assert_eq!(
            client.read_head(OK, &mut head),
            Ok(ReceivedHead::Response(OK.len()))
        );
        assert_eq!(client.read_head(OK, &mut head), Err(Http1Error::OutOfOrder));
        assert!(!client.read_body(b"ab").unwrap().end && !client.is_reusable());
        let last = client.read_body(b"cX").unwrap();
        assert!(last.end && last.consumed == 1 && client.has_response());
    }
    assert_eq!(client.eof(0), ClientEof::Complete);
    assert!(!client.is_reusable());
}

#[test]
fn interim_responses_are_skipped_up_to_a_limit() {
    let (mut client, mut head) = client_with_request(false);
    for text in [
        "HTTP/1.1 100 Continue\r\n\r\n",
        "HTTP/1.1 103 X\r\nLink: a\r\n\r\n",
    ] {
        let len = client.read_head(text.as_bytes(), &mut head);
        assert_eq!(len, Ok(ReceivedHead::Interim(text.len())));
        assert!(head.is_interim() && !client.has_response());
        assert_eq!(client.read_body(b""), Err(Http1Error::OutOfOrder));
    }
    assert_eq!(client.eof(0), ClientEof::Truncated);

    let (mut client, mut head) = client_with_request(false);
    let interim = b"HTTP/1.1 102 Processing\r\n\r\n";
    for _ in 0..INTERIM {
        let arrived = client.read_head(interim, &mut head).unwrap();
        assert_eq!(arrived, ReceivedHead::Interim(interim.len()));
    }
    assert_eq!(
        client.read_head(interim, &mut head),
        Err(Http1Error::TooManyInterim)
    );
    assert!(!client.is_reusable());

    let (mut client, mut head) = client_with_request(false);
    let switched = b"HTTP/1.1 101 Switching Protocols\r\n\r\n";
    assert_eq!(
        client.read_head(switched, &mut head),
        Err(Http1Error::Switched)
    );
}

#[test]
fn a_connection_is_reused_only_after_complete_messages() {
    for head_text in [
        "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 204 X\r\nContent-Length: 3\r\n\r\n",
    ] {
        let (mut client, mut head) = client_with_request(false);
        client.read_head(head_text.as_bytes(), &mut head).unwrap();
        assert!(
            client.has_response() && !client.is_reusable(),
            "{head_text}"
        );
    }
    // A response that was received before the request was written.
    let (mut client, mut head) = (Client::new(Limits::default()), ResponseHead::default());
    client.begin(false).unwrap();
    client
        .read_head(b"HTTP/1.1 413 X\r\nContent-Length: 0\r\n\r\n", &mut head)
        .unwrap();
    assert!(client.has_response() && !client.is_reusable());
    client.sent();
    assert!(client.is_reusable());

    let (mut client, mut head) = client_with_request(false);
    assert!(client.read_head(b"HTTP/1.1 200 OK\n\n", &mut head).is_err());
    assert!(!client.is_reusable());
    let (mut client, mut head) = client_with_request(false);
    let chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
    client.read_head(chunked, &mut head).unwrap();
    assert_eq!(client.read_body(b"z"), Err(Http1Error::ChunkSize));
    assert!(!client.is_reusable() && !client.has_response());
    assert_eq!(client.eof(0), ClientEof::Truncated);
}

#[test]
fn a_response_to_head_has_no_body() {
    let (mut client, mut head) = client_with_request(true);
    client.read_head(OK, &mut head).unwrap();
    assert_eq!(head.framing(), Framing::None);
    assert!(client.has_response() && client.is_reusable());
}

#[test]
fn ends_of_the_upstreams_data_are_distinguished() {
    let mut client = Client::new(Limits::default());
    assert_eq!(client.eof(0), ClientEof::Idle);
    assert!(!client.is_reusable());
    let (mut client, _) = client_with_request(false);
    assert_eq!(client.eof(0), ClientEof::Unanswered);
    let (mut client, _) = client_with_request(false);
    assert_eq!(client.eof(5), ClientEof::Truncated);
    let (mut client, mut head) = client_with_request(false);
    client.read_head(OK, &mut head).unwrap();
    client.read_body(b"ab").unwrap();
    assert_eq!(client.eof(0), ClientEof::Truncated);
    let (mut client, mut head) = client_with_request(false);
    client
        .read_head(b"HTTP/1.1 200 OK\r\n\r\n", &mut head)
        .unwrap();
    assert!(!client.read_body(b"ab").unwrap().end);
    assert_eq!(client.eof(0), ClientEof::Complete);
    assert!(client.has_response() && !client.is_reusable());
}
