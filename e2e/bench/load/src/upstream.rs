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

use crate::response::Responses;
use crate::{Error, clock, local};

mod connection;
mod pace;

use connection::{Next, UpstreamConnection};
use pace::PacingQueue;

const LISTENER: Token = Token(usize::MAX);
const PACE: Token = Token(usize::MAX - 1);

/// Maximum number of open connections.
const MAX_CONNECTIONS: usize = 65_536;

/// Size of the read buffer, in bytes.
const BUFFER: usize = 256 << 10;

/// Time between two events of a paced stream.
pub const FRAME_INTERVAL: Duration = Duration::from_millis(10);

/// A mock upstream whose port is bound.
#[derive(Debug)]
pub struct Upstream {
    poll: Poll,
    listener: TcpListener,
    state: ServerState,
}

/// The state for serving, apart from the listener.
#[derive(Debug)]
struct ServerState {
    connections: Slab<UpstreamConnection>,
    responses: Responses,
    pace: PacingQueue,
    /// Streams that can send immediately, by slab key and connection ID.
    ready: VecDeque<(usize, u64)>,
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
        let pace = PacingQueue::new()?;
        pace.register(registry, PACE)?;
        let state = ServerState {
            connections: Slab::new(),
            responses: Responses::new(),
            pace,
            ready: VecDeque::new(),
            buffer: vec![0; BUFFER],
            begun: 0,
        };
        Ok(Self {
            poll,
            listener,
            state,
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
            let timeout = (!self.state.ready.is_empty()).then_some(Duration::ZERO);
            match self.poll.poll(&mut events, timeout) {
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                polled => polled?,
            }
            for event in &events {
                match event.token() {
                    LISTENER => self.accept()?,
                    PACE => self.state.send_due()?,
                    _ => self.state.serve(event),
                }
            }
            self.state.send_ready();
            self.state.pace.set()?;
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
            if self.state.connections.len() >= MAX_CONNECTIONS {
                return Err(io::Error::other("too many connections").into());
            }
            stream.set_nodelay(true)?;
            let place = self.state.connections.vacant_entry();
            let both = Interest::READABLE | Interest::WRITABLE;
            let token = Token(place.key());
            self.poll.registry().register(&mut stream, token, both)?;
            self.state.begun += 1;
            place.insert(UpstreamConnection::new(stream, self.state.begun));
        }
    }
}

impl ServerState {
    fn serve(&mut self, event: &Event) {
        let key = event.token().0;
        if let Some(connection) = self.connections.get_mut(key) {
            let next =
                connection.advance(&mut self.buffer, &self.responses, event.is_read_closed());
            self.then(key, &next);
        }
    }

    /// Sends the next event of every paced stream that is due.
    fn send_due(&mut self) -> Result<(), Error> {
        self.pace.fired()?;
        let now = clock::now();
        while let Some((key, id)) = self.pace.take_due(now) {
            self.resume(key, id);
        }
        Ok(())
    }

    /// Sends one event of every stream that can send immediately.
    fn send_ready(&mut self) {
        for _ in 0..self.ready.len() {
            if let Some((key, id)) = self.ready.pop_front() {
                self.resume(key, id);
            }
        }
    }

    fn resume(&mut self, key: usize, id: u64) {
        // The slab key may belong to another connection by now.
        if let Some(connection) = self.connections.get_mut(key).filter(|one| one.id() == id) {
            let next = connection.resume(&self.responses);
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
            Ok(Next::Turn) => self.ready.push_back((key, self.connections[key].id())),
            Ok(Next::Close) | Err(_) => drop(self.connections.remove(key)),
        }
    }
}
