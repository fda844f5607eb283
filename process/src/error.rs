//! Errors in the log and at the end of a process.

use std::error::Error;
use std::fmt;

/// Displays an error followed by its sources, separated by colons. A source
/// that the text before it already ends with, as some libraries' errors do, is
/// not repeated.
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
        let mut text = self.0.to_string();
        let mut source = self.0.source();
        while let Some(error) = source {
            let cause = error.to_string();
            if !text.ends_with(&cause) {
                text.push_str(": ");
                text.push_str(&cause);
            }
            source = error.source();
        }
        f.write_str(&text)
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error;
    use std::{fmt, io};

    use super::Chain;

    #[derive(Debug, thiserror::Error)]
    #[error("cannot read the file")]
    struct Outer(#[source] io::Error);

    #[derive(Debug)]
    struct Repeating(io::Error);

    impl fmt::Display for Repeating {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "ServiceError: {}", self.0)
        }
    }

    impl Error for Repeating {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            Some(&self.0)
        }
    }

    #[test]
    fn a_source_in_the_text_of_its_error_is_not_repeated() {
        let error = Repeating(io::Error::other("disk failure"));
        assert_eq!(Chain(&error).to_string(), "ServiceError: disk failure");
    }

    #[test]
    fn each_source_is_displayed_once() {
        let error = Outer(io::Error::other("disk failure"));
        assert_eq!(
            Chain(&error).to_string(),
            "cannot read the file: disk failure"
        );
    }
}
