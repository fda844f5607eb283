use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use fastllm_engine::Refusal;
use fastllm_wire::ScanError;

use crate::runtime::{Deadline, clock};

/// The most memory that is allocated for a body before it arrives, in bytes.
const AHEAD: u64 = 1 << 20;

/// The bounds on request bodies: on each, and on all that are held at once.
#[derive(Debug)]
pub(crate) struct BodyLimits {
    each: u64,
    timeouts: BodyTimeouts,
    left: Arc<AtomicU64>,
}

/// How long a client may take to send a request body.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BodyTimeouts {
    /// The longest pause between two parts.
    pub(crate) part: Duration,
    /// The longest time for all parts.
    pub(crate) whole: Duration,
}

/// The time that a client has left to send a request body. It does not pass
/// while the body is not read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BodyTime {
    timeouts: BodyTimeouts,
    spent: Duration,
    /// When the current wait for the client began.
    since: Option<Instant>,
}

/// A share of the memory for request bodies. Dropping it releases the memory.
#[derive(Debug)]
pub(crate) struct MemoryShare {
    left: Arc<AtomicU64>,
    taken: u64,
}

/// A request body, or its beginning.
#[derive(Debug)]
pub(crate) struct ReceivedBody {
    bytes: Bytes,
    whole: bool,
    share: MemoryShare,
    time: BodyTime,
}

/// The client of one request: sends the body, and may disconnect.
pub(crate) trait BodySource: Send {
    /// The length of the body, where it is known in advance.
    fn content_length(&self) -> Option<u64>;

    /// Reads once and appends to `body`; true at the end of the body.
    fn poll_body(
        &mut self,
        cx: &mut Context<'_>,
        body: &mut BytesMut,
    ) -> Poll<Result<bool, UnreadableBody>>;

    /// Ready once the client has disconnected. Polled when its body is complete.
    fn poll_disconnected(&mut self, cx: &mut Context<'_>) -> Poll<()>;
}

/// The client of a request, and the time that the request has.
pub(crate) struct RequestContext<'a> {
    pub(crate) client: &'a mut dyn BodySource,
    pub(crate) deadline: &'a mut Deadline,
}

/// A body that cannot be read to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct UnreadableBody;

impl From<UnreadableBody> for Refusal {
    fn from(_: UnreadableBody) -> Self {
        Self::invalid("the request body cannot be read")
    }
}

/// The rejection of a body that lacks required members or is not valid.
pub(crate) fn invalid_body(error: ScanError) -> Refusal {
    Refusal::InvalidRequest {
        message: error.to_string().into(),
        code: error.code(),
        param: error.member(),
    }
}

impl BodyLimits {
    /// The least memory for all request bodies together, in bytes.
    const ALL: u64 = 256 << 20;

    /// At most `each` bytes per body; for all together four times as much, and at
    /// least 256 MiB.
    pub(crate) fn new(each: u64, timeouts: BodyTimeouts) -> Self {
        Self {
            each,
            timeouts,
            left: Arc::new(AtomicU64::new(Self::ALL.max(each.saturating_mul(4)))),
        }
    }

    /// The memory that is left, in bytes.
    #[cfg(test)]
    pub(crate) fn left(&self) -> u64 {
        self.left.load(Ordering::Relaxed)
    }

    /// Rejects a body of this length if it is too long.
    pub(crate) fn check(&self, length: u64) -> Result<(), Refusal> {
        if length > self.each {
            return Err(Refusal::PayloadTooLarge { limit: self.each });
        }
        Ok(())
    }

    /// Reads a complete body.
    pub(crate) async fn read(
        &self,
        context: &mut RequestContext<'_>,
    ) -> Result<ReceivedBody, Refusal> {
        self.read_until(context, |_| Ok(false)).await
    }

    /// Reads a body to its end, or until `enough` returns true. `enough` gets each
    /// part.
    pub(crate) async fn read_until(
        &self,
        context: &mut RequestContext<'_>,
        mut enough: impl FnMut(&[u8]) -> Result<bool, Refusal>,
    ) -> Result<ReceivedBody, Refusal> {
        let RequestContext { client, deadline } = context;
        let content_length = client.content_length();
        self.check(content_length.unwrap_or(0))?;
        let mut share = MemoryShare::of(self);
        let ahead = usize::try_from(content_length.unwrap_or(0).min(AHEAD)).unwrap_or(0);
        let mut body = BytesMut::with_capacity(ahead);
        let mut time = BodyTime::new(self.timeouts);
        loop {
            let before = body.len();
            let part = poll_fn(|cx| match client.poll_body(cx, &mut body) {
                Poll::Ready(read) => {
                    deadline.disarm();
                    Poll::Ready(Some(read))
                }
                Poll::Pending => {
                    if !deadline.is_armed() {
                        let now = clock::now();
                        deadline.arm_from(now, time.wait(now));
                    }
                    deadline.poll(cx).map(|()| None)
                }
            });
            let end = match part.await {
                Some(read) => read?,
                None => return Err(Refusal::BodyTimeout),
            };
            let length = body.len() as u64;
            self.check(length)?;
            share.grow(length - share.taken)?;
            if enough(body.get(before..).unwrap_or_default())? || end {
                return Ok(ReceivedBody {
                    bytes: body.freeze(),
                    whole: end,
                    share,
                    time,
                });
            }
        }
    }
}

impl BodyTime {
    /// The time for a whole body.
    pub(crate) fn new(timeouts: BodyTimeouts) -> Self {
        Self {
            timeouts,
            spent: Duration::ZERO,
            since: None,
        }
    }

    /// A wait for the client begins; the one before ends now. Returns the timeout
    /// of the wait.
    pub(crate) fn wait(&mut self, now: Instant) -> Duration {
        self.pause(now);
        self.since = Some(now);
        let left = self.timeouts.whole.saturating_sub(self.spent);
        left.min(self.timeouts.part)
    }

    /// The body is not read from now on.
    pub(crate) fn pause(&mut self, now: Instant) {
        if let Some(since) = self.since.take() {
            self.spent += now.saturating_duration_since(since);
        }
    }
}

impl MemoryShare {
    fn of(limits: &BodyLimits) -> Self {
        Self {
            left: Arc::clone(&limits.left),
            taken: 0,
        }
    }

    /// Takes this many bytes more.
    pub(crate) fn grow(&mut self, bytes: u64) -> Result<(), Refusal> {
        let take = |left: u64| left.checked_sub(bytes);
        self.left
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, take)
            .map_err(|_| Refusal::Overloaded)?;
        self.taken += bytes;
        Ok(())
    }
}

impl Drop for MemoryShare {
    fn drop(&mut self) {
        self.left.fetch_add(self.taken, Ordering::Relaxed);
    }
}

impl ReceivedBody {
    /// The part of the body that has arrived. Cheap.
    pub(crate) fn bytes(&self) -> Bytes {
        self.bytes.clone()
    }

    /// Whether the body is complete.
    pub(crate) fn is_whole(&self) -> bool {
        self.whole
    }

    /// The bytes, the memory that they take, and the time that is left for
    /// further ones.
    pub(crate) fn into_parts(self) -> (Bytes, MemoryShare, BodyTime) {
        (self.bytes, self.share, self.time)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use fastllm_engine::Refusal;

    use super::{BodyLimits, BodyTime, BodyTimeouts, MemoryShare};
    use crate::runtime::clock;

    const TIMEOUTS: BodyTimeouts = BodyTimeouts {
        part: Duration::from_secs(30),
        whole: Duration::from_secs(100),
    };

    #[test]
    fn many_short_waits_are_bounded_together() {
        let mut time = BodyTime::new(TIMEOUTS);
        let mut now = clock::now();
        for left in [30, 30, 30, 30, 20, 0, 0] {
            assert_eq!(time.wait(now), Duration::from_secs(left));
            now += Duration::from_secs(20);
        }
    }

    #[test]
    fn the_time_in_which_a_body_is_not_read_does_not_count() {
        let mut time = BodyTime::new(TIMEOUTS);
        let mut now = clock::now();
        for _ in 0..4 {
            assert_eq!(time.wait(now), TIMEOUTS.part);
            now += Duration::from_secs(20);
            time.pause(now);
            now += Duration::from_hours(1);
        }
        assert_eq!(time.wait(now), Duration::from_secs(20));
    }

    #[test]
    fn memory_for_all_bodies_is_bounded_and_released() {
        let limits = BodyLimits::new(1 << 20, TIMEOUTS);
        let mut first = MemoryShare::of(&limits);
        first.grow(BodyLimits::ALL - 10).unwrap();
        let mut second = MemoryShare::of(&limits);
        assert_eq!(second.grow(11), Err(Refusal::Overloaded));
        second.grow(10).unwrap();
        drop(first);
        second.grow(BodyLimits::ALL - 10).unwrap();
        assert_eq!(second.grow(1), Err(Refusal::Overloaded));
    }
}
