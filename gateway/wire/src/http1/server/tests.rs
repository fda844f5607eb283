use super::{BodySize, DRAIN, DrainedBody, NextAction, ResponseFraming, Server, ServerEof};
use crate::http1::encode::CONTINUE;
use crate::http1::{Framing, Http1Error, Limits, Persistence, RequestHead};

/// A server that has read the head in front of `input`, and the rest of it.
fn begun(input: &str) -> (Server, &[u8]) {
    let mut server = Server::new(Limits::default());
    let mut head = RequestHead::default();
    let len = server.read_head(input.as_bytes(), &mut head);
    (server, &input.as_bytes()[len.unwrap().unwrap()..])
}

const OLD: &str = "GET / HTTP/1.0\r\n\r\n";
const OLD_KEPT: &str = "GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n";
const GET: &str = "GET / HTTP/1.1\r\nHost: h\r\n\r\n";
const HEAD: &str = "HEAD / HTTP/1.1\r\nHost: h\r\n\r\n";
const POST: &str = "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\n";
const WAITS: &str =
    "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n";

#[test]
fn pipelined_requests_get_responses_in_order() {
    let input = format!(
        "{POST}abc{GET}POST /c HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n\
         2\r\nde\r\n0\r\n\r\n{POST}ab"
    );
    let mut rest = input.as_bytes();
    let (mut server, mut head) = (Server::new(Limits::default()), RequestHead::default());
    let mut seen = Vec::new();
    while let Some(len) = server.read_head(rest, &mut head).unwrap() {
        assert!(!server.is_idle());
        assert_eq!(
            server.read_head(rest, &mut head),
            Err(Http1Error::OutOfOrder)
        );
        let mut text = head.on(rest).path().to_vec();
        rest = &rest[len..];
        loop {
            let part = server.read_body(rest).unwrap();
            text.extend_from_slice(&rest[part.data.clone()]);
            rest = &rest[part.consumed..];
            if part.end || rest.is_empty() {
                break;
            }
        }
        seen.push(String::from_utf8(text).unwrap());
        if !server.has_request() {
            break;
        }
        server.respond(200, BodySize::Known(0)).unwrap();
        assert_eq!(
            server.respond(200, BodySize::Known(0)),
            Err(Http1Error::OutOfOrder)
        );
        assert_eq!(server.responded(), NextAction::Head);
    }
    assert_eq!(seen, ["/abc", "/", "/cde", "/ab"]);
    assert_eq!(server.eof(0), ServerEof::Truncated);
}

const KNOWN: BodySize = BodySize::Known(5);

const ANSWERS: &[(&str, u16, BodySize, Framing, Persistence, bool)] = &[
    (GET, 200, KNOWN, Framing::Length(5), Persistence::Keep, true),
    (
        GET,
        200,
        BodySize::Unknown,
        Framing::Chunked,
        Persistence::Keep,
        true,
    ),
    (GET, 204, KNOWN, Framing::None, Persistence::Keep, false),
    (
        GET,
        304,
        BodySize::Unknown,
        Framing::None,
        Persistence::Keep,
        false,
    ),
    (HEAD, 200, KNOWN, Framing::None, Persistence::Keep, false),
    (
        HEAD,
        200,
        BodySize::Unknown,
        Framing::None,
        Persistence::Keep,
        false,
    ),
    (
        OLD,
        200,
        KNOWN,
        Framing::Length(5),
        Persistence::Close,
        true,
    ),
    (
        OLD_KEPT,
        200,
        KNOWN,
        Framing::Length(5),
        Persistence::KeepSaid,
        true,
    ),
    (
        OLD_KEPT,
        200,
        BodySize::Unknown,
        Framing::UntilClose,
        Persistence::Close,
        true,
    ),
];

#[test]
fn the_framing_of_a_response_depends_on_the_request() {
    for &(request, status, size, framing, persistence, sends) in ANSWERS {
        let (mut server, rest) = begun(request);
        server.read_body(rest).unwrap();
        let delivery = server.respond(status, size).unwrap();
        let expected = ResponseFraming {
            framing,
            persistence,
            sends_body: sends,
            announces: (request == HEAD && size == KNOWN).then_some(5),
        };
        assert_eq!(delivery, expected, "{request:?} {status} {size:?}");
        let next = if persistence == Persistence::Close {
            NextAction::Close { linger: false }
        } else {
            NextAction::Head
        };
        assert_eq!(server.responded(), next);
    }
}

#[test]
fn continue_is_sent_once_and_only_before_the_body() {
    let (mut server, _) = begun(WAITS);
    assert_eq!(server.take_continue(), Some(CONTINUE));
    assert_eq!(server.take_continue(), None);
    assert!(server.read_body(b"abc").unwrap().end);
    server.respond(200, BodySize::Known(0)).unwrap();
    assert_eq!(server.responded(), NextAction::Head);

    let (mut server, _) = begun(WAITS);
    assert!(!server.read_body(b"").unwrap().end);
    assert!(server.take_continue().is_some());

    let (mut server, _) = begun(WAITS);
    assert!(!server.read_body(b"a").unwrap().end);
    assert_eq!(server.take_continue(), None);

    // Rejected without it: the body may or may not follow.
    let (mut server, _) = begun(WAITS);
    let delivery = server.respond(401, BodySize::Known(0)).unwrap();
    assert_eq!(delivery.persistence, Persistence::Close);
    assert_eq!(server.take_continue(), None);
    assert_eq!(server.responded(), NextAction::Close { linger: true });

    let (mut server, _) = begun(POST);
    assert_eq!(server.take_continue(), None);
}

#[test]
fn an_unread_body_is_drained_up_to_a_limit() {
    let (mut server, _) = begun(POST);
    let early = server.respond(401, BodySize::Known(0)).unwrap();
    assert_eq!(early.persistence, Persistence::Keep);
    assert_eq!(
        server.drain(b"ab"),
        DrainedBody {
            consumed: 0,
            next: NextAction::Close { linger: true }
        },
        "not before the response is complete"
    );

    let (mut server, _) = begun(POST);
    server.respond(401, BodySize::Known(0)).unwrap();
    assert_eq!(server.responded(), NextAction::Drain);
    let drained = |consumed, next| DrainedBody { consumed, next };
    assert_eq!(server.drain(b"ab"), drained(2, NextAction::Drain));
    assert_eq!(server.drain(b""), drained(0, NextAction::Drain));
    assert_eq!(server.eof(0), ServerEof::Truncated);
    assert_eq!(server.drain(b"cGET"), drained(1, NextAction::Head));
    assert!(server.is_idle());

    let long = format!(
        "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: {}\r\n\r\n",
        DRAIN + 1
    );
    let (mut server, _) = begun(&long);
    let delivery = server.respond(413, BodySize::Known(0)).unwrap();
    assert_eq!(delivery.persistence, Persistence::Close);
    assert_eq!(server.responded(), NextAction::Close { linger: true });

    let (mut server, _) = begun("POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n");
    server.respond(413, BodySize::Known(0)).unwrap();
    assert_eq!(server.responded(), NextAction::Drain);
    let chunk = format!("100\r\n{}\r\n", "x".repeat(256));
    let mut fed = 0;
    while server.drain(chunk.as_bytes()) == drained(chunk.len(), NextAction::Drain) {
        fed += chunk.len() as u64;
        assert!(fed <= DRAIN);
    }
    assert!(fed > DRAIN - 600);
    assert_eq!(server.drain(b"").next, NextAction::Close { linger: true });
}

#[test]
fn non_http_input_gets_a_response_and_close() {
    let (mut server, mut head) = (Server::new(Limits::default()), RequestHead::default());
    let error = server.read_head(b"GET / HTTP/1.1\n\n", &mut head);
    assert_eq!(error, Err(Http1Error::LineEnd));
    assert_eq!(
        server.read_head(b"", &mut head),
        Err(Http1Error::OutOfOrder)
    );
    let delivery = server.respond(400, BodySize::Known(2)).unwrap();
    assert_eq!(delivery.framing, Framing::Length(2));
    assert_eq!(delivery.persistence, Persistence::Close);
    assert_eq!(server.responded(), NextAction::Close { linger: true });

    let (mut server, _) = begun("POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n");
    assert_eq!(server.read_body(b"x"), Err(Http1Error::ChunkSize));
    assert_eq!(server.read_body(b"0\r\n\r\n"), Err(Http1Error::OutOfOrder));
    assert!(!server.has_request());
    let delivery = server.respond(400, BodySize::Known(0)).unwrap();
    assert_eq!(delivery.persistence, Persistence::Close);

    let (mut server, _) = begun("POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n");
    server.respond(401, BodySize::Known(0)).unwrap();
    assert_eq!(server.responded(), NextAction::Drain);
    assert_eq!(server.drain(b"x").next, NextAction::Close { linger: true });
}

#[test]
fn a_rejection_has_a_body_even_after_a_head_request() {
    let (mut server, _) = begun(HEAD);
    server.respond(200, BodySize::Unknown).unwrap();
    assert_eq!(server.responded(), NextAction::Head);
    let error = server.read_head(b"?\r\n\r\n", &mut RequestHead::default());
    assert_eq!(error, Err(Http1Error::RequestLine));
    assert!(server.respond(400, BodySize::Known(2)).unwrap().sends_body);
}

#[test]
fn a_response_requires_a_request() {
    let mut server = Server::new(Limits::default());
    assert_eq!(
        server.respond(200, BodySize::Known(0)),
        Err(Http1Error::OutOfOrder)
    );
    assert_eq!(server.read_body(b"x"), Err(Http1Error::OutOfOrder));
    let (mut server, _) = begun(GET);
    assert_eq!(
        server.respond(100, BodySize::Known(0)),
        Err(Http1Error::OutOfOrder)
    );
}

#[test]
fn the_last_request_closes_the_connection() {
    for early in [true, false] {
        let (mut server, _) = begun(GET);
        if early {
            server.last_request();
        }
        let delivery = server.respond(200, BodySize::Known(0)).unwrap();
        assert_eq!(delivery.persistence == Persistence::Close, early);
        server.last_request();
        assert_eq!(server.responded(), NextAction::Close { linger: false });
    }
}

#[test]
fn ends_of_the_clients_data_are_distinguished() {
    let server = Server::new(Limits::default());
    assert_eq!(server.eof(0), ServerEof::Idle);
    assert_eq!(server.eof(1), ServerEof::Truncated);
    let (mut server, _) = begun(POST);
    assert_eq!(server.eof(0), ServerEof::Truncated);
    server.read_body(b"abc").unwrap();
    assert_eq!(server.eof(0), ServerEof::Gone);
    server.respond(200, BodySize::Known(0)).unwrap();
    assert_eq!(server.eof(9), ServerEof::Gone);
    server.responded();
    assert_eq!(server.eof(0), ServerEof::Idle);
}
