//! Holds what the compiler cannot: sizes of files, the arrows between crates,
//! words and shapes that the style bans. Run by `make check`.

mod arrows;
mod bans;
mod sizes;
mod tree;
mod versions;

pub use arrows::broken_arrows;
pub use bans::banned;
pub use sizes::oversized;
pub use tree::{Source, Tree};
pub use versions::stale_versions;

/// One broken rule, as `path:line: what is wrong`.
pub type Finding = String;
