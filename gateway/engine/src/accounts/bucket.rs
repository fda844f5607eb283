use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use arc_swap::ArcSwapOption;
use fastllm_contract::Timestamp;

/// What is counted in: a bucket fills up in steps that are much smaller than
/// what is taken from it.
const PARTS: i64 = 1_000;

/// How long an empty bucket takes to fill, microseconds.
const MINUTE: i64 = 60_000_000;

/// How much a bucket holds, which is also what flows into it in a minute.
///
/// Invariant: at least one part, and at most [`RefillRate::MOST`] whole ones, so that
/// what a bucket counts stays far from the ends of its type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RefillRate {
    /// In parts.
    capacity: i64,
}

/// Binary places of what flows in a microsecond.
const PLACES: u32 = 40;

impl RefillRate {
    /// The highest limit, a minute.
    pub(super) const MOST: u64 = 1_000_000_000_000;

    /// A share, from 0 to 1, of a limit a minute.
    pub(super) fn new(limit: u64, share: f64) -> Self {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_precision_loss,
            reason = "the product is below 10^15, and a part more or less is no matter"
        )]
        let capacity = (limit.min(Self::MOST) as f64 * PARTS as f64 * share.clamp(0.0, 1.0)) as i64;
        Self {
            capacity: capacity.max(1),
        }
    }

    /// Whole ones that a full bucket has.
    pub(super) fn whole(self) -> u64 {
        whole(self.capacity)
    }

    /// Parts that flow in a microsecond, with [`PLACES`] binary places, rounded
    /// up: some 1.8 * 10^19 for the highest limit.
    fn a_microsecond(self) -> u64 {
        let parts = u128::from(self.capacity.unsigned_abs()) << PLACES;
        let parts = parts.div_ceil(u128::from(MINUTE.unsigned_abs()));
        u64::try_from(parts).unwrap_or(u64::MAX)
    }

    /// How long a bucket at this level takes to fill, whole seconds.
    pub(super) fn until_full(self, level: BucketLevel) -> u64 {
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

    /// How long so many parts take to come.
    fn time(self, parts: i64) -> u64 {
        let time = u128::from(parts.max(0).unsigned_abs()) << PLACES;
        u64::try_from(time.div_ceil(u128::from(self.a_microsecond().max(1)))).unwrap_or(u64::MAX)
    }
}

/// A token bucket: full at first, it fills at an even pace, and may be in debt.
///
/// What has flowed in is a function of the time, so that only one number
/// changes when something is taken. A change of the pace leaves the level as it
/// is, as far as the bucket still holds it.
#[derive(Debug)]
pub(super) struct Bucket {
    /// Parts taken since ever, less what was given back.
    taken: AtomicI64,
    flow: ArcSwapOption<Flow>,
}

/// What a bucket has, in parts; below zero it is in debt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct BucketLevel(i64);

impl BucketLevel {
    /// In whole ones: 0 where it is in debt.
    pub(super) fn whole(self) -> u64 {
        whole(self.0)
    }
}

/// What flows in, from a moment on.
#[derive(Debug)]
struct Flow {
    pace: RefillRate,
    since: Timestamp,
    a_microsecond: u64,
    /// Parts that had flowed in until then.
    before: i64,
}

impl Flow {
    fn new(pace: RefillRate, since: Timestamp, before: i64) -> Self {
        Self {
            pace,
            since,
            a_microsecond: pace.a_microsecond(),
            before,
        }
    }

    /// Parts that have flowed in until a time.
    fn until(&self, now: Timestamp) -> i64 {
        let elapsed = now.0.saturating_sub(self.since.0).max(0).unsigned_abs();
        let come = (u128::from(elapsed) * u128::from(self.a_microsecond)) >> PLACES;
        self.before
            .saturating_add(i64::try_from(come).unwrap_or(i64::MAX))
    }
}

impl Bucket {
    pub(super) const fn new() -> Self {
        Self {
            taken: AtomicI64::new(0),
            flow: ArcSwapOption::const_empty(),
        }
    }

    /// Takes `count`, and says what is left. A full bucket gives more than it
    /// holds, and is in debt.
    ///
    /// # Errors
    /// How long until it would give them if nobody else came, microseconds.
    pub(super) fn take(
        &self,
        count: u64,
        pace: RefillRate,
        now: Timestamp,
    ) -> Result<BucketLevel, u64> {
        let count = parts(count);
        let come = self.come(pace, now);
        let mut taken = self.taken.load(Ordering::Acquire);
        loop {
            let level = come.saturating_sub(taken).min(pace.capacity);
            let enough = count.min(pace.capacity);
            if level < enough {
                return Err(pace.time(enough.saturating_sub(level)));
            }
            let then = come.saturating_sub(level).saturating_add(count);
            match self.swap(taken, then) {
                Ok(()) => return Ok(BucketLevel(level.saturating_sub(count))),
                Err(other) => taken = other,
            }
        }
    }

    /// How long until [`Bucket::take`] would succeed if nobody else came,
    /// microseconds: 0 is now.
    pub(super) fn wait(&self, count: u64, pace: RefillRate, now: Timestamp) -> u64 {
        let enough = parts(count).min(pace.capacity);
        pace.time(enough.saturating_sub(self.level(pace, now).0))
    }

    /// Gives back some of what was taken.
    pub(super) fn give(&self, count: u64) {
        self.taken.fetch_sub(parts(count), Ordering::AcqRel);
    }

    /// Takes more, whatever is there.
    pub(super) fn debit(&self, count: u64) {
        let more = |taken: i64| Some(taken.saturating_add(parts(count)));
        let _always = self
            .taken
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, more);
    }

    /// What it has.
    pub(super) fn level(&self, pace: RefillRate, now: Timestamp) -> BucketLevel {
        let come = self.come(pace, now);
        let taken = self.taken.load(Ordering::Acquire);
        BucketLevel(come.saturating_sub(taken).min(pace.capacity))
    }

    fn swap(&self, taken: i64, then: i64) -> Result<(), i64> {
        self.taken
            .compare_exchange_weak(taken, then, Ordering::AcqRel, Ordering::Acquire)
            .map(|_| ())
    }

    /// Parts that have flowed in, at this pace from now on.
    fn come(&self, pace: RefillRate, now: Timestamp) -> i64 {
        let flow = self.flow.load();
        if let Some(flow) = flow.as_ref().filter(|flow| flow.pace == pace) {
            return flow.until(now);
        }
        self.flow.rcu(|flow| match flow {
            Some(same) if same.pace == pace => Some(Arc::clone(same)),
            Some(other) => Some(Arc::new(self.changed(other, pace, now))),
            None => Some(Arc::new(Flow::new(pace, now, pace.capacity))),
        });
        let flow = self.flow.load();
        flow.as_ref().map_or(pace.capacity, |flow| flow.until(now))
    }

    /// What was above the old capacity has flowed over: it counts as taken, so
    /// that the level is as high as it was. What has flowed in never becomes
    /// less: somebody may be taking by it at this moment.
    fn changed(&self, old: &Flow, pace: RefillRate, now: Timestamp) -> Flow {
        let come = old.until(now);
        let lost = come.saturating_sub(old.pace.capacity);
        self.taken.fetch_max(lost, Ordering::AcqRel);
        Flow::new(pace, now.max(old.since), come)
    }
}

fn parts(count: u64) -> i64 {
    let count = i64::try_from(count.min(RefillRate::MOST)).unwrap_or(i64::MAX);
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
    fn a_full_bucket_gives_a_minutes_worth_at_once_then_at_its_pace() {
        let (bucket, pace) = (Bucket::new(), RefillRate::new(60, 1.0));
        for _ in 0..60 {
            assert!(bucket.take(1, pace, at(0)).is_ok());
        }
        assert_eq!(bucket.take(1, pace, at(0)), Err(1_000_000));
        assert_eq!(bucket.wait(2, pace, at(0)), 2_000_000);
        assert!(bucket.take(1, pace, at(1)).is_ok());
        assert_eq!(bucket.level(pace, at(1)).whole(), 0);
        assert_eq!(bucket.level(pace, at(3600)).whole(), 60);
        assert_eq!(pace.until_full(bucket.level(pace, at(3600))), 0);
    }

    #[test]
    fn a_refund_never_lifts_it_above_its_capacity_and_a_debit_takes_it_below_zero() {
        let (bucket, pace) = (Bucket::new(), RefillRate::new(100, 1.0));
        bucket.take(10, pace, at(0)).unwrap();
        bucket.give(50);
        assert_eq!(bucket.level(pace, at(0)).whole(), 100);
        bucket.take(100, pace, at(0)).unwrap();
        bucket.debit(100);
        assert_eq!(bucket.level(pace, at(0)).whole(), 0);
        assert_eq!(bucket.wait(1, pace, at(0)), 60_600_000);
        assert!(bucket.take(1, pace, at(61)).is_ok());
    }

    #[test]
    fn only_a_full_bucket_gives_more_than_it_holds() {
        let (bucket, pace) = (Bucket::new(), RefillRate::new(100, 0.1));
        assert_eq!(pace.whole(), 10);
        assert!(bucket.take(25, pace, at(0)).is_ok());
        assert_eq!(bucket.take(25, pace, at(0)), Err(150_000_000));
        // Debt is paid off at the pace; what is waited for is rounded up.
        assert_eq!(bucket.take(25, pace, at(149)), Err(1_002_000));
        assert!(bucket.take(25, pace, at(150)).is_ok());
    }

    #[test]
    fn another_pace_leaves_the_level_as_it_is() {
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

    /// Threads that take while the pace changes: no more than was there, and
    /// nobody who was idle is in debt.
    #[test]
    fn a_change_of_the_pace_meanwhile_makes_no_debt() {
        for round in 0..200 {
            let bucket = Bucket::new();
            let paces = [RefillRate::new(60, 1.0), RefillRate::new(60, 0.999)];
            assert!(bucket.take(1, paces[0], at(0)).is_ok());
            let later = at(86_400 + round);
            let taken: u64 = std::thread::scope(|scope| {
                let threads = [0, 1].map(|thread| {
                    let bucket = &bucket;
                    scope.spawn(move || {
                        let paces = paces.iter().cycle().skip(thread).take(20);
                        paces
                            .filter(|pace| bucket.take(1, **pace, later).is_ok())
                            .count() as u64
                    })
                });
                threads
                    .into_iter()
                    .map(|thread| thread.join().unwrap())
                    .sum()
            });
            assert_eq!(taken, 40);
            let left = bucket.level(paces[0], later).whole();
            assert!((19..=20).contains(&left), "{left}");
        }
    }

    proptest! {
        /// Whatever the order: at most the capacity and what flows in.
        #[test]
        fn no_more_is_given_than_was_there(
            limit in 1_u64..10_000,
            asks in prop::collection::vec((0_i64..2_000_000, 1_u64..200), 1..200),
        ) {
            let (bucket, pace) = (Bucket::new(), RefillRate::new(limit, 1.0));
            let (mut now, mut given) = (at(0), 0_u64);
            for (pause, count) in asks {
                now.0 += pause;
                if count <= limit && bucket.take(count, pace, now).is_ok() {
                    given += count;
                }
                let passed = u64::try_from(now.0 - at(0).0).unwrap();
                let most = limit + limit * passed / u64::try_from(MINUTE).unwrap() + 1;
                prop_assert!(given <= most, "{given} of {most}");
            }
        }

        /// A client that waits as long as it was told gets in.
        #[test]
        fn the_wait_is_true(
            limit in 1_u64..1_000_000, share in 0.001_f64..1.0,
            taken in prop::collection::vec(1_u64..1_000, 0..50), debt in 0_u64..100_000, count in 1_u64..10_000,
        ) {
            let (bucket, pace) = (Bucket::new(), RefillRate::new(limit, share));
            for count in taken {
                let _refused = bucket.take(count, pace, at(0));
            }
            bucket.debit(debt);
            let wait = i64::try_from(bucket.wait(count, pace, at(0))).unwrap();
            prop_assert!(bucket.take(count, pace, Timestamp(at(0).0 + wait)).is_ok());
        }
    }
}
