use std::fmt;

/// Problems that are kept of one file; further ones are only counted.
const MOST: usize = 1000;

/// Where something stands in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// From 1 on.
    pub line: usize,
    /// In characters, from 1 on.
    pub column: usize,
}

impl Place {
    /// The beginning of the file, for what is wrong with all of it.
    pub(super) const START: Self = Self { line: 1, column: 1 };
}

/// Whether something must be mended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Severity {
    /// The file, or this entry of it, cannot be used.
    Error,
    /// It is used, but not as it says.
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

/// Something that is wrong with the file. Neither path nor message holds a
/// value that may be a secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// How bad it is.
    pub severity: Severity,
    /// Where it stands.
    pub place: Place,
    /// Which field: `model_list[2].litellm_params.weight`; empty for the whole
    /// file.
    pub path: String,
    /// What is wrong.
    pub message: String,
}

impl fmt::Display for Problem {
    /// `LINE:COLUMN: error: PATH: MESSAGE`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            severity,
            place: Place { line, column },
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

/// Everything that is wrong with a file, by place.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Problems {
    listed: Vec<Problem>,
    errors: usize,
    warnings: usize,
}

impl Problems {
    /// A file with one error that concerns all of it.
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

    pub(super) fn push(&mut self, problem: Problem) {
        match problem.severity {
            Severity::Error => self.errors += 1,
            Severity::Warning => self.warnings += 1,
        }
        if self.listed.len() < MOST {
            self.listed.push(problem);
        }
    }

    pub(super) fn sort(&mut self) {
        self.listed.sort_by_key(|problem| problem.place);
    }

    /// By place; at most a thousand.
    pub fn listed(&self) -> &[Problem] {
        &self.listed
    }

    /// How many errors there are, also those that are not listed.
    pub fn errors(&self) -> usize {
        self.errors
    }

    /// How many warnings there are, also those that are not listed.
    pub fn warnings(&self) -> usize {
        self.warnings
    }
}
