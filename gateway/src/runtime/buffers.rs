//! Buffers that all connections of a thread share. A connection keeps bytes of
//! its own only while a message is incomplete, so that an idle one costs little.

use std::cell::Cell;

/// Bytes that one read can bring at most.
pub(crate) const READ: usize = 64 << 10;

/// A buffer that has grown beyond this is not kept.
const KEPT: usize = 128 << 10;

/// Buffers for writing that a thread keeps at most.
const SPARE: usize = 16;

thread_local! {
    static READING: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
    static SPARES: Cell<Vec<Vec<u8>>> = const { Cell::new(Vec::new()) };
}

/// Lends the thread's buffer of [`READ`] bytes; what is in it means nothing.
pub(crate) fn with_read_buffer<R>(work: impl FnOnce(&mut [u8]) -> R) -> R {
    let mut buffer = READING.take();
    buffer.resize(READ, 0);
    let result = work(&mut buffer);
    READING.set(buffer);
    result
}

/// An empty buffer to write into; best given back.
pub(crate) fn take() -> Vec<u8> {
    let mut spares = SPARES.take();
    let buffer = spares.pop().unwrap_or_default();
    SPARES.set(spares);
    buffer
}

/// Keeps a buffer for whoever writes next.
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
