//! The clients: each sends one request after the other, at a limited rate,
//! through any available gateway.

use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep_until};

use super::case::{Case, Scenario};
use super::outcome::End;
use super::shared::SharedState;
use crate::message::{Events, response_head};
use crate::{Error, clock};

/// The state shared by all clients.
#[derive(Debug)]
pub(super) struct ClientPool {
    pub(super) shared: Rc<SharedState>,
    pub(super) gateways: Vec<Gateway>,
    pub(super) keys: Vec<String>,
    pub(super) requests: u32,
    /// Maximum number of requests per second.
    pub(super) rate: u32,
    pub(super) next: Cell<u32>,
    pub(super) began: Instant,
}

/// A gateway, and whether it is gone.
#[derive(Debug)]
pub(super) struct Gateway {
    pub(super) address: SocketAddr,
    pub(super) gone: Cell<bool>,
}

/// The observation of a client.
#[derive(Debug, Clone, Copy)]
struct ClientOutcome {
    end: End,
    status: u16,
    /// Whether the connection can be reused.
    usable: bool,
}

const LOST: ClientOutcome = ClientOutcome {
    end: End::Lost,
    status: 0,
    usable: false,
};

impl ClientPool {
    /// Runs one client: sends requests until none are left, and calls `ended`
    /// with the number of ended requests after each.
    pub(super) async fn run(self: Rc<Self>, ended: impl Fn(u32)) -> Result<(), Error> {
        let mut open: Vec<Option<TcpStream>> = self.gateways.iter().map(|_| None).collect();
        loop {
            let n = self.next.get();
            if n >= self.requests {
                return Ok(());
            }
            self.next.set(n + 1);
            let due = Duration::from_secs(u64::from(n)) / self.rate;
            sleep_until(self.began + due).await;
            let (gateway, stream) = self.connection(n, &mut open).await?;
            let case = Case::of(n);
            let body = case.body();
            let seen = self
                .send_request(n, &case, &body, stream, &mut open[gateway])
                .await;
            let order = self.shared.next_ended();
            if let Some(mut outcome) = self.shared.outcome(n) {
                outcome.gateway = gateway;
                outcome.end = seen.end;
                outcome.status = seen.status;
                outcome.order = order;
                outcome.ended_ms = self.began.elapsed().as_millis();
                outcome.body_bytes = body.len();
            }
            ended(order);
        }
    }

    /// A connection to the gateway for request `n`, or to the next one that is
    /// available.
    async fn connection(
        &self,
        n: u32,
        open: &mut [Option<TcpStream>],
    ) -> Result<(usize, TcpStream), Error> {
        let count = self.gateways.len();
        let first = usize::try_from(n).unwrap_or(0) % count;
        for index in (0..count).map(|more| (first + more) % count) {
            let gateway = &self.gateways[index];
            if gateway.gone.get() {
                continue;
            }
            if let Some(stream) = open[index].take() {
                return Ok((index, stream));
            }
            match TcpStream::connect(gateway.address).await {
                Ok(stream) => {
                    stream.set_nodelay(true)?;
                    return Ok((index, stream));
                }
                Err(_) => gateway.gone.set(true),
            }
        }
        Err(Error::Closed)
    }

    async fn send_request(
        &self,
        n: u32,
        case: &Case,
        body: &str,
        mut stream: TcpStream,
        kept: &mut Option<TcpStream>,
    ) -> ClientOutcome {
        let arrival = (case.course == Scenario::LeavesBefore).then(|| self.shared.arrival(n));
        let request = format!(
            "POST {} HTTP/1.1\r\nhost: gateway\r\nauthorization: Bearer {}\r\n\
             content-type: application/json\r\nx-request-id: x-{n}\r\ncontent-length: {}\r\n\r\n{body}",
            case.path(),
            self.keys[case.key],
            body.len()
        );
        if stream.write_all(request.as_bytes()).await.is_err() {
            return LOST;
        }
        let response = read_response(&mut stream, case);
        let seen = match arrival {
            None => response.await,
            Some(arrival) => tokio::select! {
                _ = arrival => ClientOutcome { end: End::Left, ..LOST },
                seen = response => seen,
            },
        };
        if seen.usable {
            *kept = Some(stream);
        }
        seen
    }
}

/// Reads the response, unless the script makes the client disconnect.
async fn read_response(stream: &mut TcpStream, case: &Case) -> ClientOutcome {
    let mut unread = Vec::with_capacity(4096);
    let head = loop {
        match response_head(&unread) {
            Ok(Some(head)) => break head,
            Ok(None) => {}
            Err(_) => return LOST,
        }
        if !matches!(stream.read_buf(&mut unread).await, Ok(1..)) {
            return LOST;
        }
    };
    unread.drain(..head.bytes);
    let (status, mut body, mut events) = (head.status, head.body, Events::default());
    let leaves = case.course == Scenario::LeavesWithin && status == 200;
    let seen = |end, usable| ClientOutcome {
        end,
        status,
        usable,
    };
    loop {
        let Ok(progress) = body.take(&unread, |bytes| events.observe(bytes)) else {
            return seen(End::Lost, false);
        };
        unread.drain(..progress.used);
        if leaves && events.ended >= u64::from(case.events) {
            return seen(End::Left, false);
        }
        if progress.complete {
            return seen(End::Complete, true);
        }
        if !matches!(stream.read_buf(&mut unread).await, Ok(1..)) {
            return seen(End::Lost, false);
        }
    }
}

/// The current time, for pacing.
pub(super) fn now() -> Instant {
    Instant::from_std(clock::now())
}
