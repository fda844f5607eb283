//! Disconnects clients that do not read their response, which would occupy an
//! upstream. The kernel detects this only for a whole connection; this module
//! detects a single stream whose window stays closed.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use crate::runtime::Deadline;

/// The state of a stream's response while the stream was polled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StreamProgress {
    /// The body was not polled.
    NotPolled,
    /// The body returned data, or has started.
    Progressed,
    /// The body was polled, and waits for its upstream.
    Waiting,
}

thread_local! {
    static LAST: Cell<StreamProgress> = const { Cell::new(StreamProgress::NotPolled) };
}

/// Called by the response within the stream's poll.
pub(super) fn note(response: StreamProgress) {
    LAST.set(response);
}

/// Runs a stream to its end, or drops it when its client has read nothing of the
/// response for `limit`.
pub(super) async fn until_stalled(stream: impl Future<Output = ()>, limit: Duration) {
    let mut stream = pin!(stream);
    let mut deadline = Deadline::default();
    let mut responding = false;
    poll_fn(|cx| {
        LAST.set(StreamProgress::NotPolled);
        if stream.as_mut().poll(cx).is_ready() {
            return Poll::Ready(());
        }
        match LAST.get() {
            StreamProgress::NotPolled if responding => deadline.arm_once(limit),
            StreamProgress::NotPolled => {}
            StreamProgress::Progressed => {
                responding = true;
                deadline.arm(limit);
            }
            StreamProgress::Waiting => {
                responding = true;
                deadline.disarm();
            }
        }
        deadline.poll(cx)
    })
    .await;
}

#[cfg(test)]
mod tests {
    use std::future::{pending, poll_fn};
    use std::task::Poll;
    use std::time::Duration;

    use super::{StreamProgress, note, until_stalled};
    use crate::runtime::Deadline;

    const MOMENT: Duration = Duration::from_millis(5);
    const LONG: Duration = Duration::from_hours(1);

    /// Whether a stream with these states per poll, the last one repeated, is
    /// dropped.
    async fn is_dropped(polls: &[StreamProgress]) -> bool {
        let mut at = 0;
        let stream = poll_fn(|cx| {
            if let Some(response) = polls.get(at).or(polls.last()) {
                note(*response);
            }
            if at < polls.len() {
                at += 1;
                cx.waker().wake_by_ref();
            }
            Poll::<()>::Pending
        });
        let mut deadline = Deadline::default();
        deadline.arm(MOMENT * 20);
        deadline
            .before(until_stalled(stream, MOMENT))
            .await
            .is_some()
    }

    #[tokio::test]
    async fn only_stalled_clients_are_disconnected() {
        use StreamProgress::{NotPolled, Progressed, Waiting};
        assert!(is_dropped(&[Progressed, NotPolled]).await);
        assert!(is_dropped(&[Progressed, Waiting, NotPolled]).await);
        // The response has not started, or its upstream is idle.
        assert!(!is_dropped(&[]).await);
        assert!(!is_dropped(&[NotPolled, NotPolled]).await);
        assert!(!is_dropped(&[Progressed, Waiting]).await);
    }

    #[tokio::test]
    async fn a_finished_stream_ends_the_wait() {
        until_stalled(async { note(StreamProgress::Progressed) }, LONG).await;
        let mut deadline = Deadline::default();
        deadline.arm(MOMENT);
        assert_eq!(deadline.before(until_stalled(pending(), LONG)).await, None);
    }
}
