use std::any::Any;
use std::fmt;
use std::sync::{Arc, OnceLock};

/// What the shell keeps with a backend: put in once, before requests see it,
/// and found again without a look-up.
#[derive(Default)]
pub struct Slot(OnceLock<Arc<dyn Any + Send + Sync>>);

impl Slot {
    /// Puts something in, unless something is in already.
    pub fn fill<T: Any + Send + Sync>(&self, make: impl FnOnce() -> Arc<T>) {
        self.0.get_or_init(|| make());
    }

    /// What was put in, if it is of this type.
    pub fn get<T: Any + Send + Sync>(&self) -> Option<Arc<T>> {
        Arc::clone(self.0.get()?).downcast().ok()
    }
}

impl fmt::Debug for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slot").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::Slot;

    #[test]
    fn what_is_put_in_first_stays_and_has_its_type() {
        let slot = Slot::default();
        assert!(slot.get::<u8>().is_none());
        slot.fill(|| Arc::new(1_u8));
        slot.fill(|| Arc::new(2_u8));
        assert_eq!(slot.get::<u8>().as_deref(), Some(&1));
        assert!(slot.get::<u16>().is_none());
    }
}
