use std::io::{ErrorKind, Read, Write};

use mio::net::TcpStream;

use crate::Error;
use crate::answer::{Answers, Ends, Kind, Wish, frames};
use crate::message::{Body, request_head};

/// Where the request stands.
#[derive(Debug, Clone, Copy)]
enum State {
    /// Its head is read.
    Head,
    /// Its body is read.
    Body(Body),
    /// It is answered; the parts of the answer are counted, and the bytes of
    /// the one under way.
    Answer {
        wish: Wish,
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
pub(super) struct Connection {
    stream: TcpStream,
    id: u64,
    state: State,
    unparsed: Vec<u8>,
    ends: Ends,
    pausing: bool,
}

impl Connection {
    pub(super) fn new(stream: TcpStream, id: u64) -> Self {
        Self {
            stream,
            id,
            state: State::Head,
            unparsed: Vec::new(),
            ends: Ends::default(),
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
        answers: &Answers,
        read_closed: bool,
    ) -> Result<Next, Error> {
        if matches!(self.state, State::Answer { .. }) && !self.pausing {
            let next = self.answer(answers)?;
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
                let next = self.answer(answers)?;
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
    pub(super) fn go_on(&mut self, answers: &Answers) -> Result<Next, Error> {
        self.pausing = false;
        self.answer(answers)
    }

    /// Processes the next bytes of the request; returns whether it is complete.
    fn take(&mut self, bytes: &[u8]) -> Result<bool, Error> {
        match self.state {
            State::Answer { .. } => Err(Error::Malformed("a request within a response")),
            State::Body(body) => self.take_body(body, bytes),
            State::Head if self.unparsed.is_empty() => self.take_head(bytes),
            State::Head => {
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
        let progress = body.take(bytes, |content| ends.see(content))?;
        if progress.used < bytes.len() {
            return Err(Error::Malformed("data after a request"));
        }
        self.state = if progress.complete {
            State::Answer {
                wish: self.ends.wish(),
                step: 0,
                sent: 0,
            }
        } else {
            State::Body(body)
        };
        Ok(progress.complete)
    }

    /// Writes one part after the other, each separately, until the response
    /// ends, pauses, or the socket is full.
    fn answer(&mut self, answers: &Answers) -> Result<Next, Error> {
        while let State::Answer { wish, step, sent } = self.state {
            let Some(part) = part(answers, wish, step) else {
                self.state = State::Head;
                break;
            };
            match self.stream.write(&part[sent..]) {
                Ok(now) if sent + now < part.len() => self.at(wish, step, sent + now),
                Ok(_) => {
                    self.at(wish, step + 1, 0);
                    match wish.kind {
                        // The stream is held after the head and one event.
                        Kind::Hold if step == 1 => {
                            self.pausing = true;
                            return Ok(Next::Wait);
                        }
                        Kind::Burst if (1..frames(wish.kind)).contains(&step) => {
                            self.pausing = true;
                            return Ok(Next::Turn);
                        }
                        Kind::Paced if (1..frames(wish.kind)).contains(&step) => {
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

    fn at(&mut self, wish: Wish, step: usize, sent: usize) {
        self.state = State::Answer { wish, step, sent };
    }
}

fn part(answers: &Answers, wish: Wish, step: usize) -> Option<&[u8]> {
    match (wish.kind, step) {
        (Kind::Json, 0) => Some(&answers.json),
        (Kind::List, 0) => Some(&answers.list),
        (Kind::Json | Kind::List, _) => None,
        _ => answers.at(wish, step),
    }
}
