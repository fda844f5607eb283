//! A client that takes nothing of its answer holds its upstream, too. The
//! kernel sees that only where a connection stands still as a whole; here it is
//! one stream whose window stays shut.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use crate::runtime::Deadline;

/// What became of a stream's answer while the stream was polled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StreamProgress {
    /// It was not asked for more.
    NotPolled,
    /// It gave something, or began.
    Progressed,
    /// It was asked for more, and waits for its upstream.
    Waiting,
}

thread_local! {
    static LAST: Cell<StreamProgress> = const { Cell::new(StreamProgress::NotPolled) };
}

/// To be called within the stream's poll, by its answer.
pub(super) fn note(response: StreamProgress) {
    LAST.set(response);
}

/// Runs a stream to its end, or drops it when its client has taken nothing of
/// the answer for `limit`.
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

    /// Whether a stream that does this when it is polled, and the last of it
    /// from then on, is dropped.
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
        let mut patience = Deadline::default();
        patience.arm(MOMENT * 20);
        patience
            .before(until_stalled(stream, MOMENT))
            .await
            .is_some()
    }

    #[tokio::test]
    async fn only_a_client_that_takes_nothing_is_given_up() {
        use StreamProgress::{NotPolled, Progressed, Waiting};
        assert!(is_dropped(&[Progressed, NotPolled]).await);
        assert!(is_dropped(&[Progressed, Waiting, NotPolled]).await);
        // The answer has not begun, or its upstream is silent.
        assert!(!is_dropped(&[]).await);
        assert!(!is_dropped(&[NotPolled, NotPolled]).await);
        assert!(!is_dropped(&[Progressed, Waiting]).await);
    }

    #[tokio::test]
    async fn a_stream_that_ends_has_ended() {
        until_stalled(async { note(StreamProgress::Progressed) }, LONG).await;
        let mut patience = Deadline::default();
        patience.arm(MOMENT);
        assert_eq!(patience.before(until_stalled(pending(), LONG)).await, None);
    }
}
