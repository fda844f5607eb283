//! Limits on the number of resources that roll out changes of Secrets at once.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// Maximum number of resources that roll out the change of one Secret at once.
pub const MAX_CONCURRENT: usize = 2;

/// Maximum number of resources that roll out changes of any Secrets at once. Copies
/// of one Secret in several namespaces usually change at the same time.
pub const MAX_TOTAL: usize = 8;

/// How long a resource counts at most, so that one that never becomes ready does
/// not block the others.
pub const MAX_HOLD: Duration = Duration::from_mins(2);

/// The reason why a rollout has to wait.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum Busy {
    /// Too many resources roll out the change of this Secret.
    #[error("waiting for other resources that roll out the change of Secret {0:?}")]
    Secret(String),
    /// Too many resources roll out changes of Secrets.
    #[error("waiting for other resources that roll out changes of Secrets")]
    Total,
}

/// A Secret.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
struct SecretKey {
    namespace: String,
    name: String,
}

/// The resources that roll out the change of a Secret, by name, with their start.
type Rollouts = HashMap<SecretKey, BTreeMap<String, Instant>>;

/// Admits rollouts. Bounded by [`MAX_TOTAL`].
#[derive(Default)]
pub struct Pacer(Mutex<Rollouts>);

impl Pacer {
    /// Admits the rollout of a resource that is caused by changes of Secrets.
    ///
    /// # Errors
    /// If too many other resources roll out changes.
    pub fn admit(&self, namespace: &str, resource: &str, secrets: &[&str]) -> Result<(), Busy> {
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
                return Err(Busy::Secret((*secret).to_owned()));
            }
        }
        let started: HashSet<_> = rollouts
            .iter()
            .flat_map(|(secret, resources)| {
                let name = |resource| (secret.namespace.as_str(), resource);
                resources.keys().map(String::as_str).map(name)
            })
            .collect();
        if started.len() >= MAX_TOTAL && !started.contains(&(namespace, resource)) {
            return Err(Busy::Total);
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
        rollouts.retain(|secret, resources| {
            if secret.namespace == namespace {
                resources.remove(resource);
            }
            !resources.is_empty()
        });
    }
}

#[cfg(test)]
mod tests {
    use super::{Busy, MAX_HOLD, MAX_TOTAL, Pacer};

    fn busy(secret: &str) -> Result<(), Busy> {
        Err(Busy::Secret(secret.to_owned()))
    }

    #[tokio::test(start_paused = true)]
    async fn two_resources_roll_out_the_change_of_a_secret_at_once() {
        let pacer = Pacer::default();
        assert_eq!(pacer.admit("ns", "a", &["db"]), Ok(()));
        assert_eq!(pacer.admit("ns", "b", &["db", "token"]), Ok(()));
        assert_eq!(pacer.admit("ns", "c", &["token", "db"]), busy("db"));
        // The rejected resource does not count for its other Secret.
        assert_eq!(pacer.admit("ns", "d", &["token"]), Ok(()));
        assert_eq!(pacer.admit("ns", "a", &["db"]), Ok(()));
        assert_eq!(pacer.admit("other", "c", &["db"]), Ok(()));
        pacer.release("ns", "a");
        assert_eq!(pacer.admit("ns", "c", &["db"]), Ok(()));
        assert_eq!(pacer.admit("ns", "a", &["db"]), busy("db"));
    }

    #[tokio::test(start_paused = true)]
    async fn all_namespaces_together_have_a_limit() {
        let pacer = Pacer::default();
        for namespace in 0..MAX_TOTAL {
            let namespace = namespace.to_string();
            assert_eq!(pacer.admit(&namespace, "llm", &["db", "token"]), Ok(()));
        }
        assert_eq!(pacer.admit("other", "llm", &["db"]), Err(Busy::Total));
        assert_eq!(pacer.admit("0", "llm", &["db"]), Ok(()));
        pacer.release("0", "llm");
        assert_eq!(pacer.admit("other", "llm", &["db"]), Ok(()));
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
        assert_eq!(pacer.admit("ns", "c", &["db"]), busy("db"));
        tokio::time::advance(MAX_HOLD / 2).await;
        assert_eq!(pacer.admit("ns", "c", &["db"]), Ok(()));
    }
}
