//! Rust sources as syntax trees, file by file, as the compiler finds them.

use std::path::{Path, PathBuf};
use std::{fs, io};

use syn::{Attribute, Expr, ExprLit, Item, ItemMod, Lit, Meta};

/// A source file of a crate.
pub(crate) struct Module {
    /// Path from the checkout's root, with `/`.
    pub(crate) file: String,
    /// Module path within the crate; empty for the crate's root.
    pub(crate) path: Vec<String>,
    /// Whether the file is compiled for tests only.
    pub(crate) test: bool,
    /// The parsed file.
    pub(crate) syntax: syn::File,
}

/// One compilation unit: a library, a program or an integration test.
pub(crate) struct Krate {
    /// The root file's path from the checkout's root, with `/`.
    pub(crate) name: String,
    /// All its files, the root first.
    pub(crate) modules: Vec<Module>,
}

/// The compilation units of the package in `folder` (a path from `root`):
/// library and programs first, then integration tests.
pub(crate) fn read_package(root: &Path, folder: &str) -> io::Result<Vec<Krate>> {
    let package = root.join(folder);
    let mut units = Vec::new();
    for file in ["src/lib.rs", "src/main.rs"] {
        units.extend(read_unit(root, package.join(file), false)?);
    }
    for file in rust_roots(&package.join("src/bin"))? {
        units.extend(read_unit(root, file, false)?);
    }
    for file in rust_roots(&package.join("tests"))? {
        units.extend(read_unit(root, file, true)?);
    }
    Ok(units)
}

/// Whether these attributes contain `#[cfg(test)]`.
pub(crate) fn is_cfg_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let Meta::List(list) = &attribute.meta else {
            return false;
        };
        list.path.is_ident("cfg") && list.tokens.to_string() == "test"
    })
}

/// `*.rs` and `*/main.rs` of a folder, sorted.
fn rust_roots(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut roots = Vec::new();
    if folder.is_dir() {
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            if path.extension().is_some_and(|ending| ending == "rs") {
                roots.push(path);
            } else if path.is_dir() {
                roots.push(path.join("main.rs"));
            }
        }
    }
    roots.sort();
    Ok(roots)
}

fn read_unit(root: &Path, file: PathBuf, test: bool) -> io::Result<Option<Krate>> {
    if !file.is_file() {
        return Ok(None);
    }
    let mut modules = Vec::new();
    let mut pending = vec![Pending {
        children: folder_of(&file),
        file,
        path: Vec::new(),
        test,
    }];
    while let Some(next) = pending.pop() {
        let syntax = parse(&next.file)?;
        pending.extend(children(&next, &syntax.items));
        modules.push(Module {
            file: relative(root, &next.file),
            path: next.path,
            test: next.test,
            syntax,
        });
    }
    modules[1..].sort_by(|a, b| a.path.cmp(&b.path));
    Ok(Some(Krate {
        name: modules[0].file.clone(),
        modules,
    }))
}

/// A file that is still to be read.
struct Pending {
    file: PathBuf,
    path: Vec<String>,
    test: bool,
    /// Where the files of its child modules are.
    children: PathBuf,
}

fn children(parent: &Pending, items: &[Item]) -> Vec<Pending> {
    let mut found = Vec::new();
    for item in items {
        let Item::Mod(module) = item else { continue };
        let name = module.ident.to_string();
        let mut path = parent.path.clone();
        path.push(name.clone());
        let mut child = Pending {
            file: PathBuf::new(),
            path,
            test: parent.test || is_cfg_test(&module.attrs) || name == "tests",
            children: parent.children.join(&name),
        };
        if let Some((_, inner)) = &module.content {
            child.file.clone_from(&parent.file);
            found.extend(children(&child, inner));
            continue;
        }
        if let Some(file) = declared_file(module, parent) {
            child.children = folder_of(&file);
            child.file = file;
        } else {
            let flat = parent.children.join(format!("{name}.rs"));
            child.file = if flat.is_file() {
                flat
            } else {
                parent.children.join(&name).join("mod.rs")
            };
        }
        found.push(child);
    }
    found
}

/// The file of `#[path = "…"] mod name;`.
fn declared_file(module: &ItemMod, parent: &Pending) -> Option<PathBuf> {
    let text = module.attrs.iter().find_map(|attribute| {
        let Meta::NameValue(pair) = &attribute.meta else {
            return None;
        };
        match &pair.value {
            Expr::Lit(ExprLit {
                lit: Lit::Str(text),
                ..
            }) if pair.path.is_ident("path") => Some(text.value()),
            _ => None,
        }
    })?;
    Some(folder_of(&parent.file).join(text))
}

fn folder_of(file: &Path) -> PathBuf {
    file.parent().unwrap_or(Path::new("")).to_owned()
}

fn parse(file: &Path) -> io::Result<syn::File> {
    let text = fs::read_to_string(file)
        .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", file.display())))?;
    syn::parse_file(&text).map_err(|error| {
        let line = error.span().start().line;
        io::Error::other(format!("{}:{line}: {error}", file.display()))
    })
}

fn relative(root: &Path, file: &Path) -> String {
    let file = file.canonicalize().unwrap_or_else(|_| file.to_owned());
    let path = file.strip_prefix(root).unwrap_or(&file);
    path.to_string_lossy().replace('\\', "/")
}

#[cfg(test)]
impl Module {
    /// A module of a test's text.
    pub(crate) fn of_text(path: &str, text: &str) -> Self {
        Self {
            file: format!("src/{}.rs", if path.is_empty() { "lib" } else { path }),
            path: path
                .split('/')
                .filter(|name| !name.is_empty())
                .map(str::to_owned)
                .collect(),
            test: false,
            syntax: syn::parse_file(text).unwrap(),
        }
    }
}
