use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fastllm_contract::Timestamp;
use fastllm_process::back_off::Jitter;
use http::StatusCode;

use crate::runtime::clock;

/// The back-off before retry number `retry` (from 0): 25, 50, then 100 ms,
/// doubled if the upstream responded 429, and randomly shortened by up to half.
pub(crate) fn before_retry(retry: u32, status: Option<StatusCode>) -> Duration {
    let full = Duration::from_millis(25 << retry.min(2));
    let full = if status == Some(StatusCode::TOO_MANY_REQUESTS) {
        full * 2
    } else {
        full
    };
    Jitter::HALF.apply(full + full / 2)
}

/// The back-off that an overloaded upstream requests.
pub(crate) fn asked_for<'h>(
    status: StatusCode,
    header: impl Fn(&'static str) -> Option<&'h [u8]>,
) -> Option<Duration> {
    matches!(status.as_u16(), 429 | 503)
        .then(|| retry_after(header, clock::timestamp()))
        .flatten()
}

/// The back-off in a response: milliseconds in a vendor-specific field, or
/// `retry-after` in seconds or as a date by the upstream's clock.
fn retry_after<'h>(
    header: impl Fn(&'static str) -> Option<&'h [u8]>,
    now: Timestamp,
) -> Option<Duration> {
    let text = |name| Some(str::from_utf8(header(name)?).ok()?.trim());
    let number = |text: &str| text.parse::<f64>().ok();
    let exact = text("retry-after-ms").and_then(number);
    if let Some(milliseconds) = exact {
        return Duration::try_from_secs_f64(milliseconds / 1000.0).ok();
    }
    let value = text("retry-after")?;
    if let Some(seconds) = number(value) {
        return Duration::try_from_secs_f64(seconds).ok();
    }
    let at = |text| httpdate::parse_http_date(text).ok();
    let until = at(value)?;
    let now = text("date").and_then(at).or_else(|| system_time(now))?;
    Some(until.duration_since(now).unwrap_or_default())
}

fn system_time(at: Timestamp) -> Option<SystemTime> {
    let since = Duration::from_micros(u64::try_from(at.0).ok()?);
    UNIX_EPOCH.checked_add(since)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use fastllm_contract::Timestamp;
    use http::StatusCode;

    use super::{asked_for, before_retry, retry_after};

    #[test]
    fn the_back_off_of_an_overloaded_upstream_is_parsed() {
        let retry_after = |status: u16, name: &'static str, value: &'static str| {
            let header = |field| (field == name).then_some(value.as_bytes());
            asked_for(StatusCode::from_u16(status).unwrap(), header)
        };
        let seconds = |seconds| Some(Duration::from_secs_f64(seconds));
        assert_eq!(retry_after(429, "retry-after", "7"), seconds(7.0));
        assert_eq!(retry_after(503, "retry-after", " 0.5"), seconds(0.5));
        assert_eq!(retry_after(429, "retry-after-ms", "250"), seconds(0.25));
        for nonsense in ["", "-1", "soon", "inf", "NaN", "Wed, 21 Oct"] {
            assert_eq!(
                retry_after(429, "retry-after", nonsense),
                None,
                "{nonsense}"
            );
        }
        assert_eq!(retry_after(500, "retry-after", "7"), None);
        assert_eq!(retry_after(200, "retry-after", "7"), None);
    }

    #[test]
    fn a_date_is_relative_to_the_upstreams_clock() {
        // 07:28:00 of that day.
        let now = Timestamp(1_445_412_480_000_000);
        let retry_after = |headers: &[(&str, &'static str)]| {
            let value = |name: &str| {
                let header = headers.iter().find(|(known, _)| *known == name);
                header.map(|(_, value)| value.as_bytes())
            };
            retry_after(value, now)
        };
        let until = ("retry-after", "Wed, 21 Oct 2015 07:28:30 GMT");
        let seconds = |seconds| Some(Duration::from_secs(seconds));
        assert_eq!(retry_after(&[until]), seconds(30));
        let by_its_clock = ("date", "Wed, 21 Oct 2015 07:28:20 GMT");
        assert_eq!(retry_after(&[until, by_its_clock]), seconds(10));
        let late = ("date", "Wed, 21 Oct 2015 08:00:00 GMT");
        assert_eq!(retry_after(&[until, late]), seconds(0));
        let exact = ("retry-after-ms", "1500");
        assert_eq!(
            retry_after(&[until, exact]),
            Some(Duration::from_millis(1500))
        );
    }

    #[test]
    fn back_off_grows_to_a_tenth_of_a_second_and_doubles_for_429() {
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
