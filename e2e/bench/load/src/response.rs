//! The responses of the mock upstream: built once and sent repeatedly.

use crate::{BURST_FRAMES, JSON_BYTES, PACED_FRAMES};

/// The kind of a response, selected by the name of the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// `bench-json`: one JSON body.
    Json,
    /// `bench-burst`: streams sent as fast as the sockets accept them,
    /// interleaved.
    Burst,
    /// `bench-clump`: the same, one stream after the other: many events of one
    /// stream wait in the gateway's socket.
    Clump,
    /// `bench-paced`: a stream with 10 ms between its events.
    Paced,
    /// `bench-hold`: only the first event of a stream.
    Hold,
    /// Anything else, such as a probe: an empty list of models.
    List,
}

/// How to respond to a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ResponseSpec {
    pub(crate) kind: Kind,
    /// Whether the stream ends with a usage event.
    pub(crate) usage: bool,
}

/// The first and the last bytes of a request body, which select the response.
/// Everything between them is text.
#[derive(Debug, Default)]
pub(crate) struct BodyEnds {
    first: Vec<u8>,
    last: Vec<u8>,
}

/// Number of bytes that are kept of either end.
const KEPT_BYTES: usize = 1024;

impl BodyEnds {
    /// Clears both ends, for the next body.
    pub(crate) fn clear(&mut self) {
        self.first.clear();
        self.last.clear();
    }

    /// Processes the next bytes.
    pub(crate) fn observe(&mut self, bytes: &[u8]) {
        let room = KEPT_BYTES - self.first.len();
        self.first
            .extend_from_slice(&bytes[..room.min(bytes.len())]);
        if bytes.len() >= KEPT_BYTES {
            self.last.clear();
            self.last
                .extend_from_slice(&bytes[bytes.len() - KEPT_BYTES..]);
        } else {
            let over = (self.last.len() + bytes.len()).saturating_sub(KEPT_BYTES);
            self.last.drain(..over);
            self.last.extend_from_slice(bytes);
        }
    }

    /// The requested response.
    pub(crate) fn spec(&self) -> ResponseSpec {
        let kind = [&self.last, &self.first].into_iter().find_map(|end| {
            let at = memchr::memmem::rfind(end, PREFIX)?;
            kind(&end[at + PREFIX.len()..])
        });
        let kind = kind.unwrap_or(Kind::List);
        let streamed = !matches!(kind, Kind::Json | Kind::List);
        let asks = |end: &[u8]| memchr::memmem::find(end, USAGE).is_some();
        let usage = streamed && (asks(&self.last) || asks(&self.first));
        ResponseSpec { kind, usage }
    }
}

/// The prefix of all model names.
const PREFIX: &[u8] = b"bench-";

/// The request for a usage event.
const USAGE: &[u8] = b"\"include_usage\":true";

fn kind(name: &[u8]) -> Option<Kind> {
    let kinds: [(&[u8], Kind); 5] = [
        (b"json", Kind::Json),
        (b"burst", Kind::Burst),
        (b"clump", Kind::Clump),
        (b"paced", Kind::Paced),
        (b"hold", Kind::Hold),
    ];
    let named = kinds.iter().find(|(rest, _)| name.starts_with(rest));
    named.map(|(_, kind)| *kind)
}

/// All data that is sent.
#[derive(Debug)]
pub(crate) struct Responses {
    /// A complete response.
    pub(crate) json: Vec<u8>,
    /// A complete response.
    pub(crate) list: Vec<u8>,
    /// The head of a stream.
    pub(crate) head: Vec<u8>,
    /// An event with content, as a chunk.
    pub(crate) frame: Vec<u8>,
    /// The event with the finish reason.
    pub(crate) finish: Vec<u8>,
    /// The usage event.
    pub(crate) usage: Vec<u8>,
    /// `[DONE]`, and the last chunk.
    pub(crate) done: Vec<u8>,
}

impl Responses {
    pub(crate) fn new() -> Self {
        let mut done = chunk("data: [DONE]\n\n");
        done.extend_from_slice(b"0\r\n\r\n");
        Self {
            json: whole(&json()),
            list: whole("{\"object\":\"list\",\"data\":[]}"),
            head: b"HTTP/1.1 200 OK\r\ndate: Sun, 29 Nov 2026 00:00:00 GMT\r\n\
                content-type: text/event-stream; charset=utf-8\r\n\
                transfer-encoding: chunked\r\n\r\n"
                .to_vec(),
            frame: event("\"delta\":{\"content\":\" token\"},\"finish_reason\":null"),
            finish: event("\"delta\":{},\"finish_reason\":\"stop\""),
            usage: chunk(
                "data: {\"id\":\"chatcmpl-0123456789abcdef\",\
                \"object\":\"chat.completion.chunk\",\"created\":1764374400,\"model\":\"bench\",\
                \"choices\":[],\"usage\":{\"prompt_tokens\":300,\"completion_tokens\":200,\
                \"total_tokens\":500}}\n\n",
            ),
            done,
        }
    }

    /// The bytes of a stream at `step` (0 is the head), or `None` after its
    /// end.
    pub(crate) fn at(&self, spec: ResponseSpec, step: usize) -> Option<&[u8]> {
        let frames = frames(spec.kind);
        let after = step.checked_sub(frames + 1);
        match (step, after) {
            (0, _) => Some(&self.head),
            (_, None) => Some(&self.frame),
            (_, Some(0)) => Some(&self.finish),
            (_, Some(1)) if spec.usage => Some(&self.usage),
            (_, Some(after)) if after == 1 + usize::from(spec.usage) => Some(&self.done),
            _ => None,
        }
    }
}

/// Number of events of a stream that have content.
pub(crate) fn frames(kind: Kind) -> usize {
    match kind {
        Kind::Burst | Kind::Clump | Kind::Hold => BURST_FRAMES,
        Kind::Paced => PACED_FRAMES,
        Kind::Json | Kind::List => 0,
    }
}

fn chunk(content: &str) -> Vec<u8> {
    format!("{:x}\r\n{content}\r\n", content.len()).into_bytes()
}

fn event(choice: &str) -> Vec<u8> {
    chunk(&format!(
        "data: {{\"id\":\"chatcmpl-0123456789abcdef\",\"object\":\"chat.completion.chunk\",\
         \"created\":1764374400,\"model\":\"bench\",\"choices\":[{{\"index\":0,{choice},\
         \"logprobs\":null}}]}}\n\n"
    ))
}

fn whole(body: &str) -> Vec<u8> {
    format!(
        "HTTP/1.1 200 OK\r\ndate: Sun, 29 Nov 2026 00:00:00 GMT\r\nserver: uvicorn\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

/// A response of [`JSON_BYTES`] bytes with its usage near the end.
fn json() -> String {
    let front = "{\"id\":\"chatcmpl-0123456789abcdef\",\"object\":\"chat.completion\",\
                 \"created\":1764374400,\"model\":\"bench\",\"choices\":[{\"index\":0,\"message\":\
                 {\"role\":\"assistant\",\"content\":\"";
    let back = "\",\"refusal\":null,\"tool_calls\":[]},\"logprobs\":null,\
                \"finish_reason\":\"stop\"}],\"usage\":{\"prompt_tokens\":300,\
                \"completion_tokens\":60,\"total_tokens\":360,\"prompt_tokens_details\":null}}";
    let room = JSON_BYTES.saturating_sub(front.len() + back.len());
    let mut text = "words of a response ".repeat(room / 20);
    text.push_str(&"x".repeat(room - text.len()));
    format!("{front}{text}{back}")
}

#[cfg(test)]
mod tests {
    use super::{BodyEnds, Kind, ResponseSpec, Responses, json};
    use crate::message::{Body, Events, response_head};
    use crate::{BURST_FRAMES, CLOSING_EVENTS, JSON_BYTES};

    #[test]
    fn the_json_response_has_its_size() {
        assert_eq!(json().len(), JSON_BYTES);
        let parsed: serde_json::Value = serde_json::from_str(&json()).unwrap();
        assert_eq!(parsed["usage"]["total_tokens"], 360);
    }

    #[test]
    fn a_stream_is_valid_http_with_all_events() {
        let responses = Responses::new();
        for usage in [false, true] {
            let kind = Kind::Burst;
            let bytes: Vec<u8> = (0..)
                .map_while(|step| responses.at(ResponseSpec { kind, usage }, step))
                .flatten()
                .copied()
                .collect();
            let head = response_head(&bytes).unwrap().unwrap();
            assert!(matches!(head.body, Body::Chunked(_)));
            let (mut body, mut events) = (head.body, Events::default());
            let rest = &bytes[head.bytes..];
            let progress = body.take(rest, |bytes| events.observe(bytes)).unwrap();
            assert!(progress.complete);
            assert_eq!(progress.used, rest.len());
            let expected = BURST_FRAMES + CLOSING_EVENTS + usize::from(usage);
            assert_eq!(events.ended, expected as u64);
        }
    }

    #[test]
    fn the_ends_of_a_body_select_the_response_with_any_read_boundaries() {
        let text = "y".repeat(3000);
        for (body, kind, usage) in [
            (
                format!("{{\"messages\":\"{text}\",\"model\":\"bench-json-0000\"}}"),
                Kind::Json,
                false,
            ),
            (
                format!(
                    "{{\"stream_options\":{{\"include_usage\":true}},\"m\":\"{text}\",\
                     \"model\":\"bench-paced-0000\"}}"
                ),
                Kind::Paced,
                true,
            ),
            (String::new(), Kind::List, false),
        ] {
            for step in [1, 7, 1023, 1024, 1025, 5000] {
                let mut ends = BodyEnds::default();
                for part in body.as_bytes().chunks(step) {
                    ends.observe(part);
                }
                assert_eq!(ends.spec(), ResponseSpec { kind, usage }, "{step}");
            }
        }
    }
}
