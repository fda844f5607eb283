use std::cell::RefCell;
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use fastllm_contract::{PolicyKind, Secret};
use ring::digest::{SHA256, digest};

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
            let path = path_of(&self.path, &self.problems, problem);
            write!(f, "\n{}:{problem}", path.display())?;
        }
        Ok(())
    }
}

impl std::error::Error for FileError {}

impl ConfigFile {
    /// Reads the file and collects all of its problems.
    pub fn check(&self) -> ReadOutcome {
        match self.text() {
            Ok(text) => self.read(&text).0,
            Err(error) => ReadOutcome {
                contents: None,
                problems: Problems::of_file(error),
            },
        }
    }

    /// Reads a text, and returns what the files that it includes contained.
    pub(super) fn read(&self, text: &str) -> (ReadOutcome, Vec<IncludedFile>) {
        let included = RefCell::new(Vec::new());
        let read_included = |path: &Path| {
            let text = self.included_text(path);
            included.borrow_mut().push(IncludedFile {
                path: path.to_owned(),
                content: FileContent::of(&text),
            });
            text
        };
        let surroundings = Surroundings {
            environment: &environment_variable,
            included: &read_included,
            master_key: self.master_key.as_ref(),
            policy: self.policy,
            max_body_bytes: self.max_body_bytes,
        };
        let outcome = read(text, &surroundings);
        (outcome, included.into_inner())
    }

    /// Text of an included file, by its path relative to the folder of this one.
    fn included_text(&self, path: &Path) -> Result<String, String> {
        read_text(&beside(&self.path, path)).map_err(|error| error.to_string())
    }

    /// Whether an included file has the same content as when it was read.
    pub(super) fn is_unchanged(&self, included: &IncludedFile) -> bool {
        let text = self.included_text(&included.path);
        FileContent::of(&text) == included.content
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
        for problem in problems.listed() {
            let path = path_of(&self.path, problems, problem);
            writeln!(out, "{}:{problem}", path.display())?;
        }
        let path = self.path.display();
        let (errors, warnings) = (problems.errors(), problems.warnings());
        writeln!(out, "{path}: errors: {errors}, warnings: {warnings}")
    }
}

/// The path of a file that another one includes.
fn beside(file: &Path, included: &Path) -> PathBuf {
    file.parent().unwrap_or(Path::new("")).join(included)
}

/// The path of the file that has a problem.
fn path_of(file: &Path, problems: &Problems, problem: &Problem) -> PathBuf {
    match problems.file_of(problem) {
        Some(included) => beside(file, included),
        None => file.to_owned(),
    }
}

/// SHA-256 of the content of a file, or why it could not be read.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum FileContent {
    Read([u8; 32]),
    Unreadable(String),
}

impl FileContent {
    pub(super) fn of(text: &Result<String, String>) -> Self {
        match text {
            Ok(text) => {
                let digest = digest(&SHA256, text.as_bytes());
                let bytes = digest.as_ref().first_chunk().copied();
                Self::Read(bytes.unwrap_or_default())
            }
            Err(error) => Self::Unreadable(error.clone()),
        }
    }
}

/// An included file as it was read.
#[derive(Debug)]
pub(super) struct IncludedFile {
    /// Relative to the folder of the file that includes it.
    path: PathBuf,
    content: FileContent,
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
    for problem in problems.listed().iter().take(MAX_LOGGED) {
        let Problem {
            severity,
            place,
            path: field,
            message,
        } = problem;
        let path = path_of(path, problems, problem);
        let path = path.display();
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
        let path = path.display();
        tracing::warn!(file = %path, more, "the configuration file has more problems");
    }
}
