//! One timer for all timeouts of a connection.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use tokio::time::{Sleep, sleep_until};

use super::clock;

/// A deadline that moves with every step of a connection, and is never later than
/// the timeout of the whole request.
///
/// Moving it costs a store: the timer is reset only if it would fire too late, or
/// has fired too early.
#[derive(Debug, Default)]
pub(crate) struct Deadline {
    at: Option<Instant>,
    /// When the request times out.
    until: Option<Instant>,
    timer: Option<Timer>,
}

#[derive(Debug)]
struct Timer {
    sleep: Pin<Box<Sleep>>,
    /// The waker that the timer has.
    waker: Option<Waker>,
}

impl Deadline {
    /// Sets the deadline to this long after now.
    pub(crate) fn arm(&mut self, after: Duration) {
        self.arm_from(clock::now(), after);
    }

    /// Sets the deadline to this long after a moment.
    pub(crate) fn arm_from(&mut self, moment: Instant, after: Duration) {
        self.at = Some(moment + after);
    }

    /// Sets the deadline unless it is set.
    pub(crate) fn arm_once(&mut self, after: Duration) {
        if self.at.is_none() {
            self.arm(after);
        }
    }

    /// Whether the deadline is set.
    pub(crate) fn is_armed(&self) -> bool {
        self.at.is_some()
    }

    /// Sets the deadline to this long after now, unless it is earlier.
    pub(crate) fn shorten(&mut self, after: Duration) {
        let latest = clock::now() + after;
        self.at = Some(self.at.map_or(latest, |at| at.min(latest)));
    }

    /// Removes the deadline; only the timeout of the request remains.
    pub(crate) fn disarm(&mut self) {
        self.at = None;
    }

    /// Starts the timeout of a request, if it has one.
    pub(crate) fn begin_request(&mut self, limit: Option<Duration>) {
        self.until = limit.map(|limit| clock::now() + limit);
    }

    /// Removes the timeout of the request.
    pub(crate) fn end_request(&mut self) {
        self.until = None;
    }

    /// When the request times out.
    pub(crate) fn request_end(&self) -> Option<Instant> {
        self.until
    }

    /// Whether the request has timed out.
    pub(crate) fn request_is_over(&self) -> bool {
        self.until.is_some_and(|until| clock::now() >= until)
    }

    /// Ready once the deadline is reached.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let at = match (self.at, self.until) {
            (Some(at), Some(until)) => at.min(until),
            (Some(at), None) | (None, Some(at)) => at,
            (None, None) => return Poll::Pending,
        };
        self.poll_at(cx, at)
    }

    /// Ready once the request has timed out.
    pub(crate) fn poll_request(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match self.until {
            Some(until) => self.poll_at(cx, until),
            None => Poll::Pending,
        }
    }

    fn poll_at(&mut self, cx: &mut Context<'_>, at: Instant) -> Poll<()> {
        let timer = self.timer.get_or_insert_with(|| Timer {
            sleep: Box::pin(sleep_until(at.into())),
            waker: None,
        });
        if timer.sleep.deadline().into_std() > at {
            timer.set(at);
        }
        while timer.poll(cx).is_ready() {
            if timer.sleep.deadline().into_std() >= at {
                return Poll::Ready(());
            }
            timer.set(at);
        }
        Poll::Pending
    }

    /// The output of a future, or nothing if the deadline is reached first.
    pub(crate) async fn before<F: Future>(&mut self, future: F) -> Option<F::Output> {
        let mut future = std::pin::pin!(future);
        std::future::poll_fn(|cx| match future.as_mut().poll(cx) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending => self.poll(cx).map(|()| None),
        })
        .await
    }
}

impl Timer {
    fn set(&mut self, at: Instant) {
        self.sleep.as_mut().reset(at.into());
        self.waker = None;
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let waits = self
            .waker
            .as_ref()
            .is_some_and(|waker| waker.will_wake(cx.waker()));
        if waits && !self.sleep.is_elapsed() {
            return Poll::Pending;
        }
        let polled = self.sleep.as_mut().poll(cx);
        if polled.is_pending() {
            self.waker = Some(cx.waker().clone());
        }
        polled
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, poll_fn, ready};
    use std::time::Duration;

    use super::Deadline;
    use crate::runtime::clock;

    const MOMENT: Duration = Duration::from_millis(5);

    #[tokio::test]
    async fn the_last_deadline_applies() {
        let mut deadline = Deadline::default();
        assert_eq!(deadline.before(ready(7)).await, Some(7));
        let began = clock::now();
        deadline.arm(Duration::from_hours(1));
        assert_eq!(deadline.before(ready(7)).await, Some(7));
        deadline.arm(MOMENT);
        assert_eq!(deadline.before(pending::<()>()).await, None);
        // Earlier than the timer, then later.
        deadline.arm(MOMENT);
        deadline.arm(MOMENT * 3);
        poll_fn(|cx| deadline.poll(cx)).await;
        assert!(began.elapsed() >= MOMENT * 4);
        assert!(began.elapsed() < Duration::from_mins(10));
    }

    #[tokio::test]
    async fn the_request_timeout_limits_every_deadline() {
        let mut deadline = Deadline::default();
        deadline.begin_request(Some(MOMENT));
        deadline.arm(Duration::from_hours(1));
        assert_eq!(deadline.before(pending::<()>()).await, None);
        assert!(deadline.request_is_over());
        deadline.disarm();
        poll_fn(|cx| deadline.poll_request(cx)).await;
        assert_eq!(deadline.before(pending::<()>()).await, None);

        deadline.begin_request(None);
        assert!(!deadline.request_is_over());
        deadline.begin_request(Some(Duration::from_hours(1)));
        deadline.arm(MOMENT);
        assert_eq!(deadline.before(pending::<()>()).await, None);
        assert!(!deadline.request_is_over());
        deadline.end_request();
        assert_eq!(deadline.request_end(), None);
    }

    #[tokio::test]
    async fn one_that_is_off_is_never_reached() {
        let mut deadline = Deadline::default();
        deadline.arm(Duration::ZERO);
        deadline.disarm();
        let mut other = Deadline::default();
        other.arm(MOMENT);
        let waits = poll_fn(|cx| deadline.poll(cx));
        assert_eq!(other.before(waits).await, None);
    }
}
