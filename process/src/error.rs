//! Errors in the log and at the end of a process.

use std::error::Error;
use std::fmt;

/// Displays an error followed by its sources, separated by colons.
#[derive(Debug, Clone, Copy)]
pub struct Chain<'e>(pub &'e (dyn Error + 'static));

/// Prints the error that ends `program` to standard error.
#[expect(
    clippy::print_stderr,
    reason = "logging may have failed, or not have started"
)]
pub fn print(program: &str, error: &(dyn Error + 'static)) {
    eprintln!("{program}: {}", Chain(error));
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

    use super::Chain;

    #[derive(Debug, thiserror::Error)]
    #[error("cannot read the file")]
    struct Outer(#[source] io::Error);

    #[test]
    fn each_source_is_displayed_once() {
        let error = Outer(io::Error::other("disk failure"));
        assert_eq!(
            Chain(&error).to_string(),
            "cannot read the file: disk failure"
        );
    }
}
