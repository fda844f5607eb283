use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::Body;
use hyper::body::Incoming;

use super::pool::Lease;

/// The body of an upstream's answer. It holds the connection: read to its end
/// it gives it back, dropped before that it closes it.
#[derive(Debug)]
pub(crate) struct UpstreamBody {
    incoming: Incoming,
    lease: Option<Lease>,
}

impl UpstreamBody {
    pub(super) fn new(incoming: Incoming, lease: Lease) -> Self {
        let mut body = Self {
            incoming,
            lease: Some(lease),
        };
        body.release_at_end();
        body
    }

    /// The next bytes; nothing at the end. The reason of a break-off holds no
    /// address. Trailers are left out.
    pub(crate) fn poll_chunk(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, String>>> {
        loop {
            match ready!(Pin::new(&mut self.incoming).poll_frame(cx)) {
                Some(Ok(frame)) => {
                    self.release_at_end();
                    if let Ok(bytes) = frame.into_data() {
                        return Poll::Ready(Some(Ok(bytes)));
                    }
                }
                Some(Err(error)) => {
                    self.lease = None;
                    return Poll::Ready(Some(Err(error.to_string())));
                }
                None => {
                    self.release();
                    return Poll::Ready(None);
                }
            }
        }
    }

    /// Whether nothing more comes.
    pub(crate) fn is_end(&self) -> bool {
        self.incoming.is_end_stream()
    }

    fn release_at_end(&mut self) {
        if self.incoming.is_end_stream() {
            self.release();
        }
    }

    fn release(&mut self) {
        if let Some(lease) = self.lease.take() {
            lease.release();
        }
    }
}
