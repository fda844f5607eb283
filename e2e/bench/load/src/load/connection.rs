use std::io::{ErrorKind, Read, Write};
use std::time::Instant;

use mio::net::TcpStream;

use crate::message::{Body, Events, response_head};
use crate::{Error, clock};

/// Maximum size of the response body in an error, in bytes.
const MAX_ERROR_BYTES: usize = 300;

/// The state of the response to the current request.
#[derive(Debug, Clone, Copy)]
enum ResponseState {
    Idle,
    Head,
    Body(Body),
}

/// One connection to the gateway, and the current request on it.
#[derive(Debug)]
pub(super) struct LoadConnection {
    stream: TcpStream,
    unsent: Vec<u8>,
    unparsed: Vec<u8>,
    reading: ResponseState,
    began: Instant,
    first_byte: Option<Instant>,
    events: Events,
    content: u64,
}

/// A request with a complete response.
#[derive(Debug)]
pub(super) struct Done {
    pub(super) began: Instant,
    pub(super) first_byte: Option<Instant>,
    pub(super) events: u64,
    pub(super) content: u64,
}

/// Whether the response is complete.
#[derive(Debug)]
pub(super) enum LoadProgress {
    Pending,
    Complete(Done),
}

impl LoadConnection {
    pub(super) fn new(stream: TcpStream) -> Self {
        Self {
            stream,
            unsent: Vec::new(),
            unparsed: Vec::new(),
            reading: ResponseState::Idle,
            began: clock::now(),
            first_byte: None,
            events: Events::default(),
            content: 0,
        }
    }

    /// Number of events of the current response.
    pub(super) fn events(&self) -> u64 {
        self.events.ended
    }

    /// Sends a request; the connection must be idle.
    pub(super) fn begin(&mut self, request: &[u8], now: Instant) -> Result<(), Error> {
        self.began = now;
        self.first_byte = None;
        self.events = Events::default();
        self.content = 0;
        self.reading = ResponseState::Head;
        let sent = send(&mut self.stream, request)?;
        self.unsent.extend_from_slice(&request[sent..]);
        Ok(())
    }

    /// Writes and reads as much as is possible without blocking.
    pub(super) fn advance(&mut self, buffer: &mut [u8]) -> Result<LoadProgress, Error> {
        if !self.unsent.is_empty() {
            let sent = send(&mut self.stream, &self.unsent)?;
            self.unsent.drain(..sent);
        }
        loop {
            let read = match self.stream.read(buffer) {
                Ok(0) => return Err(Error::Closed),
                Ok(read) => read,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    return Ok(LoadProgress::Pending);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(error.into()),
            };
            if let Some(done) = self.take(&buffer[..read])? {
                return Ok(LoadProgress::Complete(done));
            }
            // A short read has emptied the socket; later data triggers a new
            // event.
            if read < buffer.len() {
                return Ok(LoadProgress::Pending);
            }
        }
    }

    fn take(&mut self, bytes: &[u8]) -> Result<Option<Done>, Error> {
        self.first_byte.get_or_insert_with(clock::now);
        match self.reading {
            ResponseState::Idle => Err(Error::Malformed("a response without a request")),
            ResponseState::Head if self.unparsed.is_empty() => self.take_head(bytes),
            ResponseState::Head => {
                let mut all = std::mem::take(&mut self.unparsed);
                all.extend_from_slice(bytes);
                self.take_head(&all)
            }
            ResponseState::Body(body) => self.take_body(body, bytes),
        }
    }

    fn take_head(&mut self, bytes: &[u8]) -> Result<Option<Done>, Error> {
        let Some(head) = response_head(bytes)? else {
            self.unparsed.extend_from_slice(bytes);
            return Ok(None);
        };
        if head.status != 200 {
            let text = bytes.get(head.bytes..).unwrap_or_default();
            let text = String::from_utf8_lossy(&text[..text.len().min(MAX_ERROR_BYTES)]);
            return Err(Error::Status {
                status: head.status,
                text: text.into_owned(),
            });
        }
        self.take_body(head.body, &bytes[head.bytes..])
    }

    fn take_body(&mut self, mut body: Body, bytes: &[u8]) -> Result<Option<Done>, Error> {
        let (events, content) = (&mut self.events, &mut self.content);
        let progress = body.take(bytes, |bytes| {
            events.observe(bytes);
            *content += bytes.len() as u64;
        })?;
        if !progress.complete {
            self.reading = ResponseState::Body(body);
            return Ok(None);
        }
        if progress.used < bytes.len() {
            return Err(Error::Malformed("data after a response"));
        }
        self.reading = ResponseState::Idle;
        Ok(Some(Done {
            began: self.began,
            first_byte: self.first_byte,
            events: self.events.ended,
            content: self.content,
        }))
    }
}

/// Writes as much as the socket accepts without blocking.
fn send(stream: &mut TcpStream, bytes: &[u8]) -> Result<usize, Error> {
    let mut sent = 0;
    while sent < bytes.len() {
        match stream.write(&bytes[sent..]) {
            Ok(now) => sent += now,
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(sent)
}
