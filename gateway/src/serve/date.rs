use std::cell::RefCell;
use std::time::{Duration, UNIX_EPOCH};

use httpdate::fmt_http_date;

use crate::runtime::clock;

thread_local! {
    static TODAY: RefCell<(u64, String)> = const { RefCell::new((u64::MAX, String::new())) };
}

/// Passes the value of the `date` header field to a function. It is formatted
/// once a second.
pub(super) fn with<R>(work: impl FnOnce(&[u8]) -> R) -> R {
    let now = u64::try_from(clock::timestamp().0).unwrap_or(0) / 1_000_000;
    TODAY.with_borrow_mut(|(second, text)| {
        if *second != now {
            *second = now;
            *text = fmt_http_date(UNIX_EPOCH + Duration::from_secs(now));
        }
        work(text.as_bytes())
    })
}

#[cfg(test)]
mod tests {
    use httpdate::parse_http_date;

    #[test]
    fn the_date_is_current() {
        let (first, second) = (
            super::with(<[u8]>::to_vec),
            super::with(|text| String::from_utf8(text.to_vec()).unwrap()),
        );
        assert_eq!(first.len(), second.len());
        let now = crate::runtime::clock::timestamp().0 / 1_000_000;
        let read = parse_http_date(&second)
            .unwrap()
            .duration_since(std::time::UNIX_EPOCH)
            .unwrap();
        let read = i64::try_from(read.as_secs()).unwrap();
        assert!((now - 2..=now).contains(&read), "{second}");
    }
}
