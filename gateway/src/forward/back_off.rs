use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fastllm_contract::Timestamp;
use fastllm_process::back_off::Jitter;

use crate::runtime::clock;

/// The back-off before retry number `retry` (from 0): 25, 50, then 100 ms,
/// doubled if the upstream limits its rate or is overloaded, and randomly
/// shortened by up to half.
pub(crate) fn before_retry(retry: u32, is_capacity: bool) -> Duration {
    let full = Duration::from_millis(25 << retry.min(2));
    let full = if is_capacity { full * 2 } else { full };
    Jitter::HALF.apply(full + full / 2)
}

/// The back-off that an upstream requests in a response with these header fields.
pub(crate) fn requested<'h>(header: impl Fn(&'static str) -> Option<&'h [u8]>) -> Option<Duration> {
    retry_after(header, clock::timestamp())
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

    use super::{before_retry, requested, retry_after};

    #[test]
    fn the_back_off_that_an_upstream_requests_is_parsed() {
        let requested = |name: &'static str, value: &'static str| {
            requested(|field| (field == name).then_some(value.as_bytes()))
        };
        let seconds = |seconds| Some(Duration::from_secs_f64(seconds));
        assert_eq!(requested("retry-after", "7"), seconds(7.0));
        assert_eq!(requested("retry-after", " 0.5"), seconds(0.5));
        assert_eq!(requested("retry-after-ms", "250"), seconds(0.25));
        for nonsense in ["", "-1", "soon", "inf", "NaN", "Wed, 21 Oct"] {
            assert_eq!(requested("retry-after", nonsense), None, "{nonsense}");
        }
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
    fn back_off_grows_to_a_tenth_of_a_second_and_doubles_for_overload() {
        for (retry, least) in [(0, 25), (1, 50), (2, 100), (9, 100)] {
            let least = Duration::from_millis(least);
            for _ in 0..50 {
                let wait = before_retry(retry, false);
                assert!(wait >= least * 3 / 4 && wait <= least * 3 / 2, "{wait:?}");
                let wait = before_retry(retry, true);
                assert!(wait >= least * 3 / 2 && wait <= least * 3, "{wait:?}");
            }
        }
    }
}
