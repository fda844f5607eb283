use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use arc_swap::ArcSwapOption;
use fastllm_contract::Timestamp;

/// Parts of a whole unit, so that a bucket fills in much smaller steps than are
/// taken from it.
const PARTS: i64 = 1_000;

/// How long an empty bucket takes to fill, microseconds.
const MINUTE: i64 = 60_000_000;

/// The capacity of a bucket, which is also what it gains per minute.
///
/// Invariant: at least one part, and at most [`RefillRate::MAX_LIMIT`] whole
/// units, so that counts stay far from the ends of their type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RefillRate {
    /// In parts.
    capacity: i64,
}

/// Fractional bits of the gain per microsecond.
const PLACES: u32 = 40;

impl RefillRate {
    /// The highest limit per minute.
    pub(crate) const MAX_LIMIT: u64 = 1_000_000_000_000;

    /// A share, from 0 to 1, of a limit per minute.
    pub(crate) fn new(limit: u64, share: f64) -> Self {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_precision_loss,
            reason = "the product is below 10^15, and a part more or less is no matter"
        )]
        let capacity =
            (limit.min(Self::MAX_LIMIT) as f64 * PARTS as f64 * share.clamp(0.0, 1.0)) as i64;
        Self {
            capacity: capacity.max(1),
        }
    }

    /// The capacity in whole units.
    pub(crate) fn whole(self) -> u64 {
        whole(self.capacity)
    }

    /// Parts gained per microsecond with [`PLACES`] fractional bits, rounded up:
    /// about 1.8 * 10^19 for the highest limit.
    fn per_microsecond(self) -> u64 {
        let parts = u128::from(self.capacity.unsigned_abs()) << PLACES;
        let parts = parts.div_ceil(u128::from(MINUTE.unsigned_abs()));
        u64::try_from(parts).unwrap_or(u64::MAX)
    }

    /// Whole seconds until a bucket at this level is full.
    pub(crate) fn seconds_until_full(self, level: BucketLevel) -> u64 {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_precision_loss,
            clippy::cast_sign_loss,
            reason = "seconds, for people"
        )]
        let seconds = (self.capacity.saturating_sub(level.0).max(0) as f64 * 60.0
            / self.capacity as f64)
            .ceil() as u64;
        seconds
    }

    /// Microseconds until so many parts are gained.
    fn time(self, parts: i64) -> u64 {
        let time = u128::from(parts.max(0).unsigned_abs()) << PLACES;
        u64::try_from(time.div_ceil(u128::from(self.per_microsecond().max(1)))).unwrap_or(u64::MAX)
    }
}

/// A token bucket: full at first, refilled at an even rate, possibly in debt.
///
/// What was gained is a function of time, so that only one number changes when
/// something is taken. A change of the rate keeps the level, up to the new
/// capacity.
#[derive(Debug)]
pub(crate) struct Bucket {
    /// Parts taken since creation, less refunds.
    taken: AtomicI64,
    flow: ArcSwapOption<Flow>,
}

/// The content of a bucket in parts; negative in debt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BucketLevel(i64);

impl BucketLevel {
    /// In whole units; 0 in debt.
    pub(crate) fn whole(self) -> u64 {
        whole(self.0)
    }
}

/// The gain from a moment on.
#[derive(Debug)]
struct Flow {
    rate: RefillRate,
    since: Timestamp,
    per_microsecond: u64,
    /// Parts gained before `since`.
    before: i64,
}

impl Flow {
    fn new(rate: RefillRate, since: Timestamp, before: i64) -> Self {
        Self {
            rate,
            since,
            per_microsecond: rate.per_microsecond(),
            before,
        }
    }

    /// Parts gained until a time.
    fn until(&self, now: Timestamp) -> i64 {
        let elapsed = now.0.saturating_sub(self.since.0).max(0).unsigned_abs();
        let gained = (u128::from(elapsed) * u128::from(self.per_microsecond)) >> PLACES;
        self.before
            .saturating_add(i64::try_from(gained).unwrap_or(i64::MAX))
    }
}

impl Bucket {
    pub(crate) const fn new() -> Self {
        Self {
            taken: AtomicI64::new(0),
            flow: ArcSwapOption::const_empty(),
        }
    }

    /// Takes `count` units and returns what is left. A full bucket gives even more
    /// than its capacity, and is in debt then.
    ///
    /// # Errors
    /// Microseconds until the units would be available, if no other request comes.
    pub(crate) fn take(
        &self,
        count: u64,
        rate: RefillRate,
        now: Timestamp,
    ) -> Result<BucketLevel, u64> {
        let count = parts(count);
        let gained = self.gained(rate, now);
        let mut taken = self.taken.load(Ordering::Acquire);
        loop {
            let level = gained.saturating_sub(taken).min(rate.capacity);
            let enough = count.min(rate.capacity);
            if level < enough {
                return Err(rate.time(enough.saturating_sub(level)));
            }
            let then = gained.saturating_sub(level).saturating_add(count);
            match self.swap(taken, then) {
                Ok(()) => return Ok(BucketLevel(level.saturating_sub(count))),
                Err(other) => taken = other,
            }
        }
    }

    /// Microseconds until [`Bucket::take`] would succeed if no other request comes;
    /// 0 means now.
    pub(crate) fn wait(&self, count: u64, rate: RefillRate, now: Timestamp) -> u64 {
        let enough = parts(count).min(rate.capacity);
        rate.time(enough.saturating_sub(self.level(rate, now).0))
    }

    /// Returns units that were taken.
    pub(crate) fn refund(&self, count: u64) {
        self.taken.fetch_sub(parts(count), Ordering::AcqRel);
    }

    /// Takes units regardless of the level.
    pub(crate) fn debit(&self, count: u64) {
        let more = |taken: i64| Some(taken.saturating_add(parts(count)));
        let _always = self
            .taken
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, more);
    }

    /// The present level.
    pub(crate) fn level(&self, rate: RefillRate, now: Timestamp) -> BucketLevel {
        let gained = self.gained(rate, now);
        let taken = self.taken.load(Ordering::Acquire);
        BucketLevel(gained.saturating_sub(taken).min(rate.capacity))
    }

    fn swap(&self, taken: i64, then: i64) -> Result<(), i64> {
        self.taken
            .compare_exchange_weak(taken, then, Ordering::AcqRel, Ordering::Acquire)
            .map(|_| ())
    }

    /// Parts gained so far; from now on at this rate.
    fn gained(&self, rate: RefillRate, now: Timestamp) -> i64 {
        let flow = self.flow.load();
        if let Some(flow) = flow.as_ref().filter(|flow| flow.rate == rate) {
            return flow.until(now);
        }
        self.flow.rcu(|flow| match flow {
            Some(same) if same.rate == rate => Some(Arc::clone(same)),
            Some(other) => Some(Arc::new(self.changed_rate(other, rate, now))),
            None => Some(Arc::new(Flow::new(rate, now, rate.capacity))),
        });
        let flow = self.flow.load();
        flow.as_ref().map_or(rate.capacity, |flow| flow.until(now))
    }

    /// The gain after a change of rate. Overflow above the old capacity counts as
    /// taken, so that the level stays. The gain never decreases: another thread may
    /// be using it.
    fn changed_rate(&self, old: &Flow, rate: RefillRate, now: Timestamp) -> Flow {
        let gained = old.until(now);
        let lost = gained.saturating_sub(old.rate.capacity);
        self.taken.fetch_max(lost, Ordering::AcqRel);
        Flow::new(rate, now.max(old.since), gained)
    }
}

fn parts(count: u64) -> i64 {
    let count = i64::try_from(count.min(RefillRate::MAX_LIMIT)).unwrap_or(i64::MAX);
    count.saturating_mul(PARTS)
}

fn whole(parts: i64) -> u64 {
    u64::try_from(parts / PARTS).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use fastllm_contract::Timestamp;
    use proptest::prelude::*;

    use super::{Bucket, MINUTE, RefillRate};

    fn at(seconds: i64) -> Timestamp {
        Timestamp(1_767_225_600_000_000 + seconds * 1_000_000)
    }

    #[test]
    fn full_bucket_admits_a_burst_then_the_refill_rate() {
        let (bucket, rate) = (Bucket::new(), RefillRate::new(60, 1.0));
        for _ in 0..60 {
            assert!(bucket.take(1, rate, at(0)).is_ok());
        }
        assert_eq!(bucket.take(1, rate, at(0)), Err(1_000_000));
        assert_eq!(bucket.wait(2, rate, at(0)), 2_000_000);
        assert!(bucket.take(1, rate, at(1)).is_ok());
        assert_eq!(bucket.level(rate, at(1)).whole(), 0);
        assert_eq!(bucket.level(rate, at(3600)).whole(), 60);
        assert_eq!(rate.seconds_until_full(bucket.level(rate, at(3600))), 0);
    }

    #[test]
    fn refunds_stop_at_capacity_and_debits_go_below_zero() {
        let (bucket, rate) = (Bucket::new(), RefillRate::new(100, 1.0));
        bucket.take(10, rate, at(0)).unwrap();
        bucket.refund(50);
        assert_eq!(bucket.level(rate, at(0)).whole(), 100);
        bucket.take(100, rate, at(0)).unwrap();
        bucket.debit(100);
        assert_eq!(bucket.level(rate, at(0)).whole(), 0);
        assert_eq!(bucket.wait(1, rate, at(0)), 60_600_000);
        assert!(bucket.take(1, rate, at(61)).is_ok());
    }

    #[test]
    fn only_a_full_bucket_admits_more_than_its_capacity() {
        let (bucket, rate) = (Bucket::new(), RefillRate::new(100, 0.1));
        assert_eq!(rate.whole(), 10);
        assert!(bucket.take(25, rate, at(0)).is_ok());
        assert_eq!(bucket.take(25, rate, at(0)), Err(150_000_000));
        // Debt is paid off at the refill rate; waits are rounded up.
        assert_eq!(bucket.take(25, rate, at(149)), Err(1_002_000));
        assert!(bucket.take(25, rate, at(150)).is_ok());
    }

    #[test]
    fn changed_rate_keeps_the_level() {
        let bucket = Bucket::new();
        let (small, large) = (RefillRate::new(100, 0.1), RefillRate::new(100, 1.0));
        bucket.take(4, small, at(0)).unwrap();
        assert_eq!(bucket.level(large, at(0)).whole(), 6);
        assert_eq!(bucket.level(large, at(6)).whole(), 16);
        assert_eq!(bucket.level(small, at(6)).whole(), 10);
        // However long it was full before.
        let bucket = Bucket::new();
        bucket.take(10, small, at(0)).unwrap();
        assert_eq!(bucket.level(small, at(3600)).whole(), 10);
        assert_eq!(bucket.level(large, at(3600)).whole(), 10);
    }

    /// Threads that take while the rate changes: no more than was there, and
    /// an idle subject is not in debt.
    #[test]
    fn concurrent_rate_change_makes_no_debt() {
        for round in 0..200 {
            let bucket = Bucket::new();
            let rates = [RefillRate::new(60, 1.0), RefillRate::new(60, 0.999)];
            assert!(bucket.take(1, rates[0], at(0)).is_ok());
            let later = at(86_400 + round);
            let taken: u64 = std::thread::scope(|scope| {
                let threads = [0, 1].map(|thread| {
                    let bucket = &bucket;
                    scope.spawn(move || {
                        let rates = rates.iter().cycle().skip(thread).take(20);
                        rates
                            .filter(|rate| bucket.take(1, **rate, later).is_ok())
                            .count() as u64
                    })
                });
                threads
                    .into_iter()
                    .map(|thread| thread.join().unwrap())
                    .sum()
            });
            assert_eq!(taken, 40);
            let left = bucket.level(rates[0], later).whole();
            assert!((19..=20).contains(&left), "{left}");
        }
    }

    proptest! {
        /// Whatever the order: at most the capacity and what flows in.
        #[test]
        fn total_is_bounded_by_capacity_and_refill(
            limit in 1_u64..10_000,
            asks in prop::collection::vec((0_i64..2_000_000, 1_u64..200), 1..200),
        ) {
            let (bucket, rate) = (Bucket::new(), RefillRate::new(limit, 1.0));
            let (mut now, mut given) = (at(0), 0_u64);
            for (pause, count) in asks {
                now.0 += pause;
                if count <= limit && bucket.take(count, rate, now).is_ok() {
                    given += count;
                }
                let passed = u64::try_from(now.0 - at(0).0).unwrap();
                let most = limit + limit * passed / u64::try_from(MINUTE).unwrap() + 1;
                prop_assert!(given <= most, "{given} of {most}");
            }
        }

        /// A request after the returned wait is admitted.
        #[test]
        fn request_is_admitted_after_the_returned_wait(
            limit in 1_u64..1_000_000, share in 0.001_f64..1.0,
            taken in prop::collection::vec(1_u64..1_000, 0..50), debt in 0_u64..100_000, count in 1_u64..10_000,
        ) {
            let (bucket, rate) = (Bucket::new(), RefillRate::new(limit, share));
            for count in taken {
                let _refused = bucket.take(count, rate, at(0));
            }
            bucket.debit(debt);
            let wait = i64::try_from(bucket.wait(count, rate, at(0))).unwrap();
            prop_assert!(bucket.take(count, rate, Timestamp(at(0).0 + wait)).is_ok());
        }
    }
}
