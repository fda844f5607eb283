//! The requests of a connection do not depend on read boundaries, and a request
//! that was read can be written and read again.

#![no_main]

use fastllm_wire::http1::{
    Framing, HeadWriter, Http1Error, Limits, NextAction, Persistence, RequestHead, Server, BodySize,
};
use libfuzzer_sys::fuzz_target;

#[derive(Debug, PartialEq)]
struct Seen {
    method: Vec<u8>,
    target: Vec<u8>,
    fields: Vec<(Vec<u8>, Vec<u8>)>,
    framing: Framing,
    body: Vec<u8>,
    complete: bool,
}

fn seen(head: &RequestHead, buf: &[u8]) -> Seen {
    let request = head.on(buf);
    assert!(request.path().starts_with(b"/"));
    let fields = request.fields().end_to_end();
    Seen {
        method: request.method().to_vec(),
        target: request.target().to_vec(),
        fields: fields
            .map(|field| (field.name.to_vec(), field.value.to_vec()))
            .collect(),
        framing: head.framing(),
        body: Vec::new(),
        complete: false,
    }
}

/// Reads a connection in steps of `step` bytes.
fn run(input: &[u8], step: usize, limits: Limits) -> (Vec<Seen>, Option<Http1Error>) {
    let (mut server, mut head) = (Server::new(limits), RequestHead::default());
    let (mut all, mut at, mut there) = (Vec::<Seen>::new(), 0, 0);
    loop {
        let buf = &input[at..there];
        let starved = if server.is_idle() {
            match server.read_head(buf, &mut head) {
                Err(error) => return (all, Some(error)),
                Ok(None) => true,
                Ok(Some(len)) => {
                    all.push(seen(&head, buf));
                    at += len;
                    false
                }
            }
        } else {
            let part = match server.read_body(buf) {
                Err(error) => return (all, Some(error)),
                Ok(part) => part,
            };
            let last = all.last_mut().unwrap();
            last.body.extend_from_slice(&buf[part.data]);
            last.complete = part.end;
            at += part.consumed;
            assert!(part.end || part.consumed > 0 || buf.is_empty());
            if part.end {
                server.respond(200, BodySize::Known(0)).unwrap();
                if server.responded() != NextAction::Head {
                    return (all, None);
                }
            }
            !part.end && at == there
        };
        if starved {
            if there == input.len() {
                return (all, None);
            }
            there = (there + step).min(input.len());
        }
    }
}

fn assert_rewritten_request_is_equal(seen: &Seen) {
    let mut out = Vec::new();
    let mut writer = HeadWriter::request(&mut out, &seen.method, &seen.target);
    for (name, value) in &seen.fields {
        writer.field(name, value);
    }
    writer.end(seen.framing, Persistence::Keep).unwrap();
    let mut head = RequestHead::default();
    if out.len() < Limits::default().head {
        match head.parse(&out, Limits::default()) {
            Ok(len) => assert_eq!(len, Some(out.len())),
            // HTTP/1.0 requires no host and has no expectations.
            Err(error) => assert!(matches!(
                error,
                Http1Error::HostMissing | Http1Error::Expectation
            )),
        }
    }
}

fuzz_target!(|input: (u8, bool, &[u8])| {
    let (step, small, bytes) = input;
    let limits = if small {
        Limits {
            head: 96,
            line: 40,
            fields: 4,
        }
    } else {
        Limits::default()
    };
    let (whole, error) = run(bytes, bytes.len().max(1), limits);
    let (parts, early) = run(bytes, usize::from(step).max(1), limits);
    assert_eq!(whole, parts);
    // An incomplete head is not parsed after every byte.
    assert!(error == early || early.is_none(), "{error:?} {early:?}");
    whole.iter().for_each(assert_rewritten_request_is_equal);
});
