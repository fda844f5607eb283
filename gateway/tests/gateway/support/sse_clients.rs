//! The event stream parsers of common clients, as in their sources, to test that
//! bytes which the gateway adds mean the same to each of them.

use serde_json::Value;

/// A client with its own parser.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SseClient {
    /// `EventSource`, by the algorithm of the HTML standard.
    Browser,
    /// `openai` for Python: `SSEDecoder`.
    Python,
    /// `openai` for Node.js: `SSEDecoder` on `LineDecoder`.
    Node,
    /// `openai-go` before version 2: `eventStreamDecoder` on `bufio.Scanner`.
    Go,
}

/// What the user of a client sees of a stream.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Seen {
    /// An event with JSON data.
    Event(Value),
    /// An event with an `error`; clients raise it and stop.
    Error(String),
    /// An event whose data is not JSON; clients raise this and stop.
    NotJson(String),
}

impl SseClient {
    pub(crate) const ALL: [Self; 4] = [Self::Browser, Self::Python, Self::Node, Self::Go];

    /// What the user sees of a stream that arrives in these reads, up to
    /// `[DONE]`.
    pub(crate) fn sees(self, reads: &[Vec<u8>]) -> Vec<Seen> {
        let data = match self {
            Self::Browser => browser(&reads.concat()),
            Self::Python => python(reads),
            Self::Node => node(reads),
            Self::Go => go(&reads.concat()),
        };
        let mut seen = Vec::new();
        for text in data {
            if text.starts_with("[DONE]") {
                break;
            }
            match serde_json::from_str::<Value>(&text) {
                Ok(value) if value.get("error").is_some_and(|error| !error.is_null()) => {
                    let code = value["error"]["code"].as_str().unwrap_or_default();
                    seen.push(Seen::Error(code.to_owned()));
                    break;
                }
                Ok(value) => seen.push(Seen::Event(value)),
                Err(_) => {
                    seen.push(Seen::NotJson(text));
                    break;
                }
            }
        }
        seen
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Splits after each LF, CRLF or CR, like `bytes.splitlines(keepends=True)`.
fn lines_with_ends(bytes: &[u8]) -> Vec<&[u8]> {
    let mut lines = Vec::new();
    let mut rest = bytes;
    while let Some(at) = rest.iter().position(|byte| b"\r\n".contains(byte)) {
        let len = at
            + if rest[at..].starts_with(b"\r\n") {
                2
            } else {
                1
            };
        let (line, after) = rest.split_at(len);
        lines.push(line);
        rest = after;
    }
    if !rest.is_empty() {
        lines.push(rest);
    }
    lines
}

fn without_end(line: &[u8]) -> &[u8] {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    line.strip_suffix(b"\r").unwrap_or(line)
}

fn field(line: &str) -> (&str, &str) {
    let (name, value) = line.split_once(':').unwrap_or((line, ""));
    (name, value.strip_prefix(' ').unwrap_or(value))
}

/// Events without data are not dispatched, and neither is one without a blank
/// line.
fn browser(stream: &[u8]) -> Vec<String> {
    let stream = stream.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(stream);
    let mut events = Vec::new();
    let mut data = String::new();
    for line in lines_with_ends(stream) {
        let complete = line.ends_with(b"\n") || line.ends_with(b"\r");
        let line = text(without_end(line));
        if line.is_empty() && complete {
            if let Some(data) = data.strip_suffix('\n') {
                events.push(data.to_owned());
            }
            data.clear();
        } else if let ("data", value) = field(&line) {
            data.push_str(value);
            data.push('\n');
        }
    }
    events
}

/// Dispatches at every blank line once an `id` was received.
fn python(reads: &[Vec<u8>]) -> Vec<String> {
    let mut chunks = Vec::new();
    let mut chunk = Vec::new();
    for read in reads {
        for line in lines_with_ends(read) {
            chunk.extend_from_slice(line);
            let ends: [&[u8]; 3] = [b"\r\r", b"\n\n", b"\r\n\r\n"];
            if ends.iter().any(|end| chunk.ends_with(end)) {
                chunks.push(std::mem::take(&mut chunk));
            }
        }
    }
    if !chunk.is_empty() {
        chunks.push(chunk);
    }
    let mut events = Vec::new();
    let (mut kind, mut data) = (String::new(), Vec::new());
    let (mut id, mut retry) = (String::new(), None);
    for line in chunks.iter().flat_map(|chunk| lines_with_ends(chunk)) {
        let line = text(without_end(line));
        if line.is_empty() {
            if !kind.is_empty() || !data.is_empty() || !id.is_empty() || retry.is_some() {
                events.push(data.join("\n"));
                kind.clear();
                data.clear();
                retry = None;
            }
            continue;
        }
        match field(&line) {
            ("event", value) => value.clone_into(&mut kind),
            ("data", value) => data.push(value.to_owned()),
            ("id", value) if !value.contains('\0') => value.clone_into(&mut id),
            ("retry", value) => retry = value.parse::<i64>().ok().or(retry),
            _ => {}
        }
    }
    events
}

/// Index after the first `\n\n`, `\r\r` or `\r\n\r\n`.
fn double_line_end(bytes: &[u8]) -> Option<usize> {
    (0..bytes.len()).find_map(|at| {
        let rest = &bytes[at..];
        if rest.starts_with(b"\n\n") || rest.starts_with(b"\r\r") {
            Some(at + 2)
        } else {
            rest.starts_with(b"\r\n\r\n").then_some(at + 4)
        }
    })
}

/// `LineDecoder`: a CR ends a line when the byte after it is known.
#[derive(Default)]
struct NodeLines(Vec<u8>);

impl NodeLines {
    fn decode(&mut self, chunk: &[u8]) -> Vec<String> {
        self.0.extend_from_slice(chunk);
        let mut lines = Vec::new();
        while let Some(at) = self.0.iter().position(|byte| b"\r\n".contains(byte)) {
            let len = match &self.0[at..] {
                [b'\r'] => break,
                [b'\r', b'\n', ..] => at + 2,
                _ => at + 1,
            };
            lines.push(text(&self.0[..at]));
            self.0.drain(..len);
        }
        lines
    }
}

fn node(reads: &[Vec<u8>]) -> Vec<String> {
    let mut chunks = Vec::new();
    let mut buffer = Vec::new();
    for read in reads {
        buffer.extend_from_slice(read);
        while let Some(end) = double_line_end(&buffer) {
            let rest = buffer.split_off(end);
            chunks.push(std::mem::replace(&mut buffer, rest));
        }
    }
    if !buffer.is_empty() {
        chunks.push(buffer);
    }
    let mut decoder = NodeLines::default();
    let mut lines: Vec<_> = chunks
        .iter()
        .flat_map(|chunk| decoder.decode(chunk))
        .collect();
    if !decoder.0.is_empty() {
        lines.extend(decoder.decode(b"\n"));
    }
    let mut events = Vec::new();
    let (mut kind, mut data) = (None, Vec::new());
    for line in lines {
        if line.is_empty() {
            if kind.is_some() || !data.is_empty() {
                events.push(data.join("\n"));
                kind = None;
                data.clear();
            }
            continue;
        }
        match field(&line) {
            ("event", value) => kind = Some(value.to_owned()),
            ("data", value) => data.push(value.to_owned()),
            _ => {}
        }
    }
    events
}

/// Only LF ends a line, and every blank line dispatches an event.
fn go(stream: &[u8]) -> Vec<String> {
    let mut events = Vec::new();
    let mut data = String::new();
    let mut lines: Vec<_> = stream.split(|byte| *byte == b'\n').collect();
    if lines.last().is_some_and(|last| last.is_empty()) {
        lines.pop();
    }
    for line in lines {
        let line = text(line.strip_suffix(b"\r").unwrap_or(line));
        if line.is_empty() {
            events.push(std::mem::take(&mut data));
        } else if let ("data", value) = field(&line) {
            data.push_str(value);
            data.push('\n');
        }
    }
    events
}
