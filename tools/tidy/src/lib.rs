//! Rules that the compiler cannot check: sizes of files, dependencies of crates
//! and imports of modules, names, words and shapes of code. Run by `make check`.

mod allow_list;
mod bans;
mod dependencies;
mod history;
mod krate;
mod modules;
mod names;
mod paths;
mod shapes;
mod sizes;
mod tree;
mod versions;
mod words;

pub use bans::banned;
pub use dependencies::forbidden_dependencies;
use dependencies::members;
pub use history::long_subjects;
pub use modules::{list_modules, module_cycles};
pub use names::ambiguous_names;
pub use paths::missing_paths;
pub use shapes::banned_shapes;
pub use sizes::oversized;
pub use tree::{Source, Tree};
pub use versions::stale_versions;
pub use words::{list_words, replaced_words};

/// One broken rule, as `path:line: what is wrong`.
pub type Finding = String;
