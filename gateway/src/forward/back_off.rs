use std::time::Duration;

use http::StatusCode;

use crate::report::jittered;

/// How long to wait before retry number `retry` (from 0): 25, 50, then 100 ms,
/// twice that where the upstream said 429, and up to half of it less at random.
pub(crate) fn before_retry(retry: u32, status: Option<StatusCode>) -> Duration {
    let full = Duration::from_millis(25 << retry.min(2));
    let full = if status == Some(StatusCode::TOO_MANY_REQUESTS) {
        full * 2
    } else {
        full
    };
    jittered(full + full / 2)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use http::StatusCode;

    use super::before_retry;

    #[test]
    fn waits_grow_to_a_tenth_of_a_second_and_double_for_429() {
        for (retry, least) in [(0, 25), (1, 50), (2, 100), (9, 100)] {
            let least = Duration::from_millis(least);
            for _ in 0..50 {
                let wait = before_retry(retry, Some(StatusCode::BAD_GATEWAY));
                assert!(wait >= least * 3 / 4 && wait <= least * 3 / 2, "{wait:?}");
                let wait = before_retry(retry, Some(StatusCode::TOO_MANY_REQUESTS));
                assert!(wait >= least * 3 / 2 && wait <= least * 3, "{wait:?}");
            }
        }
    }
}
