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
    each: u64,
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

    pub(super) fn share(&self) -> BufferShare {
        BufferShare {
            each: self.each,
            left: Arc::clone(&self.left),
            taken: 0,
        }
    }
}

impl BufferShare {
    /// Whether a response of this length may be held.
    pub(super) fn fits(&self, length: u64) -> bool {
        length <= self.each
    }

    /// Whether more than the `held` bytes may be held.
    pub(super) fn grow(&mut self, held: usize) -> bool {
        let held = held as u64;
        if held >= self.each {
            return false;
        }
        let wanted = if held < FREE { 0 } else { held };
        let more = wanted.saturating_sub(self.taken);
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
        let none = ResponseBuffers::new(0).share();
        assert!(!none.fits(1));
        assert!(!ResponseBuffers::new(0).share().grow(0));
        let buffers = ResponseBuffers::new(100 << 10);
        let mut one = buffers.share();
        assert!(one.fits(100 << 10) && !one.fits((100 << 10) + 1));
        assert!(one.grow(0) && one.grow(99 << 10));
        assert!(!one.grow(100 << 10));
        let all: Vec<_> = (0..400)
            .map(|_| {
                let mut share = buffers.share();
                let held = share.grow(99 << 10);
                (share, held)
            })
            .collect();
        let held = all.iter().filter(|(_, held)| *held).count();
        // 256 times 100 KiB, of which the first has 99.
        assert_eq!(held, (256 * 100) / 99 - 1);
        let mut small = buffers.share();
        assert!(small.grow(usize::try_from(FREE).unwrap() - 1));
        drop((all, one));
        assert!(buffers.share().grow(99 << 10));
    }
}
