use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use fastllm_engine::Refusal;
use http::HeaderMap;
use http::header;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::time::timeout;

/// How long a client may take between two parts of its body.
const PATIENCE: Duration = Duration::from_secs(30);

/// What the memory for one body grows to ahead of its bytes, at most.
const AHEAD: u64 = 1 << 20;

/// The bounds on request bodies: of each, and of all that are held at once.
#[derive(Debug)]
pub(crate) struct BodyLimits {
    each: u64,
    left: Arc<AtomicU64>,
}

/// A share of the memory for request bodies. Dropping it gives it back.
#[derive(Debug)]
struct Share {
    left: Arc<AtomicU64>,
    taken: u64,
}

/// A complete request body.
#[derive(Debug)]
pub(crate) struct Received {
    bytes: Bytes,
    _share: Share,
}

/// A request body that has not been read.
#[derive(Debug)]
pub(crate) struct ClientBody(pub(super) Incoming);

impl BodyLimits {
    /// The least memory for all request bodies together, in bytes.
    const ALL: u64 = 256 << 20;

    /// At most `each` bytes per body; for all together as much as four of them,
    /// and not less than 256 MiB.
    pub(crate) fn new(each: u64) -> Self {
        Self {
            each,
            left: Arc::new(AtomicU64::new(Self::ALL.max(each.saturating_mul(4)))),
        }
    }
}

impl Share {
    fn of(limits: &BodyLimits) -> Self {
        Self {
            left: Arc::clone(&limits.left),
            taken: 0,
        }
    }

    fn grow(&mut self, bytes: u64) -> Result<(), Refusal> {
        let take = |left: u64| left.checked_sub(bytes);
        self.left
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, take)
            .map_err(|_| Refusal::Overloaded)?;
        self.taken += bytes;
        Ok(())
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.left.fetch_add(self.taken, Ordering::Relaxed);
    }
}

impl Received {
    /// The body; cheap.
    pub(crate) fn bytes(&self) -> Bytes {
        self.bytes.clone()
    }
}

impl ClientBody {
    /// Reads all of it. A body that came in one piece is not copied.
    pub(crate) async fn read(
        mut self,
        headers: &HeaderMap,
        limits: &BodyLimits,
    ) -> Result<Received, Refusal> {
        let too_large = || Refusal::PayloadTooLarge { limit: limits.each };
        let announced = announced(headers);
        if announced.is_some_and(|length| length > limits.each) {
            return Err(too_large());
        }
        let mut share = Share::of(limits);
        let mut first = Bytes::new();
        let mut rest = BytesMut::new();
        while let Some(chunk) = self.next().await? {
            let length = chunk.len() as u64;
            if share.taken + length > limits.each {
                return Err(too_large());
            }
            share.grow(length)?;
            if first.is_empty() {
                first = chunk;
                continue;
            }
            if rest.is_empty() {
                let ahead = announced
                    .unwrap_or(0)
                    .clamp(share.taken, AHEAD.max(share.taken));
                rest.reserve(usize::try_from(ahead).unwrap_or(0));
                rest.extend_from_slice(&first);
            }
            rest.extend_from_slice(&chunk);
        }
        Ok(Received {
            bytes: if rest.is_empty() {
                first
            } else {
                rest.freeze()
            },
            _share: share,
        })
    }

    async fn next(&mut self) -> Result<Option<Bytes>, Refusal> {
        loop {
            let frame = timeout(PATIENCE, self.0.frame())
                .await
                .map_err(|_| Refusal::BodyTimeout)?;
            match frame {
                None => return Ok(None),
                Some(Ok(frame)) => {
                    if let Ok(bytes) = frame.into_data() {
                        return Ok(Some(bytes));
                    }
                }
                Some(Err(_)) => return Err(Refusal::invalid("the request body cannot be read")),
            }
        }
    }
}

fn announced(headers: &HeaderMap) -> Option<u64> {
    headers
        .get(header::CONTENT_LENGTH)?
        .to_str()
        .ok()?
        .parse()
        .ok()
}

#[cfg(test)]
mod tests {
    use fastllm_engine::Refusal;

    use super::{BodyLimits, Share};

    #[test]
    fn all_bodies_together_are_bounded_and_memory_comes_back() {
        let limits = BodyLimits::new(1 << 20);
        let mut first = Share::of(&limits);
        first.grow(BodyLimits::ALL - 10).unwrap();
        let mut second = Share::of(&limits);
        assert_eq!(second.grow(11), Err(Refusal::Overloaded));
        second.grow(10).unwrap();
        drop(first);
        second.grow(BodyLimits::ALL - 10).unwrap();
        assert_eq!(second.grow(1), Err(Refusal::Overloaded));
    }
}
