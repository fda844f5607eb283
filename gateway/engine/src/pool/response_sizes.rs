use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Assumed completion tokens while no response was seen.
pub const DEFAULT_COMPLETION_TOKENS: u64 = 512;

/// Buckets per power of two.
const STEPS: u64 = 4;

/// Up to a million tokens, and one bucket for larger responses.
const BUCKETS: usize = 84;

/// After this number of responses, earlier ones count half.
const FADES_AFTER: u32 = 1_024;

/// How often the value is recomputed, after the first few responses.
const EVERY: u32 = 16;

/// The completion tokens that 95 of the last 100 responses of a backend do not
/// exceed, over about a thousand responses.
#[derive(Debug)]
pub(super) struct ResponseSizes {
    counts: [AtomicU32; BUCKETS],
    total: AtomicU32,
    /// Tokens; 0 is unknown.
    typical: AtomicU64,
}

impl Default for ResponseSizes {
    fn default() -> Self {
        Self {
            counts: [const { AtomicU32::new(0) }; BUCKETS],
            total: AtomicU32::new(0),
            typical: AtomicU64::new(0),
        }
    }
}

impl ResponseSizes {
    /// Records a response. Of two concurrent updates one may be lost: the value
    /// is an estimate.
    pub(super) fn record(&self, tokens: u64) {
        self.counts[bucket(tokens)].fetch_add(1, Ordering::Relaxed);
        let total = self.total.fetch_add(1, Ordering::Relaxed) + 1;
        if total < EVERY || total.is_multiple_of(EVERY) {
            self.recompute(total);
        }
    }

    fn recompute(&self, total: u32) {
        let fades = total >= FADES_AFTER;
        let mut counts = [0; BUCKETS];
        for (read, count) in counts.iter_mut().zip(&self.counts) {
            *read = count.load(Ordering::Relaxed);
            if fades {
                count.store(*read / 2, Ordering::Relaxed);
            }
        }
        let all: u32 = counts.iter().sum();
        if fades {
            self.total.store(all / 2, Ordering::Relaxed);
        }
        let mut beyond = all - all * 19 / 20;
        for (index, count) in counts.iter().enumerate().rev() {
            if *count >= beyond.max(1) {
                self.typical.store(largest(index), Ordering::Relaxed);
                return;
            }
            beyond -= count;
        }
    }

    /// In tokens, at most a quarter too high; the default while unknown.
    pub(super) fn typical(&self) -> u64 {
        match self.typical.load(Ordering::Relaxed) {
            0 => DEFAULT_COMPLETION_TOKENS,
            known => known - 1,
        }
    }
}

fn bucket(tokens: u64) -> usize {
    let place = if tokens < STEPS {
        tokens
    } else {
        let power = u64::from(tokens.ilog2());
        (power - 1) * STEPS + (tokens >> (power - 2)) - STEPS
    };
    usize::try_from(place).map_or(BUCKETS - 1, |place| place.min(BUCKETS - 1))
}

/// One more than the largest size in a bucket, so that 0 means unknown.
fn largest(bucket: usize) -> u64 {
    let place = bucket as u64 + 1;
    if place < STEPS {
        return place;
    }
    let power = place / STEPS + 1;
    (place % STEPS + STEPS) << (power - 2)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{BUCKETS, DEFAULT_COMPLETION_TOKENS, ResponseSizes, bucket, largest};

    #[test]
    fn nothing_is_known_at_first_then_what_most_answers_stay_within() {
        let sizes = ResponseSizes::default();
        assert_eq!(sizes.typical(), DEFAULT_COMPLETION_TOKENS);
        sizes.record(0);
        assert_eq!(sizes.typical(), 0);
        for _ in 0..200 {
            sizes.record(100);
        }
        assert_eq!(sizes.typical(), 111);
        // Few that are large make no difference, many do.
        for _ in 0..8 {
            sizes.record(5_000);
        }
        assert_eq!(sizes.typical(), 111);
        for _ in 0..32 {
            sizes.record(5_000);
        }
        assert_eq!(sizes.typical(), 5_119);
        // What was long ago is forgotten.
        for _ in 0..20_000 {
            sizes.record(100);
        }
        assert_eq!(sizes.typical(), 111);
    }

    proptest! {
        #[test]
        fn a_size_is_within_its_bucket_and_at_most_a_quarter_below_its_end(tokens in 0_u64..1_000_000) {
            let index = bucket(tokens);
            let most = largest(index) - 1;
            prop_assert!(tokens <= most && most <= tokens + tokens / 4, "{tokens} {index} {most}");
            prop_assert!(index == 0 || largest(index - 1) <= tokens);
        }
    }

    #[test]
    fn whatever_is_larger_is_in_the_last() {
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }
}
