//! The mock upstream: responds according to the name of the model, on one
//! thread and one epoll. Every event of a stream is a separate `send`, and
//! streams are interleaved like those of an engine that decodes in batches.

use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::time::Duration;

use mio::event::Event;
use mio::net::TcpListener;
use mio::{Events, Interest, Poll, Token};
use slab::Slab;

use crate::answer::Answers;
use crate::{Error, clock, local};

mod connection;
mod pace;

use connection::{Connection, Next};
use pace::Pace;

const LISTENER: Token = Token(usize::MAX);
const PACE: Token = Token(usize::MAX - 1);

/// Maximum number of open connections.
const MOST_CONNECTIONS: usize = 65_536;

/// Size of the read buffer, in bytes.
const BUFFER: usize = 256 << 10;

/// Time between two events of a paced stream.
pub const FRAME_INTERVAL: Duration = Duration::from_millis(10);

/// A mock upstream whose port is bound.
#[derive(Debug)]
pub struct Upstream {
    poll: Poll,
    listener: TcpListener,
    rooms: Rooms,
}

/// The state for serving, apart from the listener.
#[derive(Debug)]
struct Rooms {
    connections: Slab<Connection>,
    answers: Answers,
    pace: Pace,
    /// Streams that can send immediately, by slab key and connection ID.
    turns: VecDeque<(usize, u64)>,
    buffer: Vec<u8>,
    begun: u64,
}

impl Upstream {
    /// Binds the port; 0 selects a free one.
    pub fn bind(address: SocketAddr) -> Result<Self, Error> {
        let poll = Poll::new()?;
        let mut listener = TcpListener::bind(local(address)?)?;
        let registry = poll.registry();
        registry.register(&mut listener, LISTENER, Interest::READABLE)?;
        let pace = Pace::new()?;
        pace.register(registry, PACE)?;
        let rooms = Rooms {
            connections: Slab::new(),
            answers: Answers::new(),
            pace,
            turns: VecDeque::new(),
            buffer: vec![0; BUFFER],
            begun: 0,
        };
        Ok(Self {
            poll,
            listener,
            rooms,
        })
    }

    /// The bound address.
    pub fn address(&self) -> Result<SocketAddr, Error> {
        Ok(self.listener.local_addr()?)
    }

    /// Serves until an error that does not concern a single connection.
    pub fn run(mut self) -> Result<(), Error> {
        let mut events = Events::with_capacity(1024);
        loop {
            let patience = (!self.rooms.turns.is_empty()).then_some(Duration::ZERO);
            match self.poll.poll(&mut events, patience) {
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                polled => polled?,
            }
            for event in &events {
                match event.token() {
                    LISTENER => self.accept()?,
                    PACE => self.rooms.send_due()?,
                    _ => self.rooms.serve(event),
                }
            }
            self.rooms.take_turns();
            self.rooms.pace.set()?;
        }
    }

    fn accept(&mut self) -> Result<(), Error> {
        loop {
            let mut stream = match self.listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(error.into()),
            };
            if self.rooms.connections.len() >= MOST_CONNECTIONS {
                return Err(io::Error::other("too many connections").into());
            }
            stream.set_nodelay(true)?;
            let place = self.rooms.connections.vacant_entry();
            let both = Interest::READABLE | Interest::WRITABLE;
            let token = Token(place.key());
            self.poll.registry().register(&mut stream, token, both)?;
            self.rooms.begun += 1;
            place.insert(Connection::new(stream, self.rooms.begun));
        }
    }
}

impl Rooms {
    fn serve(&mut self, event: &Event) {
        let key = event.token().0;
        if let Some(connection) = self.connections.get_mut(key) {
            let next = connection.advance(&mut self.buffer, &self.answers, event.is_read_closed());
            self.then(key, &next);
        }
    }

    /// Sends the next event of every paced stream that is due.
    fn send_due(&mut self) -> Result<(), Error> {
        self.pace.fired()?;
        let now = clock::now();
        while let Some((key, id)) = self.pace.take_due(now) {
            self.go_on(key, id);
        }
        Ok(())
    }

    /// Sends one event of every stream that can send immediately.
    fn take_turns(&mut self) {
        for _ in 0..self.turns.len() {
            if let Some((key, id)) = self.turns.pop_front() {
                self.go_on(key, id);
            }
        }
    }

    fn go_on(&mut self, key: usize, id: u64) {
        // The slab key may belong to another connection by now.
        if let Some(connection) = self.connections.get_mut(key).filter(|one| one.id() == id) {
            let next = connection.go_on(&self.answers);
            self.then(key, &next);
        }
    }

    /// An error of one connection ends only that connection: a gateway may
    /// disconnect at any time.
    fn then(&mut self, key: usize, next: &Result<Next, Error>) {
        match next {
            Ok(Next::Wait) => {}
            Ok(Next::Pause) => {
                let id = self.connections[key].id();
                self.pace.push(clock::now() + FRAME_INTERVAL, key, id);
            }
            Ok(Next::Turn) => self.turns.push_back((key, self.connections[key].id())),
            Ok(Next::Close) | Err(_) => drop(self.connections.remove(key)),
        }
    }
}
