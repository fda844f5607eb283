use std::ops::Range;

use crate::sse::Frame;

/// The bytes to forward after one read: first the bytes carried over from
/// earlier reads, then ranges of this one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Passthrough {
    /// Bytes of earlier reads, with the end of their event.
    pub carried: Vec<u8>,
    run: Range<usize>,
    more: Vec<Range<usize>>,
}

impl Passthrough {
    /// The ranges of the read to forward, in order and none of them empty;
    /// adjacent ranges are merged, so there is usually one.
    pub fn runs(&self) -> impl Iterator<Item = Range<usize>> {
        std::iter::once(&self.run)
            .chain(&self.more)
            .filter(|run| !run.is_empty())
            .cloned()
    }

    /// Whether there is nothing to forward.
    pub fn is_empty(&self) -> bool {
        self.carried.is_empty() && self.run.is_empty()
    }

    /// Number of bytes to forward.
    pub fn len(&self) -> usize {
        self.carried.len() + self.runs().map(|run| run.len()).sum::<usize>()
    }

    /// All bytes to forward, for the read that was pushed.
    pub fn slices<'a>(&'a self, input: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
        let carried = (!self.carried.is_empty()).then_some(self.carried.as_slice());
        carried
            .into_iter()
            .chain(self.runs().filter_map(|run| input.get(run)))
    }

    pub(super) fn add(&mut self, frame: &Frame<'_>) {
        let Some(at) = frame.at else {
            self.carried.extend_from_slice(frame.bytes);
            return;
        };
        let run = at..at + frame.bytes.len();
        let last = self.more.last_mut().unwrap_or(&mut self.run);
        if last.start == last.end {
            *last = run;
        } else if last.end == run.start {
            last.end = run.end;
        } else {
            self.more.push(run);
        }
    }
}
