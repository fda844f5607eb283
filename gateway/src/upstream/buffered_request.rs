use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use tokio::io::AsyncWrite;

use super::connection::RequestWriter;
use crate::runtime::Socket;
use crate::runtime::buffers;

/// The maximum number of parts per write call.
const PARTS: usize = 8;

/// A request that is being sent: first the head, with small parts copied behind
/// it, then parts that share the client's bytes, so that the limit on those
/// bytes limits the memory of the request.
#[derive(Debug)]
pub(crate) struct BufferedRequest {
    first: Vec<u8>,
    rest: Vec<Bytes>,
    sent: usize,
    len: usize,
}

impl BufferedRequest {
    /// A request that is sent from its first byte.
    pub(crate) fn new(first: Vec<u8>, rest: Vec<Bytes>) -> Self {
        let len = first.len() + rest.iter().map(Bytes::len).sum::<usize>();
        Self {
            first,
            rest,
            sent: 0,
            len,
        }
    }

    /// Restarts from the first byte, for another connection.
    pub(crate) fn rewind(&mut self) {
        self.sent = 0;
    }

    /// The number of bytes that were sent.
    pub(crate) fn sent(&self) -> usize {
        self.sent
    }

    fn poll_parts(&self, socket: &mut Socket, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let mut slices = [IoSlice::new(&[]); PARTS];
        let mut skip = self.sent;
        let mut count = 0;
        let parts = std::iter::once(self.first.as_slice()).chain(self.rest.iter().map(|p| &**p));
        for part in parts {
            let left = part.get(skip..).unwrap_or_default();
            skip = skip.saturating_sub(part.len());
            let Some(slot) = slices.get_mut(count) else {
                break;
            };
            if !left.is_empty() {
                *slot = IoSlice::new(left);
                count += 1;
            }
        }
        let slices = slices.get(..count).unwrap_or_default();
        match ready!(Pin::new(socket).poll_write_vectored(cx, slices))? {
            0 => Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
            written => Poll::Ready(Ok(written)),
        }
    }
}

impl RequestWriter for BufferedRequest {
    fn poll_send(&mut self, socket: &mut Socket, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.sent < self.len {
            let written = if let Some(first) = self.first.get(self.sent..)
                && self.rest.is_empty()
            {
                ready!(socket.poll_write_some(cx, first))?
            } else {
                ready!(self.poll_parts(socket, cx))?
            };
            self.sent += written;
        }
        Pin::new(socket).poll_flush(cx)
    }
}

impl Drop for BufferedRequest {
    fn drop(&mut self) {
        buffers::recycle(std::mem::take(&mut self.first));
    }
}
