//! A limit on the number of resources that roll out the change of one Secret at once.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// Maximum number of resources that roll out the change of one Secret at once.
pub const MAX_CONCURRENT: usize = 2;

/// How long a resource counts at most, so that one that never becomes ready does
/// not block the others.
pub const MAX_HOLD: Duration = Duration::from_mins(2);

/// A Secret.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
struct SecretKey {
    namespace: String,
    name: String,
}

/// The resources that roll out the change of a Secret, by name, with their start.
type Rollouts = HashMap<SecretKey, BTreeMap<String, Instant>>;

/// Admits rollouts. Bounded by the limit for each Secret and by [`MAX_HOLD`].
#[derive(Default)]
pub struct Pacer(Mutex<Rollouts>);

impl Pacer {
    /// Admits the rollout of a resource that is caused by changes of Secrets.
    ///
    /// # Errors
    /// The name of a Secret whose change too many other resources roll out.
    pub fn admit<'s>(
        &self,
        namespace: &str,
        resource: &str,
        secrets: &[&'s str],
    ) -> Result<(), &'s str> {
        let mut rollouts = self.0.lock();
        let now = Instant::now();
        for resources in rollouts.values_mut() {
            resources.retain(|_, since| now.duration_since(*since) < MAX_HOLD);
        }
        rollouts.retain(|_, resources| !resources.is_empty());
        let key = |name: &str| SecretKey {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        };
        for secret in secrets {
            if let Some(resources) = rollouts.get(&key(secret))
                && !resources.contains_key(resource)
                && resources.len() >= MAX_CONCURRENT
            {
                return Err(secret);
            }
        }
        for secret in secrets {
            let resources = rollouts.entry(key(secret)).or_default();
            resources.entry(resource.to_owned()).or_insert(now);
        }
        Ok(())
    }

    /// Records that no rollout of a resource is in progress.
    pub fn release(&self, namespace: &str, resource: &str) {
        let mut rollouts = self.0.lock();
        for (secret, resources) in rollouts.iter_mut() {
            if secret.namespace == namespace {
                resources.remove(resource);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{MAX_HOLD, Pacer};

    #[tokio::test(start_paused = true)]
    async fn two_resources_roll_out_the_change_of_a_secret_at_once() {
        let pacer = Pacer::default();
        assert_eq!(pacer.admit("ns", "a", &["db"]), Ok(()));
        assert_eq!(pacer.admit("ns", "b", &["db", "token"]), Ok(()));
        assert_eq!(pacer.admit("ns", "c", &["token", "db"]), Err("db"));
        // The rejected resource does not count for its other Secret.
        assert_eq!(pacer.admit("ns", "d", &["token"]), Ok(()));
        assert_eq!(pacer.admit("ns", "a", &["db"]), Ok(()));
        assert_eq!(pacer.admit("other", "c", &["db"]), Ok(()));
        pacer.release("ns", "a");
        assert_eq!(pacer.admit("ns", "c", &["db"]), Ok(()));
        assert_eq!(pacer.admit("ns", "a", &["db"]), Err("db"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_rollout_that_does_not_end_blocks_the_others_for_a_limited_time() {
        let pacer = Pacer::default();
        for resource in ["a", "b"] {
            assert_eq!(pacer.admit("ns", resource, &["db"]), Ok(()));
        }
        tokio::time::advance(MAX_HOLD / 2).await;
        // Another admission does not extend the time.
        assert_eq!(pacer.admit("ns", "a", &["db"]), Ok(()));
        assert_eq!(pacer.admit("ns", "c", &["db"]), Err("db"));
        tokio::time::advance(MAX_HOLD / 2).await;
        assert_eq!(pacer.admit("ns", "c", &["db"]), Ok(()));
    }
}
