//! Slows down password guessing without locking anybody out.
//!
//! Failed logins are counted for a name at an address, for an address, and for a name at
//! all addresses from which it has never logged in. After a number of failures, each
//! further one doubles the time until the next attempt, up to a minute. For an address
//! from which a name has logged in before, only its own failures for that name count, so
//! that strangers cannot keep the owner out. The counts are in the database, which all
//! control planes share.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::crypto::digest;
use crate::db::logins::{self, FailureRow};
use crate::db::{Db, DbError};

/// Failures without a delay: of a name at an address.
const FREE_AT_ADDRESS: u32 = 5;
/// Failures without a delay: of an address, which may be that of many people.
const FREE_OF_ADDRESS: u32 = 20;
/// Failures without a delay: of a name at addresses that are not known.
const FREE_OF_NAME: u32 = 50;
/// The longest delay.
const MAX_WAIT: Duration = Duration::from_mins(1);
/// The maximum number of delays that are kept in memory.
const MAX_DELAYS: usize = 10_000;

/// Why a login may not be attempted.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AttemptError {
    /// Too many failed logins; the next attempt is possible after this time.
    #[error("too many failed logins")]
    Throttled(Duration),
    /// The database failed.
    #[error(transparent)]
    Database(#[from] DbError),
}

/// An attempt to log in. It counts as failed until [`Attempt::succeeded`].
pub(crate) struct Attempt {
    name: [u8; 32],
    address: [u8; 32],
    /// The scopes that it counts in, with their number of failures without a delay.
    scopes: Vec<Scope>,
}

struct Scope {
    key: [u8; 32],
    free: u32,
}

/// The delays that this control plane has found in the database, so that attempts before
/// their end cost no query.
#[derive(Default)]
pub(crate) struct LoginThrottle(Mutex<HashMap<[u8; 32], Instant>>);

impl LoginThrottle {
    /// Whether an attempt may be made as far as this control plane remembers.
    pub(crate) fn check(
        &self,
        name: &str,
        address: IpAddr,
        now: Instant,
    ) -> Result<(), AttemptError> {
        let end = self.0.lock().get(&at_address(name, address)).copied();
        match end.map(|end| end.saturating_duration_since(now)) {
            Some(wait) if !wait.is_zero() => Err(AttemptError::Throttled(wait)),
            _ => Ok(()),
        }
    }

    /// Begins an attempt, which counts as failed at first, so that concurrent attempts are
    /// throttled like successive ones.
    pub(crate) async fn begin(
        &self,
        db: &Db,
        name: &str,
        address: IpAddr,
        now: Instant,
    ) -> Result<Attempt, AttemptError> {
        self.check(name, address, now)?;
        let mut transaction = db.begin().await?;
        let mut attempt = Attempt::new(name, address);
        if !logins::is_known(&mut transaction, &attempt.name, &attempt.address).await? {
            attempt.scopes.extend(unknown_scopes(name, address));
        }
        let keys = attempt.keys();
        let failures = logins::lock_failures(&mut transaction, &keys).await?;
        if let Some(wait) = attempt.wait(&failures) {
            self.remember(at_address(name, address), now + wait, now);
            return Err(AttemptError::Throttled(wait));
        }
        logins::count_failure(&mut transaction, &keys).await?;
        transaction.commit().await.map_err(DbError::from)?;
        Ok(attempt)
    }

    fn remember(&self, key: [u8; 32], end: Instant, now: Instant) {
        let mut delays = self.0.lock();
        if delays.len() >= MAX_DELAYS {
            delays.retain(|_, end| *end > now);
        }
        // The database has the others.
        if delays.len() < MAX_DELAYS {
            delays.insert(key, end);
        }
    }
}

/// A time in whole seconds for `Retry-After`: an attempt before the full time would be
/// rejected again.
pub(crate) fn whole_seconds(wait: Duration) -> u64 {
    wait.as_secs() + u64::from(wait.subsec_nanos() > 0)
}

impl Attempt {
    fn new(name: &str, address: IpAddr) -> Self {
        Self {
            name: scope("name", name, ""),
            address: scope("address", "", &network(address)),
            scopes: vec![Scope {
                key: at_address(name, address),
                free: FREE_AT_ADDRESS,
            }],
        }
    }

    fn keys(&self) -> Vec<Vec<u8>> {
        self.scopes.iter().map(|scope| scope.key.to_vec()).collect()
    }

    /// The time until the next attempt, if that is later.
    fn wait(&self, failures: &[FailureRow]) -> Option<Duration> {
        let waits = self.scopes.iter().filter_map(|scope| {
            let found = failures.iter().find(|row| row.key == scope.key)?;
            let since = Duration::try_from_secs_f64(found.seconds).unwrap_or_default();
            let delay = delay(found.count.unsigned_abs(), scope.free);
            Some(delay.saturating_sub(since))
        });
        waits.max().filter(|wait| !wait.is_zero())
    }

    /// Records that the password was right: the failures of the name at the address are
    /// forgotten, and the address is known from now on.
    pub(crate) async fn succeeded(
        &self,
        connection: &mut sqlx::PgConnection,
    ) -> Result<(), DbError> {
        let own = self.scopes.first().map_or(&[][..], |scope| &scope.key);
        logins::forget_failure(connection, &self.keys(), own).await?;
        logins::remember(connection, &self.name, &self.address).await
    }
}

/// The scopes that count for an address from which the name has never logged in.
fn unknown_scopes(name: &str, address: IpAddr) -> [Scope; 2] {
    [
        Scope {
            key: scope("address", "", &network(address)),
            free: FREE_OF_ADDRESS,
        },
        Scope {
            key: scope("name", name, ""),
            free: FREE_OF_NAME,
        },
    ]
}

fn at_address(name: &str, address: IpAddr) -> [u8; 32] {
    scope("name and address", name, &network(address))
}

/// The lengths keep different pairs apart.
fn scope(kind: &str, name: &str, address: &str) -> [u8; 32] {
    digest(format!("{kind}:{}:{name}:{address}", name.len()).as_bytes())
}

/// The address as a client has it: of IPv6 the network of 64 bits, since one client can
/// use all of its addresses.
fn network(address: IpAddr) -> String {
    match address.to_canonical() {
        IpAddr::V4(address) => address.to_string(),
        IpAddr::V6(address) => {
            let bits = address.to_bits() >> 64 << 64;
            Ipv6Addr::from_bits(bits).to_string()
        }
    }
}

fn delay(failures: u32, free: u32) -> Duration {
    match failures.checked_sub(free) {
        None => Duration::ZERO,
        Some(further) => Duration::from_secs(2 << further.min(5)).min(MAX_WAIT),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{
        Attempt, AttemptError, FREE_AT_ADDRESS, LoginThrottle, MAX_DELAYS, at_address, delay,
        network, unknown_scopes, whole_seconds,
    };
    use crate::clock;
    use crate::db::logins::FailureRow;

    #[test]
    fn announced_times_are_rounded_up() {
        for (millis, expected) in [(1, 1), (1000, 1), (1001, 2), (59_999, 60)] {
            assert_eq!(whole_seconds(Duration::from_millis(millis)), expected);
        }
    }

    #[test]
    fn delays_grow_up_to_a_minute() {
        let seconds: Vec<_> = (3..13).map(|n| delay(n, 5).as_secs()).collect();
        assert_eq!(seconds, [0, 0, 2, 4, 8, 16, 32, 60, 60, 60]);
        assert_eq!(delay(u32::MAX, 5), Duration::from_mins(1));
    }

    #[test]
    fn clients_are_distinguished_by_their_network() {
        for (address, expected) in [
            ("192.0.2.1", "192.0.2.1"),
            ("::ffff:192.0.2.1", "192.0.2.1"),
            ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::"),
        ] {
            assert_eq!(network(address.parse().unwrap()), expected);
        }
        let [one, other] = ["192.0.2.1", "192.0.2.2"].map(|text| text.parse().unwrap());
        assert_ne!(at_address("a", one), at_address("a", other));
        assert_ne!(at_address("a", one), at_address("b", one));
    }

    #[test]
    fn the_longest_delay_of_all_scopes_counts() {
        let address = "192.0.2.1".parse().unwrap();
        let mut attempt = Attempt::new("root", address);
        let row = |key: [u8; 32], count, seconds| FailureRow {
            key: key.to_vec(),
            count,
            seconds,
        };
        let [of_address, of_name] = unknown_scopes("root", address).map(|scope| scope.key);
        let rows = [
            row(at_address("root", address), 5, 1.0),
            row(of_address, 1000, 0.0),
            row(of_name, 51, 0.0),
        ];
        // A known address: only its own failures count.
        assert_eq!(attempt.wait(&rows), Some(Duration::from_secs(1)));
        let later = [row(at_address("root", address), 5, 2.5)];
        assert_eq!(attempt.wait(&later), None);
        attempt.scopes.extend(unknown_scopes("root", address));
        assert_eq!(attempt.wait(&rows), Some(Duration::from_mins(1)));
        assert_eq!(attempt.wait(&rows[2..]), Some(Duration::from_secs(4)));
        assert_eq!(attempt.wait(&[]), None);
        assert_eq!(attempt.scopes[0].free, FREE_AT_ADDRESS);
    }

    #[test]
    fn delays_in_memory_are_bounded_and_end() {
        let throttle = LoginThrottle::default();
        let now = clock::monotonic();
        let address = "192.0.2.1".parse().unwrap();
        let wait = Duration::from_secs(2);
        throttle.remember(at_address("root", address), now + wait, now);
        let checked = |now| throttle.check("root", address, now);
        assert!(matches!(checked(now), Err(AttemptError::Throttled(found)) if found == wait));
        assert!(checked(now + wait).is_ok());
        for number in 0..MAX_DELAYS + 5 {
            let key = at_address(&number.to_string(), address);
            throttle.remember(key, now + wait, now);
        }
        assert_eq!(throttle.0.lock().len(), MAX_DELAYS);
        let later = now + wait;
        throttle.remember(at_address("new", address), later + wait, later);
        assert_eq!(throttle.0.lock().len(), 1);
    }
}
