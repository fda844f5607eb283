use std::hint::black_box;
use std::io::{self, Write};

use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;

/// The shortest time from which the number of repetitions is derived, in nanoseconds.
const ENOUGH: u64 = 2_000_000;

/// Times steps, and writes one line of JSON for each.
///
/// The clock is the CPU time of this thread, so that other processes on the
/// core affect the figures only through its caches.
#[derive(Debug, Clone, Copy)]
pub struct Stopwatch {
    /// Rounds that count, after one that does not.
    pub rounds: usize,
    /// About how long a round takes, in nanoseconds.
    pub round_ns: u64,
}

#[derive(Debug, PartialEq, Serialize)]
struct Figure<'a> {
    step: &'a str,
    /// Nanoseconds: the median of the rounds.
    ns: f64,
    /// The quickest round.
    low: f64,
    /// The slowest one.
    high: f64,
}

impl Stopwatch {
    /// Times `work`.
    pub fn time<T>(self, step: &str, work: impl FnMut() -> T) -> io::Result<()> {
        self.each(step, 1, work)
    }

    /// Times `work` that does the step so many times at once.
    pub fn each<T>(self, step: &str, times: u32, work: impl FnMut() -> T) -> io::Result<()> {
        let rounds = self.rounds(times, work);
        let mut out = io::stdout().lock();
        serde_json::to_writer(&mut out, &figure(step, rounds))?;
        writeln!(out)
    }

    fn rounds<T>(self, times: u32, mut work: impl FnMut() -> T) -> Vec<f64> {
        let mut count = 1;
        while stretch(count, &mut work) < ENOUGH.min(self.round_ns) {
            count *= 2;
        }
        let took = stretch(count, &mut work).max(1);
        let count = (count * self.round_ns / took).max(1);
        stretch(count, &mut work);
        (0..self.rounds.max(1))
            .map(|_| nanoseconds(stretch(count, &mut work)) / nanoseconds(count) / f64::from(times))
            .collect()
    }
}

/// The CPU time of so many calls, in nanoseconds.
fn stretch<T>(count: u64, work: &mut impl FnMut() -> T) -> u64 {
    let began = cpu_ns();
    for _ in 0..count {
        black_box(work());
    }
    cpu_ns().saturating_sub(began)
}

fn cpu_ns() -> u64 {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    u64::try_from(now.tv_sec * 1_000_000_000 + now.tv_nsec).unwrap_or_default()
}

#[expect(
    clippy::cast_precision_loss,
    reason = "far below what a double holds exactly"
)]
fn nanoseconds(value: u64) -> f64 {
    value as f64
}

fn figure(step: &str, mut rounds: Vec<f64>) -> Figure<'_> {
    rounds.sort_by(f64::total_cmp);
    let at = |index: usize| rounds.get(index).copied().unwrap_or_default();
    let last = rounds.len().saturating_sub(1);
    Figure {
        step,
        ns: f64::midpoint(at(last / 2), at(rounds.len() / 2)),
        low: at(0),
        high: at(last),
    }
}

#[cfg(test)]
mod tests {
    use super::{Figure, Stopwatch, figure};

    #[test]
    fn reports_the_median_and_the_extremes() {
        let odd = Figure {
            step: "x",
            ns: 3.0,
            low: 1.0,
            high: 9.0,
        };
        assert_eq!(figure("x", vec![9.0, 1.0, 3.0]), odd);
        assert!((figure("x", vec![4.0, 1.0, 9.0, 2.0]).ns - 3.0).abs() < 1e-9);
    }

    #[test]
    fn twice_the_work_takes_longer() {
        let watch = Stopwatch {
            rounds: 3,
            round_ns: 2_000_000,
        };
        let sum = |to: u64| (0..to).fold(0, |sum: u64, one| std::hint::black_box(sum ^ one));
        let low = |times, to| {
            let rounds = watch.rounds(times, || sum(to));
            rounds.into_iter().fold(f64::MAX, f64::min)
        };
        let (few, many) = (low(1, 1_000), low(1, 50_000));
        assert!(few > 0.0 && few * 10.0 < many, "{few} {many}");
        let shared = low(50, 50_000);
        assert!(shared * 10.0 < many, "{shared} {many}");
    }
}
