use std::any::Any;
use std::fmt;
use std::sync::{Arc, OnceLock};

/// Data that the gateway attaches to a backend once, before requests see it, so
/// that the request path needs no lookup.
#[derive(Default)]
pub struct Extension(OnceLock<Arc<dyn Any + Send + Sync>>);

impl Extension {
    /// Stores a value, unless one is stored.
    pub fn fill<T: Any + Send + Sync>(&self, make: impl FnOnce() -> Arc<T>) {
        self.0.get_or_init(|| make());
    }

    /// The stored value, if it has this type.
    pub fn get<T: Any + Send + Sync>(&self) -> Option<Arc<T>> {
        Arc::clone(self.0.get()?).downcast().ok()
    }
}

impl fmt::Debug for Extension {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Extension").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::Extension;

    #[test]
    fn first_value_stays_and_is_typed() {
        let slot = Extension::default();
        assert!(slot.get::<u8>().is_none());
        slot.fill(|| Arc::new(1_u8));
        slot.fill(|| Arc::new(2_u8));
        assert_eq!(slot.get::<u8>().as_deref(), Some(&1));
        assert!(slot.get::<u16>().is_none());
    }
}
