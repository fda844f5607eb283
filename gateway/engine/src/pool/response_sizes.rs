use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// What an answer is thought to have where none was seen yet, in tokens.
pub const DEFAULT_COMPLETION_TOKENS: u64 = 512;

/// Sizes are told apart by a quarter of their power of two.
const STEPS: u64 = 4;

/// Up to a million tokens, and one for all that are larger.
const BUCKETS: usize = 84;

/// After so many answers the older half of them counts half as much.
const FADES_AFTER: u32 = 1_024;

/// After so many answers it is reckoned anew, once a few are known.
const EVERY: u32 = 16;

/// How large the answers of a backend are: what 95 of 100 stay within, of the
/// last thousand or so.
#[derive(Debug)]
pub(super) struct ResponseSizes {
    counts: [AtomicU32; BUCKETS],
    total: AtomicU32,
    /// Tokens; 0 is unknown.
    usual: AtomicU64,
}

impl Default for ResponseSizes {
    fn default() -> Self {
        Self {
            counts: [const { AtomicU32::new(0) }; BUCKETS],
            total: AtomicU32::new(0),
            usual: AtomicU64::new(0),
        }
    }
}

impl ResponseSizes {
    /// Takes note of an answer. Of two at once one may be lost: it is a guess.
    pub(super) fn note(&self, tokens: u64) {
        self.counts[bucket(tokens)].fetch_add(1, Ordering::Relaxed);
        let total = self.total.fetch_add(1, Ordering::Relaxed) + 1;
        if total < EVERY || total.is_multiple_of(EVERY) {
            self.reckon(total);
        }
    }

    fn reckon(&self, total: u32) {
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
                self.usual.store(largest(index), Ordering::Relaxed);
                return;
            }
            beyond -= count;
        }
    }

    /// In tokens, a quarter too many at most; a guess where nothing is known.
    pub(super) fn usual(&self) -> u64 {
        match self.usual.load(Ordering::Relaxed) {
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

/// One more than the most tokens that fall into a bucket, so that 0 stands for
/// none.
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
        assert_eq!(sizes.usual(), DEFAULT_COMPLETION_TOKENS);
        sizes.note(0);
        assert_eq!(sizes.usual(), 0);
        for _ in 0..200 {
            sizes.note(100);
        }
        assert_eq!(sizes.usual(), 111);
        // Few that are large make no difference, many do.
        for _ in 0..8 {
            sizes.note(5_000);
        }
        assert_eq!(sizes.usual(), 111);
        for _ in 0..32 {
            sizes.note(5_000);
        }
        assert_eq!(sizes.usual(), 5_119);
        // What was long ago is forgotten.
        for _ in 0..20_000 {
            sizes.note(100);
        }
        assert_eq!(sizes.usual(), 111);
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
