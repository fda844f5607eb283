//! Buffers that all connections of a thread share. A connection holds bytes only
//! while a message is incomplete, so that an idle one takes little memory.

use std::cell::Cell;

/// The most bytes of one read.
pub(crate) const READ: usize = 64 << 10;

/// Larger buffers are not kept, in bytes.
const KEPT: usize = 128 << 10;

/// The most write buffers that a thread keeps.
const SPARE: usize = 16;

thread_local! {
    static READING: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
    static SPARES: Cell<Vec<Vec<u8>>> = const { Cell::new(Vec::new()) };
}

/// Runs `work` with the thread's read buffer of [`READ`] bytes, whose content is
/// undefined.
pub(crate) fn with_read_buffer<R>(work: impl FnOnce(&mut [u8]) -> R) -> R {
    let mut buffer = READING.take();
    buffer.resize(READ, 0);
    let result = work(&mut buffer);
    READING.set(buffer);
    result
}

/// An empty write buffer. It should be recycled.
pub(crate) fn take() -> Vec<u8> {
    let mut spares = SPARES.take();
    let buffer = spares.pop().unwrap_or_default();
    SPARES.set(spares);
    buffer
}

/// Keeps a buffer for reuse.
pub(crate) fn recycle(mut buffer: Vec<u8>) {
    if buffer.capacity() == 0 || buffer.capacity() > KEPT {
        return;
    }
    buffer.clear();
    let mut spares = SPARES.take();
    if spares.len() < SPARE {
        spares.push(buffer);
    }
    SPARES.set(spares);
}

#[cfg(test)]
mod tests {
    use super::{KEPT, READ, recycle, take, with_read_buffer};

    #[test]
    fn a_buffer_that_is_lent_twice_is_two() {
        with_read_buffer(|outer| {
            outer[0] = 1;
            with_read_buffer(|inner| {
                inner[0] = 2;
                assert_eq!(inner.len(), READ);
            });
            assert_eq!(outer[0], 1);
        });
    }

    #[test]
    fn small_buffers_come_back_empty() {
        let mut buffer = take();
        buffer.extend_from_slice(b"secret");
        let room = buffer.capacity();
        recycle(buffer);
        let again = take();
        assert!(again.is_empty() && again.capacity() == room);
        recycle(Vec::with_capacity(KEPT + 1));
        assert_eq!(take().capacity(), 0);
    }
}
