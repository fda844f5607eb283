use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// A file of the checkout.
pub struct Source {
    /// Path from the checkout's root, with `/`.
    pub path: String,
    /// Its text.
    pub text: String,
}

impl Source {
    /// Whether it is Rust.
    pub fn is_rust(&self) -> bool {
        self.path.rsplit('.').next() == Some("rs")
    }

    /// Whether the file contains only tests.
    pub fn is_test(&self) -> bool {
        self.path.contains("/tests/") || self.path.ends_with("/tests.rs")
    }
}

/// The hand-written files of a checkout, without build output, caches and
/// generated files.
pub struct Tree {
    /// The checkout.
    pub root: PathBuf,
    /// Its text files, sorted by path.
    pub sources: Vec<Source>,
}

const SKIPPED: [&str; 8] = [
    ".git",
    ".sqlx",
    "target",
    "node_modules",
    "dist",
    "golden",
    "snapshots",
    "__pycache__",
];

const READ: [&str; 12] = [
    "rs",
    "py",
    "sh",
    "md",
    "toml",
    "yaml",
    "yml",
    "sql",
    "ts",
    "tsx",
    "Dockerfile",
    "Makefile",
];

/// Files of other endings.
const NAMES: [&str; 1] = ["openapi.json"];

impl Tree {
    /// The checkout that this crate was built in.
    pub fn of_this_checkout() -> io::Result<Self> {
        Self::read(&Self::root_of_this_checkout()?)
    }

    /// The root of the checkout that this crate was built in.
    pub fn root_of_this_checkout() -> io::Result<PathBuf> {
        Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../..")
            .canonicalize()
    }

    /// Reads the tree below `root`.
    pub fn read(root: &Path) -> io::Result<Self> {
        let root = root.canonicalize()?;
        let mut sources = Vec::new();
        let mut folders = vec![root.clone()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(&folder)? {
                let entry = entry?;
                let name = entry.file_name().to_string_lossy().into_owned();
                if entry.file_type()?.is_dir() {
                    if !SKIPPED.contains(&name.as_str()) {
                        folders.push(entry.path());
                    }
                } else if is_read(&name) {
                    let full = entry.path();
                    let path = full.strip_prefix(&root).unwrap_or(&full);
                    sources.push(Source {
                        path: path.to_string_lossy().replace('\\', "/"),
                        text: fs::read_to_string(&full)?,
                    });
                }
            }
        }
        sources.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(Self { root, sources })
    }

    /// The files with one of these endings.
    pub fn with_ending<'a>(&'a self, endings: &'a [&str]) -> impl Iterator<Item = &'a Source> {
        self.sources
            .iter()
            .filter(move |source| endings.iter().any(|ending| source.path.ends_with(ending)))
    }
}

fn is_read(name: &str) -> bool {
    READ.contains(&name.rsplit('.').next().unwrap_or_default()) || NAMES.contains(&name)
}
