use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use fastllm_wire::{Piece, Splice};
use http_body::{Body, Frame, SizeHint};

/// Up to this many bytes, one copy costs less than several pieces.
const COPIED: usize = 16 << 10;

/// The body that an upstream gets. A large one shares the client's bytes, so
/// that the bound on those bounds what is held. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct RequestBody {
    pieces: VecDeque<Bytes>,
    left: u64,
}

impl RequestBody {
    /// The client's `body` with the edits of `splice`.
    pub(super) fn new(body: &Bytes, splice: &Splice<'_>) -> Self {
        let pieces = if splice.is_identity() {
            VecDeque::from([body.clone()])
        } else if body.len() <= COPIED {
            VecDeque::from([Bytes::from(splice.to_vec(body))])
        } else {
            splice
                .pieces(body.len())
                .map(|piece| match piece {
                    Piece::Kept(range) => body.slice(range),
                    Piece::Written(bytes) => Bytes::copy_from_slice(bytes),
                })
                .collect()
        };
        Self {
            left: pieces.iter().map(|piece| piece.len() as u64).sum(),
            pieces,
        }
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let body = self.get_mut();
        let piece = body.pieces.pop_front();
        body.left -= piece.as_ref().map_or(0, |piece| piece.len() as u64);
        Poll::Ready(piece.map(|piece| Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.pieces.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}
