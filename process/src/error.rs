//! Errors in the log and at the end of a process.

use std::error::Error;
use std::fmt;

/// An error followed by its sources, separated by colons.
#[derive(Debug, Clone, Copy)]
pub struct Chain<'a>(&'a (dyn Error + 'static));

/// Displays `error` and its sources.
pub fn chain<'a>(error: &'a (dyn Error + 'static)) -> Chain<'a> {
    Chain(error)
}

/// Prints the error that ends `program` to standard error.
#[expect(
    clippy::print_stderr,
    reason = "logging may have failed, or not have started"
)]
pub fn print(program: &str, error: &(dyn Error + 'static)) {
    eprintln!("{program}: {}", chain(error));
}

impl fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)?;
        let mut source = self.0.source();
        while let Some(error) = source {
            write!(f, ": {error}")?;
            source = error.source();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::chain;

    #[derive(Debug, thiserror::Error)]
    #[error("cannot read the file")]
    struct Outer(#[source] io::Error);

    #[test]
    fn each_source_is_displayed_once() {
        let error = Outer(io::Error::other("disk failure"));
        assert_eq!(
            chain(&error).to_string(),
            "cannot read the file: disk failure"
        );
    }
}
