use std::fmt;
use std::path::{Path, PathBuf};

/// Maximum number of problems stored per file; further ones are only counted.
const MAX_LISTED: usize = 1000;

/// A position in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// 0 for the file itself, else the number of an included file; see
    /// [`Problems::file_of`].
    pub file: usize,
    /// Starts at 1.
    pub line: usize,
    /// In characters, starting at 1.
    pub column: usize,
}

impl Place {
    /// Start of the file, for problems of the whole file.
    pub(super) const START: Self = Self {
        file: 0,
        line: 1,
        column: 1,
    };
}

/// Severity of a problem.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Severity {
    /// The file, or this entry of it, cannot be used.
    Error,
    /// The file is used, but this part has no effect as written.
    Warning,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Error => "error",
            Self::Warning => "warning",
        })
    }
}

/// A problem in the file. Neither path nor message contains a value that may be
/// a secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Severity of the problem.
    pub severity: Severity,
    /// Position of the problem.
    pub place: Place,
    /// Path of the member, such as `model_list[2].litellm_params.weight`; empty
    /// for the whole file.
    pub path: String,
    /// Description of the problem.
    pub message: String,
}

impl fmt::Display for Problem {
    /// `LINE:COLUMN: error: PATH: MESSAGE`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            severity,
            place:
                Place {
                    file: _,
                    line,
                    column,
                },
            path,
            message,
        } = self;
        write!(f, "{line}:{column}: {severity}: ")?;
        if !path.is_empty() {
            write!(f, "{path}: ")?;
        }
        f.write_str(message)
    }
}

/// All problems of a file, sorted by position.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Problems {
    listed: Vec<Problem>,
    errors: usize,
    warnings: usize,
    /// The included files, relative to the folder of the file itself.
    files: Vec<PathBuf>,
}

impl Problems {
    /// Problems of a file with one error that concerns the whole file.
    pub(super) fn of_file(message: impl Into<String>) -> Self {
        let mut problems = Self::default();
        problems.push(Problem {
            severity: Severity::Error,
            place: Place::START,
            path: String::new(),
            message: message.into(),
        });
        problems
    }

    /// Adds an included file, and returns its number.
    pub(super) fn add_file(&mut self, path: PathBuf) -> usize {
        self.files.push(path);
        self.files.len()
    }

    /// The included file that has a problem, relative to the folder of the file
    /// itself; `None` if it is the file itself.
    pub fn file_of(&self, problem: &Problem) -> Option<&Path> {
        let index = problem.place.file.checked_sub(1)?;
        self.files.get(index).map(PathBuf::as_path)
    }

    pub(super) fn push(&mut self, problem: Problem) {
        match problem.severity {
            Severity::Error => self.errors += 1,
            Severity::Warning => self.warnings += 1,
        }
        if self.listed.len() < MAX_LISTED {
            self.listed.push(problem);
        }
    }

    pub(super) fn sort(&mut self) {
        self.listed.sort_by_key(|problem| problem.place);
    }

    /// Problems by position; at most a thousand.
    pub fn listed(&self) -> &[Problem] {
        &self.listed
    }

    /// Number of errors, including those that are not listed.
    pub fn errors(&self) -> usize {
        self.errors
    }

    /// Number of warnings, including those that are not listed.
    pub fn warnings(&self) -> usize {
        self.warnings
    }
}
