//! `include`: further files, whose sections are joined with those of the file.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ring::digest::{Context as Digest, SHA256};

use super::problem::{Place, Problem, Problems, Severity};
use super::yaml::{self, Node, NodeKind, join_sections, without_section};

/// Maximum number of included files.
const MAX_FILES: usize = 64;

/// Maximum number of files that include each other.
const MAX_DEPTH: usize = 8;

/// Maximum size of all included files, in bytes.
const MAX_BYTES: usize = 8 << 20;

/// Reads an included file, by its path relative to the folder of the main file;
/// returns its text, or why it cannot be read.
pub(super) type FileReader<'a> = &'a dyn Fn(&Path) -> Result<String, String>;

/// A file with all that it includes.
pub(super) struct Sources<'p> {
    read: FileReader<'p>,
    problems: &'p mut Problems,
    seen: HashSet<PathBuf>,
    bytes: usize,
    digest: Digest,
}

/// A reference to a file, and where it is.
struct Inclusion {
    path: PathBuf,
    place: Place,
}

impl<'p> Sources<'p> {
    pub(super) fn new(read: FileReader<'p>, problems: &'p mut Problems) -> Self {
        Self {
            read,
            problems,
            seen: HashSet::new(),
            bytes: 0,
            digest: Digest::new(&SHA256),
        }
    }

    /// The tree of the main file and the files that it includes, and a version
    /// that depends on all of their bytes. Errors are added to the problems.
    pub(super) fn load(mut self, text: &str) -> Option<(Arc<Node>, u64)> {
        let root = self.load_file(text, 0, Path::new(""), 0)?;
        let digest = self.digest.finish();
        let first = digest.as_ref().first_chunk().copied().unwrap_or_default();
        Some((root, u64::from_le_bytes(first)))
    }

    /// Loads one text; `file` is its number among the files, `folder` the one
    /// that its references are relative to.
    fn load_file(
        &mut self,
        text: &str,
        file: usize,
        folder: &Path,
        depth: usize,
    ) -> Option<Arc<Node>> {
        self.digest.update(text.as_bytes());
        let root = yaml::load(text, file, self.problems)?;
        let (mut root, inclusions) = self.take_inclusions(root, folder);
        for inclusion in inclusions {
            if let Some(included) = self.include(&inclusion, depth) {
                join_sections(&mut root, &included, self.problems);
            }
        }
        Some(root)
    }

    /// Takes the member `include` out of a file.
    fn take_inclusions(&mut self, root: Arc<Node>, folder: &Path) -> (Arc<Node>, Vec<Inclusion>) {
        let Some((root, list)) = without_section(&root, "include") else {
            return (root, Vec::new());
        };
        let items = match &list.kind {
            _ if list.is_null() => &[],
            NodeKind::Sequence(items) => items.as_slice(),
            _ => std::slice::from_ref(&list),
        };
        let mut inclusions = Vec::new();
        for item in items {
            match &item.kind {
                NodeKind::Scalar { text, .. } if !text.is_empty() => inclusions.push(Inclusion {
                    path: normalized(&folder.join(text)),
                    place: item.place,
                }),
                _ => self.error(item.place, "expected the path of a file"),
            }
        }
        (root, inclusions)
    }

    fn include(&mut self, inclusion: &Inclusion, depth: usize) -> Option<Arc<Node>> {
        let Inclusion { path, place } = inclusion;
        if !self.seen.insert(path.clone()) {
            self.error(*place, "the file is included already");
            return None;
        }
        if depth == MAX_DEPTH || self.seen.len() > MAX_FILES {
            let message =
                format!("more than {MAX_FILES} files, or {MAX_DEPTH} that include each other");
            self.error(*place, &message);
            return None;
        }
        let text = match (self.read)(path) {
            Ok(text) => text,
            Err(reason) => {
                self.error(*place, &format!("the file cannot be included: {reason}"));
                return None;
            }
        };
        self.bytes += text.len();
        if self.bytes > MAX_BYTES {
            self.error(*place, "the included files are larger than 8 MiB");
            return None;
        }
        let file = self.problems.add_file(path.clone());
        let name = path.as_os_str().as_encoded_bytes();
        self.digest.update(&name.len().to_be_bytes());
        self.digest.update(name);
        let folder = path.parent().unwrap_or(Path::new("")).to_owned();
        self.load_file(&text, file, &folder, depth + 1)
    }

    fn error(&mut self, place: Place, message: &str) {
        self.problems.push(Problem {
            severity: Severity::Error,
            place,
            path: "include".to_owned(),
            message: message.to_owned(),
        });
    }
}

/// A path without `.` and without `..` after another component.
fn normalized(path: &Path) -> PathBuf {
    use std::path::Component;
    let mut normalized = PathBuf::new();
    for component in path.components() {
        match component {
            Component::CurDir => {}
            Component::ParentDir
                if matches!(
                    normalized.components().next_back(),
                    Some(Component::Normal(_))
                ) =>
            {
                normalized.pop();
            }
            _ => normalized.push(component),
        }
    }
    normalized
}
