//! Leader election: a Lease that is valid for 15 s and renewed every 2 s.
//!
//! Whether another holder is alive is judged by how long the Lease has not
//! changed on the local monotonic clock; wall clocks of two machines are never
//! compared. A leader that could not renew for 10 s stops, 5 s before another
//! replica may take over.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::Client;
use kube::api::{Api, PostParams};
use ring::rand::{SecureRandom as _, SystemRandom};
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

use crate::error::{CallError, Chain, OperatorError, call};
use crate::metrics::Metrics;

/// Name of the Lease.
pub const LEASE_NAME: &str = "fastllm-operator-leader";
/// How long an unchanged Lease is valid.
pub const DURATION: Duration = Duration::from_secs(15);
/// How long a leader acts after its last renewal.
pub const RENEW_DEADLINE: Duration = Duration::from_secs(10);
/// Time between attempts.
pub const RETRY: Duration = Duration::from_secs(2);

/// What to do about a Lease.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum LeaseAction {
    /// Another replica holds it and is alive.
    Wait,
    /// It is free or expired.
    Acquire,
    /// This replica holds it.
    Renew,
}

/// The election rules, without clock and network.
#[derive(Debug)]
pub struct Election {
    identity: String,
    observed: Option<ObservedLease>,
}

/// A Lease of another replica.
#[derive(Debug)]
struct ObservedLease {
    record: LeaseRecord,
    /// When the record was first seen.
    since: Duration,
}

/// The fields that a renewal changes.
#[derive(Clone, Debug, Eq, PartialEq)]
struct LeaseRecord {
    holder: String,
    renewed: Option<MicroTime>,
    transitions: i32,
}

impl Election {
    /// Creates a candidate with a unique identity.
    #[must_use]
    pub fn new(identity: String) -> Self {
        Self {
            identity,
            observed: None,
        }
    }

    /// Decides what to do about the Lease. `now` is measured from a fixed instant.
    pub fn decide(&mut self, spec: &LeaseSpec, now: Duration) -> LeaseAction {
        let holder = spec.holder_identity.clone().unwrap_or_default();
        if holder.is_empty() {
            return LeaseAction::Acquire;
        }
        if holder == self.identity {
            return LeaseAction::Renew;
        }
        let record = LeaseRecord {
            holder,
            renewed: spec.renew_time.clone(),
            transitions: spec.lease_transitions.unwrap_or_default(),
        };
        match &self.observed {
            Some(observed) if observed.record == record => {
                if now.saturating_sub(observed.since) > DURATION {
                    LeaseAction::Acquire
                } else {
                    LeaseAction::Wait
                }
            }
            _ => {
                self.observed = Some(ObservedLease { record, since: now });
                LeaseAction::Wait
            }
        }
    }

    /// The specification of a Lease that this candidate acquires or renews.
    fn renewed_spec(&self, previous: Option<&LeaseSpec>, wall: Timestamp) -> LeaseSpec {
        let ours =
            previous.filter(|p| p.holder_identity.as_deref() == Some(self.identity.as_str()));
        let transitions = previous
            .and_then(|p| p.lease_transitions)
            .unwrap_or_default();
        LeaseSpec {
            holder_identity: Some(self.identity.clone()),
            lease_duration_seconds: i32::try_from(DURATION.as_secs()).ok(),
            acquire_time: ours.map_or(Some(MicroTime(wall)), |p| p.acquire_time.clone()),
            renew_time: Some(MicroTime(wall)),
            lease_transitions: Some(transitions + i32::from(ours.is_none() && previous.is_some())),
            ..LeaseSpec::default()
        }
    }
}

/// Configuration of a [`Candidate`].
#[derive(Clone, Copy, Debug)]
pub struct Config<'a> {
    /// Namespace of the Lease.
    pub namespace: &'a str,
    /// Name of this replica's pod.
    pub pod: &'a str,
}

/// A candidate, and after [`acquire`](Self::acquire) the leader.
pub struct Candidate {
    api: Api<Lease>,
    election: Election,
    epoch: Instant,
    /// When the last successful acquisition or renewal was sent. The response
    /// may have arrived much later, and other replicas count from the write.
    renewed: Instant,
    metrics: Arc<Metrics>,
}

impl Candidate {
    /// Creates a candidate. A random suffix distinguishes a restarted pod from
    /// its predecessor.
    #[must_use]
    pub fn new(config: Config<'_>, client: Client, metrics: Arc<Metrics>) -> Self {
        let Config { namespace, pod } = config;
        let mut suffix = [0; 4];
        // Without randomness a restarted pod waits until its own Lease expires.
        let _ = SystemRandom::new().fill(&mut suffix);
        Self {
            api: Api::namespaced(client, namespace),
            election: Election::new(format!("{pod}_{}", hex::encode(suffix))),
            epoch: Instant::now(),
            renewed: Instant::now(),
            metrics,
        }
    }

    /// Waits until this replica holds the Lease.
    pub async fn acquire(&mut self) {
        loop {
            let sent = Instant::now();
            match self.try_once().await {
                Ok(true) => {
                    self.renewed = sent;
                    break;
                }
                Ok(false) => {}
                Err(error) => {
                    tracing::warn!(error = %Chain(&error), "cannot acquire the lease");
                }
            }
            sleep(RETRY).await;
        }
        self.metrics.set_leader(true);
        tracing::info!("acquired the lease");
    }

    /// Renews the Lease until that fails for [`RENEW_DEADLINE`] or another
    /// replica holds it.
    pub async fn hold(&mut self) -> OperatorError {
        loop {
            let deadline = self.renewed + RENEW_DEADLINE;
            sleep_until(deadline.min(Instant::now() + RETRY)).await;
            let sent = Instant::now();
            match timeout_at(deadline, self.try_once()).await {
                Ok(Ok(true)) => self.renewed = sent,
                Ok(Ok(false)) => {
                    self.metrics.set_leader(false);
                    return OperatorError::LeadershipLost("another replica holds the lease");
                }
                Ok(Err(error)) => {
                    tracing::warn!(error = %Chain(&error), "cannot renew the lease");
                }
                Err(_) => {}
            }
            if self.renewed.elapsed() >= RENEW_DEADLINE {
                self.metrics.set_leader(false);
                return OperatorError::LeadershipLost(
                    "the lease could not be renewed for 10 seconds",
                );
            }
        }
    }

    /// Releases the Lease, so that another replica can acquire it immediately.
    pub async fn release(&mut self) {
        let Ok(Some(mut lease)) = call(self.api.get_opt(LEASE_NAME)).await else {
            return;
        };
        let spec = lease.spec.get_or_insert_default();
        if spec.holder_identity.as_deref() != Some(self.election.identity.as_str()) {
            return;
        }
        spec.holder_identity = Some(String::new());
        spec.lease_duration_seconds = Some(1);
        spec.renew_time = Some(MicroTime(Timestamp::now()));
        let written = call(self.api.replace(LEASE_NAME, &PostParams::default(), &lease)).await;
        if let Err(error) = written {
            tracing::warn!(error = %Chain(&error), "cannot release the lease");
        }
    }

    /// Tries once to acquire or renew the Lease. Returns whether this replica holds it.
    async fn try_once(&mut self) -> Result<bool, CallError> {
        let wall = Timestamp::now();
        let found = call(self.api.get_opt(LEASE_NAME)).await?;
        let Some(mut lease) = found else {
            let lease = Lease {
                metadata: ObjectMeta {
                    name: Some(LEASE_NAME.to_owned()),
                    ..ObjectMeta::default()
                },
                spec: Some(self.election.renewed_spec(None, wall)),
            };
            let created = call(self.api.create(&PostParams::default(), &lease)).await;
            return is_written(created);
        };
        let spec = lease.spec.clone().unwrap_or_default();
        if self.election.decide(&spec, self.epoch.elapsed()) == LeaseAction::Wait {
            return Ok(false);
        }
        // The resource version that was read makes this a compare-and-swap.
        lease.spec = Some(self.election.renewed_spec(Some(&spec), wall));
        is_written(call(self.api.replace(LEASE_NAME, &PostParams::default(), &lease)).await)
    }
}

/// Whether a write succeeded. A conflict with another replica is not an error.
fn is_written(written: Result<Lease, CallError>) -> Result<bool, CallError> {
    match written {
        Ok(_) => Ok(true),
        Err(error) if error.is(409) => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests;
