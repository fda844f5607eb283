//! The load generator: a closed loop on one thread and one epoll.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use mio::{Events, Interest, Poll, Token};

use crate::{Error, Population, clock, local};

mod connection;
mod outcome;

use connection::{LoadConnection, LoadProgress};
use outcome::WindowCounters;
pub use outcome::{Outcome, Quantiles};

use crate::request::Request;

/// The requests to send, and their concurrency.
#[derive(Debug, Clone, clap::Args)]
pub struct LoadPlan {
    /// Address of the gateway
    #[arg(long)]
    pub target: SocketAddr,
    /// Number of concurrent requests, each on its own connection
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=16_000))]
    pub connections: u16,
    /// Size of a request body, in bytes
    #[arg(long, default_value_t = 1024)]
    pub body_bytes: usize,
    /// Prefix of the model names; it selects the response of the upstream
    #[arg(long, default_value = "bench-json")]
    pub model: String,
    /// Request streams
    #[arg(long)]
    pub stream: bool,
    /// Time over which the first requests of a window are spread, in
    /// milliseconds
    #[arg(long, default_value_t = 0)]
    pub stagger_ms: u64,
    /// Keys, principals and models of the requests
    #[command(flatten)]
    pub population: Population,
}

/// Size of the read buffer, in bytes.
const BUFFER: usize = 256 << 10;

/// Time limit for the last response after the end of a window.
const DRAIN: Duration = Duration::from_secs(20);

/// Maximum time between two checks of the clock.
const TICK: Duration = Duration::from_millis(200);

/// Open connections to a gateway, idle between windows.
#[derive(Debug)]
pub struct Load {
    poll: Poll,
    connections: Vec<LoadConnection>,
    request: Request,
    buffer: Vec<u8>,
    stagger: Duration,
}

/// The state of one window.
struct Window {
    until: Instant,
    busy: usize,
    /// Connections that have not begun, with the time of their first request.
    waiting: VecDeque<(Instant, usize)>,
    counters: WindowCounters,
}

impl Load {
    /// Connects. No request is sent yet.
    pub fn connect(plan: &LoadPlan) -> Result<Self, Error> {
        let target = local(plan.target)?;
        let poll = Poll::new()?;
        let mut connections = Vec::with_capacity(plan.connections.into());
        for index in 0..plan.connections.into() {
            let stream = std::net::TcpStream::connect(target)?;
            stream.set_nodelay(true)?;
            stream.set_nonblocking(true)?;
            let mut stream = mio::net::TcpStream::from_std(stream);
            let both = Interest::READABLE | Interest::WRITABLE;
            poll.registry().register(&mut stream, Token(index), both)?;
            connections.push(LoadConnection::new(stream));
        }
        Ok(Self {
            poll,
            connections,
            request: Request::new(
                &target.to_string(),
                &plan.model,
                plan.stream,
                plan.body_bytes,
                plan.population,
            ),
            buffer: vec![0; BUFFER],
            stagger: Duration::from_millis(plan.stagger_ms),
        })
    }

    /// Sends requests on every connection for this long, and waits for the last
    /// responses.
    pub fn window(&mut self, length: Duration) -> Result<Outcome, Error> {
        let began = clock::now();
        let share = self.stagger / u32::try_from(self.connections.len()).unwrap_or(u32::MAX);
        let mut due = began;
        let mut window = Window {
            until: began + length,
            busy: 0,
            waiting: VecDeque::with_capacity(self.connections.len()),
            counters: WindowCounters::new()?,
        };
        for index in 0..self.connections.len() {
            window.waiting.push_back((due, index));
            due += share;
        }
        let mut events = Events::with_capacity(1024);
        while self.begin_due(&mut window)? {
            self.wait(&mut events, window.waiting.front().map(|(due, _)| *due))?;
            for event in &events {
                self.advance(&mut window, event.token().0)?;
            }
            if clock::now() > window.until + DRAIN {
                return Err(Error::Stuck(window.busy));
            }
        }
        Ok(window.counters.outcome(began))
    }

    /// Starts a stream on every connection and waits for the first event of
    /// each; the streams stay open.
    pub fn hold(&mut self, timeout: Duration) -> Result<(), Error> {
        let until = clock::now() + timeout;
        for connection in &mut self.connections {
            connection.begin(self.request.next(), clock::now())?;
        }
        let mut events = Events::with_capacity(1024);
        let mut silent = self.connections.len();
        while silent > 0 {
            self.wait(&mut events, None)?;
            for event in &events {
                let connection = &mut self.connections[event.token().0];
                let before = connection.events();
                connection.advance(&mut self.buffer)?;
                silent -= usize::from(before == 0 && connection.events() > 0);
            }
            if clock::now() > until {
                return Err(Error::Stuck(silent));
            }
        }
        Ok(())
    }

    /// Number of held streams that have ended since.
    pub fn lost(&mut self) -> usize {
        let buffer = &mut self.buffer;
        let ended = |connection: &mut LoadConnection| {
            !matches!(connection.advance(buffer), Ok(LoadProgress::Pending))
        };
        self.connections
            .iter_mut()
            .map(ended)
            .filter(|ended| *ended)
            .count()
    }

    /// Starts the requests that are due; returns whether the window continues.
    fn begin_due(&mut self, window: &mut Window) -> Result<bool, Error> {
        while let Some(&(due, index)) = window.waiting.front() {
            let now = clock::now();
            if due > now {
                break;
            }
            window.waiting.pop_front();
            self.connections[index].begin(self.request.next(), now)?;
            window.busy += 1;
        }
        Ok(window.busy > 0 || !window.waiting.is_empty())
    }

    fn wait(&mut self, events: &mut Events, next: Option<Instant>) -> Result<(), Error> {
        let until_next = next.map(|due| due.saturating_duration_since(clock::now()));
        let timeout = until_next.map_or(TICK, |wait| wait.min(TICK));
        match self.poll.poll(events, Some(timeout)) {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => Err(error.into()),
            _ => Ok(()),
        }
    }

    fn advance(&mut self, window: &mut Window, index: usize) -> Result<(), Error> {
        let connection = &mut self.connections[index];
        if let LoadProgress::Complete(done) = connection.advance(&mut self.buffer)? {
            let now = clock::now();
            window.counters.note(&done, now);
            if now < window.until {
                connection.begin(self.request.next(), now)?;
            } else {
                window.busy -= 1;
            }
        }
        Ok(())
    }
}
