//! The upstream: its responses are scripted by [`Case`].

use std::rc::Rc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use super::case::{Case, Failure, Form, Scenario};
use super::shared::SharedState;
use crate::Error;
use crate::message::{Body, Head, request_head};

/// Maximum number of open connections.
const MAX_CONNECTIONS: usize = 4096;

/// Serves forever.
pub(super) async fn serve(listener: TcpListener, shared: Rc<SharedState>) -> Result<(), Error> {
    let mut connections = JoinSet::new();
    loop {
        let (stream, _) = listener.accept().await?;
        while connections.try_join_next().is_some() {}
        if connections.len() < MAX_CONNECTIONS {
            let shared = Rc::clone(&shared);
            connections.spawn_local(async move {
                // A gateway may be killed during the run.
                let _ended = ExactConnection::new(stream).serve(&shared).await;
            });
        }
    }
}

/// A connection from a gateway.
struct ExactConnection {
    stream: TcpStream,
    unread: Vec<u8>,
}

/// Whether the connection goes on.
type KeepAlive = bool;

impl ExactConnection {
    fn new(stream: TcpStream) -> Self {
        Self {
            stream,
            unread: Vec::new(),
        }
    }

    async fn serve(mut self, shared: &SharedState) -> Result<(), Error> {
        self.stream.set_nodelay(true)?;
        while let Some(n) = self.request().await? {
            let keep_alive = match n {
                Some(n) => self.respond(n, shared).await?,
                None => {
                    self.send("200 OK", "{\"object\":\"list\",\"data\":[]}")
                        .await?
                }
            };
            if !keep_alive {
                break;
            }
        }
        Ok(())
    }

    /// Reads a complete request and returns its number, if it has one. `None`
    /// at the end of the connection.
    async fn request(&mut self) -> Result<Option<Option<u32>>, Error> {
        let head = loop {
            if let Some(head) = request_head(&self.unread)? {
                break head;
            }
            if self.stream.read_buf(&mut self.unread).await? == 0 {
                return Ok(None);
            }
        };
        let n = number(&self.unread[..head.bytes]);
        let Head {
            bytes, mut body, ..
        } = head;
        self.unread.drain(..bytes);
        if matches!(body, Body::Length(0)) {
            return Ok(Some(n));
        }
        loop {
            let progress = body.take(&self.unread, |_| {})?;
            self.unread.drain(..progress.used);
            if progress.complete {
                return Ok(Some(n));
            }
            if self.stream.read_buf(&mut self.unread).await? == 0 {
                return Ok(None);
            }
        }
    }

    async fn respond(&mut self, n: u32, shared: &SharedState) -> Result<KeepAlive, Error> {
        let case = Case::of(n);
        let attempt = shared.outcome(n).map(|mut outcome| {
            outcome.attempts += 1;
            outcome.attempts
        });
        shared.arrived(n);
        if let Some(failure) = case.failure(attempt.unwrap_or(1)) {
            return self.fail(failure).await;
        }
        match case.course {
            Scenario::LeavesBefore => {
                self.hold().await?;
                return Ok(false);
            }
            Scenario::Aborts | Scenario::LeavesWithin => {
                let mut begun = STREAM_HEAD.to_owned();
                begun.push_str(&contents(n, &case));
                self.stream.write_all(begun.as_bytes()).await?;
                note_events(n, &case, shared);
                if case.course == Scenario::LeavesWithin {
                    self.hold().await?;
                }
                return Ok(false);
            }
            _ => {}
        }
        let (whole, in_one_piece) = if case.form == Form::Stream {
            (stream(n, &case), 0)
        } else {
            let body = json(n, &case);
            (message("200 OK", &body), body.len())
        };
        self.stream.write_all(whole.as_bytes()).await?;
        note_events(n, &case, shared);
        if let Some(mut outcome) = shared.outcome(n) {
            outcome.usage_reported = case.course != Scenario::Silent;
            outcome.response_bytes = in_one_piece;
        }
        Ok(true)
    }

    async fn fail(&mut self, failure: Failure) -> Result<KeepAlive, Error> {
        match failure {
            Failure::Status => {
                let body = "{\"error\":{\"message\":\"scripted\",\"type\":\"server_error\"}}";
                self.send("500 Internal Server Error", body).await
            }
            Failure::Hangup => Ok(false),
            Failure::Event => {
                let error = "{\"error\":{\"message\":\"scripted\",\"code\":500}}";
                let whole = format!("{STREAM_HEAD}{}0\r\n\r\n", event(error));
                self.stream.write_all(whole.as_bytes()).await?;
                Ok(true)
            }
        }
    }

    async fn send(&mut self, status: &str, body: &str) -> Result<KeepAlive, Error> {
        self.stream
            .write_all(message(status, body).as_bytes())
            .await?;
        Ok(true)
    }

    /// Waits until the gateway disconnects.
    async fn hold(&mut self) -> Result<(), Error> {
        while self.stream.read_buf(&mut self.unread).await? > 0 {
            self.unread.clear();
        }
        Ok(())
    }
}

fn note_events(n: u32, case: &Case, shared: &SharedState) {
    if case.form == Form::Stream
        && let Some(mut outcome) = shared.outcome(n)
    {
        outcome.events = case.events;
    }
}

/// The number in the ID of a request: `x-7`.
fn number(head: &[u8]) -> Option<u32> {
    let mut headers = [httparse::EMPTY_HEADER; 64];
    let mut request = httparse::Request::new(&mut headers);
    request.parse(head).ok()?;
    let id = request
        .headers
        .iter()
        .find(|header| header.name.eq_ignore_ascii_case("x-request-id"))?;
    std::str::from_utf8(id.value)
        .ok()?
        .strip_prefix("x-")?
        .parse()
        .ok()
}

const STREAM_HEAD: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\
                           transfer-encoding: chunked\r\n\r\n";

fn message(status: &str, body: &str) -> String {
    format!(
        "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
}

fn event(data: &str) -> String {
    let text = format!("data: {data}\n\n");
    format!("{:x}\r\n{text}\r\n", text.len())
}

fn chunk(n: u32, choices: &str, usage: &str) -> String {
    event(&format!(
        "{{\"id\":\"x-{n}\",\"object\":\"chat.completion.chunk\",\"choices\":[{choices}]{usage}}}"
    ))
}

fn contents(n: u32, case: &Case) -> String {
    let of = |index| {
        let word = case.word(index);
        let choice =
            format!("{{\"index\":0,\"delta\":{{\"content\":\"{word}\"}},\"finish_reason\":null}}");
        chunk(n, &choice, "")
    };
    (0..case.events).map(of).collect()
}

fn stream(n: u32, case: &Case) -> String {
    let mut text = STREAM_HEAD.to_owned();
    text.push_str(&contents(n, case));
    let end = "{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}";
    text.push_str(&chunk(n, end, ""));
    if case.course != Scenario::Silent {
        let usage = format!(",\"usage\":{}", case.usage.json());
        text.push_str(&chunk(n, "", &usage));
    }
    text.push_str(&event("[DONE]"));
    text.push_str("0\r\n\r\n");
    text
}

fn json(n: u32, case: &Case) -> String {
    let content = match case.form {
        Form::Embeddings => "\"object\":\"list\",\"data\":[{\"index\":0,\"embedding\":[0.5]}]",
        Form::Json | Form::Stream => {
            "\"object\":\"chat.completion\",\"choices\":[{\"index\":0,\"message\":\
             {\"role\":\"assistant\",\"content\":\"waves\"},\"finish_reason\":\"stop\"}]"
        }
    };
    if case.course == Scenario::Silent {
        return format!("{{\"id\":\"x-{n}\",{content}}}");
    }
    let usage = case.usage.json();
    format!("{{\"id\":\"x-{n}\",{content},\"usage\":{usage}}}")
}
