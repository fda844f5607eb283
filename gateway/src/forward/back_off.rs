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

/// How long an upstream that is overloaded asks to be left alone: in seconds,
/// or in milliseconds in a header that some vendors add. A date says nothing.
pub(crate) fn asked_for<'h>(
    status: StatusCode,
    header: impl Fn(&'static str) -> Option<&'h [u8]>,
) -> Option<Duration> {
    if !matches!(status.as_u16(), 429 | 503) {
        return None;
    }
    let number = |value: &[u8]| str::from_utf8(value).ok()?.trim().parse::<f64>().ok();
    let exact = header("retry-after-ms").and_then(number);
    let seconds = exact
        .map(|milliseconds| milliseconds / 1000.0)
        .or_else(|| header("retry-after").and_then(number))?;
    Duration::try_from_secs_f64(seconds).ok()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use http::StatusCode;

    use super::{asked_for, before_retry};

    #[test]
    fn what_an_overloaded_upstream_asks_for_is_read() {
        let asked = |status: u16, name: &'static str, value: &'static str| {
            let header = |asked| (asked == name).then_some(value.as_bytes());
            asked_for(StatusCode::from_u16(status).unwrap(), header)
        };
        let seconds = |seconds| Some(Duration::from_secs_f64(seconds));
        assert_eq!(asked(429, "retry-after", "7"), seconds(7.0));
        assert_eq!(asked(503, "retry-after", " 0.5"), seconds(0.5));
        assert_eq!(asked(429, "retry-after-ms", "250"), seconds(0.25));
        for nonsense in [
            "",
            "-1",
            "soon",
            "inf",
            "NaN",
            "Wed, 21 Oct 2015 07:28:00 GMT",
        ] {
            assert_eq!(asked(429, "retry-after", nonsense), None, "{nonsense}");
        }
        assert_eq!(asked(500, "retry-after", "7"), None);
        assert_eq!(asked(200, "retry-after", "7"), None);
    }

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
