use std::io::{ErrorKind, Read, Write};

use mio::net::TcpStream;

use crate::Error;
use crate::message::{Body, request_head};
use crate::response::{BodyEnds, Kind, ResponseSpec, Responses, frames};

/// The state of the current request.
#[derive(Debug, Clone, Copy)]
enum RequestState {
    /// Reading its head.
    Head,
    /// Reading its body.
    Body(Body),
    /// Writing the response: `step` counts its complete parts, `sent` the bytes
    /// of the current one.
    Response {
        spec: ResponseSpec,
        step: usize,
        sent: usize,
    },
}

/// What the connection waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    /// Its socket.
    Wait,
    /// The time of its next event.
    Pause,
    /// Its position in the queue of streams that can send immediately.
    Turn,
    /// Nothing: it is closed.
    Close,
}

/// One connection from the gateway.
#[derive(Debug)]
pub(super) struct UpstreamConnection {
    stream: TcpStream,
    id: u64,
    state: RequestState,
    unparsed: Vec<u8>,
    ends: BodyEnds,
    pausing: bool,
}

impl UpstreamConnection {
    pub(super) fn new(stream: TcpStream, id: u64) -> Self {
        Self {
            stream,
            id,
            state: RequestState::Head,
            unparsed: Vec::new(),
            ends: BodyEnds::default(),
            pausing: false,
        }
    }

    pub(super) fn id(&self) -> u64 {
        self.id
    }

    /// Reads requests and writes responses as far as the socket allows.
    pub(super) fn advance(
        &mut self,
        buffer: &mut [u8],
        responses: &Responses,
        read_closed: bool,
    ) -> Result<Next, Error> {
        if matches!(self.state, RequestState::Response { .. }) && !self.pausing {
            let next = self.respond(responses)?;
            if next != Next::Wait {
                return Ok(next);
            }
        }
        loop {
            let read = match self.stream.read(buffer) {
                Ok(0) => return Ok(Next::Close),
                Ok(read) => read,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(Next::Wait),
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(error.into()),
            };
            if self.take(&buffer[..read])? {
                let next = self.respond(responses)?;
                if next != Next::Wait {
                    return Ok(next);
                }
            }
            // A short read has emptied the socket; later data triggers a new
            // event.
            if read < buffer.len() && !read_closed {
                return Ok(Next::Wait);
            }
        }
    }

    /// Continues after the pause, or when it is this stream's turn.
    pub(super) fn resume(&mut self, responses: &Responses) -> Result<Next, Error> {
        self.pausing = false;
        self.respond(responses)
    }

    /// Processes the next bytes of the request; returns whether it is complete.
    fn take(&mut self, bytes: &[u8]) -> Result<bool, Error> {
        match self.state {
            RequestState::Response { .. } => Err(Error::Malformed("a request within a response")),
            RequestState::Body(body) => self.take_body(body, bytes),
            RequestState::Head if self.unparsed.is_empty() => self.take_head(bytes),
            RequestState::Head => {
                let mut all = std::mem::take(&mut self.unparsed);
                all.extend_from_slice(bytes);
                self.take_head(&all)
            }
        }
    }

    fn take_head(&mut self, bytes: &[u8]) -> Result<bool, Error> {
        let Some(head) = request_head(bytes)? else {
            self.unparsed.extend_from_slice(bytes);
            return Ok(false);
        };
        self.ends.clear();
        self.take_body(head.body, &bytes[head.bytes..])
    }

    fn take_body(&mut self, mut body: Body, bytes: &[u8]) -> Result<bool, Error> {
        let ends = &mut self.ends;
        let progress = body.take(bytes, |content| ends.observe(content))?;
        if progress.used < bytes.len() {
            return Err(Error::Malformed("data after a request"));
        }
        self.state = if progress.complete {
            RequestState::Response {
                spec: self.ends.spec(),
                step: 0,
                sent: 0,
            }
        } else {
            RequestState::Body(body)
        };
        Ok(progress.complete)
    }

    /// Writes one part after the other, each separately, until the response
    /// ends, pauses, or the socket is full.
    fn respond(&mut self, responses: &Responses) -> Result<Next, Error> {
        while let RequestState::Response { spec, step, sent } = self.state {
            let Some(part) = part(responses, spec, step) else {
                self.state = RequestState::Head;
                break;
            };
            match self.stream.write(&part[sent..]) {
                Ok(now) if sent + now < part.len() => self.at(spec, step, sent + now),
                Ok(_) => {
                    self.at(spec, step + 1, 0);
                    match spec.kind {
                        // The stream is held after the head and one event.
                        Kind::Hold if step == 1 => {
                            self.pausing = true;
                            return Ok(Next::Wait);
                        }
                        Kind::Burst if (1..frames(spec.kind)).contains(&step) => {
                            self.pausing = true;
                            return Ok(Next::Turn);
                        }
                        Kind::Paced if (1..frames(spec.kind)).contains(&step) => {
                            self.pausing = true;
                            return Ok(Next::Pause);
                        }
                        _ => {}
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(Next::Wait)
    }

    fn at(&mut self, spec: ResponseSpec, step: usize, sent: usize) {
        self.state = RequestState::Response { spec, step, sent };
    }
}

fn part(responses: &Responses, spec: ResponseSpec, step: usize) -> Option<&[u8]> {
    match (spec.kind, step) {
        (Kind::Json, 0) => Some(&responses.json),
        (Kind::List, 0) => Some(&responses.list),
        (Kind::Json | Kind::List, _) => None,
        _ => responses.at(spec, step),
    }
}
