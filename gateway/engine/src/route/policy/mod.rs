//! Which backend of a pool takes the next request. One policy, one file.

mod least_loaded;

pub(super) use least_loaded::LeastLoaded;

use super::Backend;

/// Chooses among the backends of one pool.
pub trait Policy: std::fmt::Debug + Send + Sync {
    /// The index of the chosen backend among those that `eligible` accepts;
    /// nothing where it accepts none. `turn` counts up with every request, for
    /// those that go round.
    fn choose(
        &self,
        backends: &[Backend],
        eligible: &dyn Fn(usize) -> bool,
        turn: usize,
    ) -> Option<usize>;

    /// Its name in configuration and on `/health`.
    fn name(&self) -> &'static str;
}
