//! The memory for complete responses that are held until they have ended.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The factor of the memory of all held responses to that of one.
const ALL: u64 = 256;

/// Responses up to this size are held without a share of the memory.
const FREE: u64 = 16 << 10;

/// The bounds on held responses: on each, and on all together, which is 256 times as
/// much.
#[derive(Debug, Clone)]
pub(crate) struct ResponseBuffers {
    each: u64,
    left: Arc<AtomicU64>,
}

/// The memory of one held response. Dropping it releases the memory.
#[derive(Debug)]
pub(super) struct BufferShare {
    left: Arc<AtomicU64>,
    taken: u64,
}

impl ResponseBuffers {
    /// At most `each` bytes of a response; zero holds none.
    pub(crate) fn new(each: u64) -> Self {
        Self {
            each,
            left: Arc::new(AtomicU64::new(each.saturating_mul(ALL))),
        }
    }

    /// Whether a response of this length may be held.
    pub(super) fn fits(&self, length: u64) -> bool {
        length <= self.each
    }

    /// Whether more than the `held` bytes may be held. Takes the memory for them as
    /// soon as they are not few.
    pub(super) fn admits(&self, share: &mut Option<BufferShare>, held: usize) -> bool {
        let held = held as u64;
        if held < FREE.min(self.each) {
            return true;
        }
        let share = share.get_or_insert_with(|| BufferShare {
            left: Arc::clone(&self.left),
            taken: 0,
        });
        held < self.each && share.grow(held)
    }
}

impl BufferShare {
    fn grow(&mut self, held: u64) -> bool {
        let more = held.saturating_sub(self.taken);
        let taken = self
            .left
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
                left.checked_sub(more)
            });
        if taken.is_ok() {
            self.taken += more;
        }
        taken.is_ok()
    }
}

impl Drop for BufferShare {
    fn drop(&mut self) {
        self.left.fetch_add(self.taken, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::{FREE, ResponseBuffers};

    #[test]
    fn responses_are_held_within_the_bounds() {
        let none = ResponseBuffers::new(0);
        assert!(!none.fits(1) && !none.admits(&mut None, 0));
        let buffers = ResponseBuffers::new(100 << 10);
        assert!(buffers.fits(100 << 10) && !buffers.fits((100 << 10) + 1));
        let mut few = None;
        assert!(buffers.admits(&mut few, usize::try_from(FREE).unwrap() - 1));
        assert!(few.is_none());
        let mut all = Vec::new();
        let held = (0..400).filter(|_| {
            let mut share = None;
            let admits = buffers.admits(&mut share, 99 << 10);
            all.push(share);
            admits
        });
        assert_eq!(held.count(), (256 * 100) / 99);
        let mut one = None;
        assert!(!buffers.admits(&mut one, 99 << 10));
        drop(all);
        assert!(buffers.admits(&mut one, 98 << 10) && buffers.admits(&mut one, 99 << 10));
        assert!(!buffers.admits(&mut one, 100 << 10));
    }
}
