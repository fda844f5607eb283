use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::{CacheKey, LARGEST};

/// Assumed size of a response of unknown length, in bytes.
const USUAL: usize = 4 << 10;

/// A response while it is read. It is dropped, with its memory, as soon as it
/// is too large.
#[derive(Debug)]
pub struct ResponseCapture {
    pub(super) key: CacheKey,
    pub(super) ttl: Duration,
    pub(super) body: Vec<u8>,
    share: MemoryReservation,
}

/// Reserved memory, of the total for all captures.
#[derive(Debug)]
struct MemoryReservation {
    left: Arc<AtomicU64>,
    taken: u64,
}

impl MemoryReservation {
    fn grow(&mut self, bytes: usize) -> Option<()> {
        let bytes = bytes as u64;
        let take = |left: u64| left.checked_sub(bytes);
        self.left
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, take)
            .ok()?;
        self.taken += bytes;
        Some(())
    }
}

impl Drop for MemoryReservation {
    fn drop(&mut self) {
        self.left.fetch_add(self.taken, Ordering::Relaxed);
    }
}

impl ResponseCapture {
    /// Reserves memory of what is `left` for all captures; `None` if too little
    /// is left or the announced length is too large.
    pub(super) fn begin(
        key: CacheKey,
        ttl: Duration,
        length: Option<u64>,
        left: &Arc<AtomicU64>,
    ) -> Option<Self> {
        let length = length.map_or(Some(USUAL), |length| usize::try_from(length).ok())?;
        let mut capture = Self {
            key,
            ttl,
            body: Vec::new(),
            share: MemoryReservation {
                left: Arc::clone(left),
                taken: 0,
            },
        };
        capture.make_room(length)?;
        Some(capture)
    }

    /// Appends received bytes. `None` if the response cannot be cached: drop
    /// the capture.
    pub fn push(&mut self, part: &[u8]) -> Option<()> {
        self.make_room(part.len())?;
        self.body.extend_from_slice(part);
        Some(())
    }

    /// Room for more bytes, reserved before it is allocated.
    fn make_room(&mut self, more: usize) -> Option<()> {
        let needed = self.body.len().checked_add(more)?;
        if needed > LARGEST {
            return None;
        }
        let before = self.body.capacity();
        if needed > before {
            let room = needed.max(before.saturating_mul(2)).min(LARGEST);
            self.share.grow(room - before)?;
            self.body.reserve_exact(room - self.body.len());
        }
        Some(())
    }

    /// The bytes received so far.
    pub fn body(&self) -> &[u8] {
        &self.body
    }
}
