//! A clock that stands still, so that a run can be repeated.

/// Stands in for the C library's: hyper asks for the date on its way.
///
/// # Safety
///
/// `now` points at a `timespec`, which is two numbers of 64 bits.
#[unsafe(no_mangle)]
unsafe extern "C" fn clock_gettime(_clock: i32, now: *mut [i64; 2]) -> i32 {
    // SAFETY: the caller's promise.
    unsafe { now.write([1_700_000_000, 0]) };
    0
}
