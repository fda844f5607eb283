use std::collections::VecDeque;
use std::io::ErrorKind;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Instant;

use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};

use crate::{Error, clock};

/// The times of the next events of paced streams. Uses a kernel timer, because
/// the timeout of epoll has a resolution of one millisecond: events would be
/// sent in bursts that no engine produces.
///
/// Invariant: the interval is the same for all streams, so the queue is sorted.
#[derive(Debug)]
pub(super) struct PacingQueue {
    timer: OwnedFd,
    due: VecDeque<(Instant, usize, u64)>,
    set_to: Option<Instant>,
}

impl PacingQueue {
    pub(super) fn new() -> Result<Self, Error> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags);
        Ok(Self {
            timer: timer.map_err(std::io::Error::from)?,
            due: VecDeque::new(),
            set_to: None,
        })
    }

    pub(super) fn register(&self, registry: &Registry, token: Token) -> Result<(), Error> {
        let raw = self.timer.as_raw_fd();
        Ok(registry.register(&mut SourceFd(&raw), token, Interest::READABLE)?)
    }

    /// Schedules a connection (its slab key and ID) for `at`.
    pub(super) fn push(&mut self, at: Instant, key: usize, id: u64) {
        self.due.push_back((at, key, id));
    }

    /// The next connection that is due.
    pub(super) fn take_due(&mut self, now: Instant) -> Option<(usize, u64)> {
        let (at, key, id) = *self.due.front()?;
        (at <= now).then(|| {
            self.due.pop_front();
            (key, id)
        })
    }

    /// Resets the timer after it expired.
    pub(super) fn fired(&mut self) -> Result<(), Error> {
        self.set_to = None;
        match rustix::io::read(&self.timer, &mut [0; 8]) {
            Err(error) => {
                let error = std::io::Error::from(error);
                if error.kind() == ErrorKind::WouldBlock {
                    Ok(())
                } else {
                    Err(error.into())
                }
            }
            Ok(_) => Ok(()),
        }
    }

    /// Sets the timer to the first scheduled time if that has changed.
    pub(super) fn set(&mut self) -> Result<(), Error> {
        let next = self.due.front().map(|(at, ..)| *at);
        if next.is_none() || next == self.set_to {
            return Ok(());
        }
        self.set_to = next;
        let wait = next.map(|at| at.saturating_duration_since(clock::now()));
        let wait = wait.unwrap_or_default();
        let to = Itimerspec {
            it_interval: Timespec {
                tv_sec: 0,
                tv_nsec: 0,
            },
            it_value: Timespec {
                tv_sec: i64::try_from(wait.as_secs()).unwrap_or(i64::MAX),
                // Zero would stop the timer.
                tv_nsec: i64::from(wait.subsec_nanos().max(1)),
            },
        };
        timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &to)
            .map_err(std::io::Error::from)?;
        Ok(())
    }
}
