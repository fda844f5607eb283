use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use fastllm_contract::{PolicyKind, Secret};

use super::problem::{Problem, Problems};
use super::read::{ReadOutcome, Surroundings, read};

/// Maximum file size in bytes.
const LARGEST: u64 = 8 << 20;

/// A configuration file and the command line flags that override it.
#[derive(Debug, Clone)]
pub struct ConfigFile {
    /// Path of the file; symbolic links are resolved at each read.
    pub path: PathBuf,
    /// Overrides the master key of the file.
    pub master_key: Option<Secret>,
    /// Default policy of models that name none.
    pub policy: PolicyKind,
    /// Maximum size of a request body, in bytes.
    pub max_body_bytes: u64,
}

/// A file that cannot be used, with all of its problems.
#[derive(Debug)]
pub struct FileError {
    path: PathBuf,
    problems: Problems,
}

impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.display();
        write!(f, "the configuration file cannot be used: {path}")?;
        for problem in self.problems.listed() {
            write!(f, "\n{path}:{problem}")?;
        }
        Ok(())
    }
}

impl std::error::Error for FileError {}

impl ConfigFile {
    /// Reads the file and collects all of its problems.
    pub fn check(&self) -> ReadOutcome {
        match self.text() {
            Ok(text) => self.read(&text),
            Err(error) => ReadOutcome {
                contents: None,
                problems: Problems::of_file(error),
            },
        }
    }

    pub(super) fn read(&self, text: &str) -> ReadOutcome {
        let surroundings = Surroundings {
            environment: &environment_variable,
            master_key: self.master_key.as_ref(),
            policy: self.policy,
            max_body_bytes: self.max_body_bytes,
        };
        read(text, &surroundings)
    }

    /// Text of the file, or why it cannot be read.
    pub(super) fn text(&self) -> Result<String, String> {
        read_text(&self.path).map_err(|error| format!("cannot be read: {error}"))
    }

    pub(super) fn error(&self, problems: Problems) -> FileError {
        FileError {
            path: self.path.clone(),
            problems,
        }
    }

    /// Writes problems in compiler format, `FILE:LINE:COLUMN: error: PATH:
    /// MESSAGE`, followed by a summary line.
    pub fn report(&self, problems: &Problems, out: &mut impl io::Write) -> io::Result<()> {
        let path = self.path.display();
        for problem in problems.listed() {
            writeln!(out, "{path}:{problem}")?;
        }
        let (errors, warnings) = (problems.errors(), problems.warnings());
        writeln!(out, "{path}: errors: {errors}, warnings: {warnings}")
    }
}

/// Value of an environment variable that a configuration file refers to.
#[expect(
    clippy::disallowed_methods,
    reason = "a configuration file may refer to environment variables"
)]
fn environment_variable(name: &str) -> Option<String> {
    // `std::env::var` panics on such an invalid name.
    if name.is_empty() || name.contains(['=', '\0']) {
        return None;
    }
    std::env::var(name).ok()
}

fn read_text(path: &Path) -> io::Result<String> {
    let other = |reason: &str| Err(io::Error::other(reason.to_owned()));
    // Opening a named pipe would block until its other end is opened.
    if !path.metadata()?.is_file() {
        return other("it is not a file");
    }
    let mut text = Vec::new();
    File::open(path)?.take(LARGEST + 1).read_to_end(&mut text)?;
    if text.len() as u64 > LARGEST {
        return other("it is larger than 8 MiB");
    }
    String::from_utf8(text).or_else(|_| other("it is not UTF-8"))
}

/// Logs the problems of a file, whether or not it is used.
pub(super) fn log(path: &Path, problems: &Problems) {
    /// Maximum number of problems logged per read.
    const MAX_LOGGED: usize = 50;
    let path = path.display();
    for problem in problems.listed().iter().take(MAX_LOGGED) {
        let Problem {
            severity,
            place,
            path: field,
            message,
        } = problem;
        tracing::warn!(
            file = %path,
            line = place.line,
            column = place.column,
            field,
            %severity,
            problem = message,
            "the configuration file has a problem"
        );
    }
    let listed = problems.listed().len().min(MAX_LOGGED);
    let more = problems.errors() + problems.warnings() - listed;
    if more > 0 {
        tracing::warn!(file = %path, more, "the configuration file has more problems");
    }
}
