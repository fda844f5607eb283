//! Finds the next delimiter, independent of read boundaries.

use memchr::memchr2;
use memchr::memmem::Finder;

/// How the previous line ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LineBreak {
    /// It did not end: the position is within a line.
    None,
    /// There is no previous line: the content begins here.
    Start,
    Cr,
    Lf,
    CrLf,
}

/// A boundary with its two dashes at the beginning of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Delimiter {
    /// Index of the byte after it.
    pub(super) end: usize,
    pub(super) before: LineBreak,
}

/// Finds the lines that begin with a boundary. Any kind of line end counts,
/// because some parsers accept delimiters that others do not.
#[derive(Debug, Clone)]
pub(super) struct DelimiterScanner {
    finder: Finder<'static>,
    before: LineBreak,
    /// Number of bytes of a delimiter received since then.
    matched: usize,
}

impl DelimiterScanner {
    pub(super) fn new(boundary: &str) -> Self {
        Self {
            finder: Finder::new(&format!("--{boundary}")).into_owned(),
            before: LineBreak::Start,
            matched: 0,
        }
    }

    /// The boundary with its two dashes.
    pub(super) fn needle(&self) -> &[u8] {
        self.finder.needle()
    }

    /// Starts the content of a part.
    pub(super) fn restart(&mut self) {
        self.before = LineBreak::Start;
        self.matched = 0;
    }

    /// The next delimiter that is complete with `read`. The bytes after it are
    /// for another call.
    pub(super) fn find(&mut self, read: &[u8]) -> Option<Delimiter> {
        let mut at = 0;
        loop {
            while self.before != LineBreak::None {
                let byte = *read.get(at)?;
                at += 1;
                if let Some(before) = self.step(byte) {
                    return Some(Delimiter { end: at, before });
                }
            }
            at = self.skip(read, at)?;
        }
    }

    /// Skips bytes that are within a line and not part of a delimiter: returns
    /// the index from which to continue byte by byte, if there is one.
    fn skip(&mut self, read: &[u8], at: usize) -> Option<usize> {
        let rest = read.get(at..)?;
        let Some(found) = self.finder.find(rest) else {
            // A delimiter that continues in the next read begins within its
            // length.
            let from = rest.len().saturating_sub(self.needle().len() + 1);
            for byte in rest.get(from..)? {
                self.step(*byte);
            }
            return None;
        };
        let line_end = match rest.get(..found)? {
            [.., b'\r', b'\n'] => found - 2,
            [.., b'\r' | b'\n'] => found - 1,
            // Within a line: there is no delimiter before the next line.
            _ => found + memchr2(b'\r', b'\n', rest.get(found..)?)?,
        };
        self.step(*rest.get(line_end)?);
        Some(at + line_end + 1)
    }

    /// Processes one byte; returns the kind of line end before a delimiter that
    /// it completes.
    fn step(&mut self, byte: u8) -> Option<LineBreak> {
        if self.before != LineBreak::None && self.needle().get(self.matched) == Some(&byte) {
            self.matched += 1;
            if self.matched < self.needle().len() {
                return None;
            }
            self.matched = 0;
            return Some(std::mem::replace(&mut self.before, LineBreak::None));
        }
        let adjacent = std::mem::take(&mut self.matched) == 0;
        self.before = match byte {
            b'\r' => LineBreak::Cr,
            b'\n' if adjacent && self.before == LineBreak::Cr => LineBreak::CrLf,
            b'\n' => LineBreak::Lf,
            _ => LineBreak::None,
        };
        None
    }
}
