//! A clock that always returns the same time, so that runs are reproducible.

/// Replaces the function of the C library: hyper reads the date.
///
/// # Safety
///
/// `now` points at a `timespec`, which is two numbers of 64 bits.
#[unsafe(no_mangle)]
unsafe extern "C" fn clock_gettime(_clock: i32, now: *mut [i64; 2]) -> i32 {
    // SAFETY: guaranteed by the caller.
    unsafe { now.write([1_700_000_000, 0]) };
    0
}
