//! The response of an upstream does not depend on read boundaries.

#![no_main]

use fastllm_wire::http1::{ReceivedHead, Client, ClientEof, Http1Error, Limits, ResponseHead};
use libfuzzer_sys::fuzz_target;

#[derive(Debug, PartialEq)]
struct Seen {
    status: u16,
    fields: Vec<(Vec<u8>, Vec<u8>)>,
    body: Vec<u8>,
    end: ClientEof,
    /// Number of remaining bytes, if the response is self-delimited.
    unread: Option<usize>,
}

fn run(input: &[u8], step: usize, is_head: bool) -> Result<Option<Seen>, Http1Error> {
    let (mut client, mut head) = (Client::new(Limits::default()), ResponseHead::default());
    client.begin(is_head).unwrap();
    client.sent();
    let (mut at, mut there) = (0, step.min(input.len()));
    loop {
        let buf = &input[at..there];
        match client.read_head(buf, &mut head)? {
            ReceivedHead::Nothing if there == input.len() => return Ok(None),
            ReceivedHead::Nothing => there = (there + step).min(input.len()),
            ReceivedHead::Interim(len) => at += len,
            ReceivedHead::Response(len) => {
                let fields = head.on(buf).fields().iter();
                let fields = fields.map(|field| (field.name.to_vec(), field.value.to_vec()));
                let mut seen = Seen {
                    status: head.status(),
                    fields: fields.collect(),
                    body: Vec::new(),
                    end: ClientEof::Idle,
                    unread: None,
                };
                at += len;
                while !client.has_response() && (at < there || there < input.len()) {
                    if at == there {
                        there = (there + step).min(input.len());
                    }
                    let part = client.read_body(&input[at..there])?;
                    seen.body.extend_from_slice(&input[at..there][part.data]);
                    assert!(part.consumed > 0 || part.end);
                    at += part.consumed;
                }
                seen.unread = client.has_response().then_some(input.len() - at);
                seen.end = client.eof(0);
                return Ok(Some(seen));
            }
        }
    }
}

fuzz_target!(|input: (u8, bool, &[u8])| {
    let (step, is_head, bytes) = input;
    let whole = run(bytes, bytes.len().max(1), is_head);
    let parts = run(bytes, usize::from(step).max(1), is_head);
    match (&whole, &parts) {
        // An incomplete head is not parsed after every byte.
        (Err(_), Ok(None)) => {}
        _ => assert_eq!(whole, parts),
    }
});
