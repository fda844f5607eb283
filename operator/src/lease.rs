//! Which replica acts: a Lease, held for 15 s and renewed every 2 s.
//!
//! Whether another holder is alive is judged by how long its record has not
//! changed on our own monotonic clock; two machines' wall clocks are never
//! compared. A holder that could not renew for 10 s stops by itself, 5 s
//! before anybody else may take over.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::Client;
use kube::api::{Api, PostParams};
use ring::rand::{SecureRandom as _, SystemRandom};
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

use crate::build::hex;
use crate::error::{CallError, OperatorError, call};
use crate::metrics::Metrics;

/// Name of the Lease.
pub const LEASE_NAME: &str = "fastllm-operator-leader";
/// How long a record is believed in.
pub const DURATION: Duration = Duration::from_secs(15);
/// How long a holder acts without having renewed.
pub const RENEW_DEADLINE: Duration = Duration::from_secs(10);
/// Time between tries.
pub const RETRY: Duration = Duration::from_secs(2);

/// What to do about a record.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Move {
    /// Somebody else holds it and is alive.
    Wait,
    /// It is free, or its holder is gone.
    Take,
    /// It is ours.
    Renew,
}

/// The rules, without a clock and without a network.
#[derive(Debug)]
pub struct Election {
    me: String,
    /// The record as first seen, and when that was.
    seen: Option<(Record, Duration)>,
}

#[derive(Clone, Debug, Eq, PartialEq)]
struct Record {
    holder: String,
    renewed: Option<MicroTime>,
    transitions: i32,
}

impl Election {
    /// A candidate of this name.
    #[must_use]
    pub fn new(me: String) -> Self {
        Self { me, seen: None }
    }

    /// What to do about the record, at a time since some fixed moment.
    pub fn look(&mut self, spec: &LeaseSpec, now: Duration) -> Move {
        let holder = spec.holder_identity.clone().unwrap_or_default();
        if holder.is_empty() {
            return Move::Take;
        }
        if holder == self.me {
            return Move::Renew;
        }
        let record = Record {
            holder,
            renewed: spec.renew_time.clone(),
            transitions: spec.lease_transitions.unwrap_or_default(),
        };
        match &self.seen {
            Some((seen, since)) if *seen == record => {
                if now.saturating_sub(*since) > DURATION {
                    Move::Take
                } else {
                    Move::Wait
                }
            }
            _ => {
                self.seen = Some((record, now));
                Move::Wait
            }
        }
    }

    fn record(&self, previous: Option<&LeaseSpec>, wall: Timestamp) -> LeaseSpec {
        let ours = previous.filter(|p| p.holder_identity.as_deref() == Some(self.me.as_str()));
        let transitions = previous
            .and_then(|p| p.lease_transitions)
            .unwrap_or_default();
        LeaseSpec {
            holder_identity: Some(self.me.clone()),
            lease_duration_seconds: i32::try_from(DURATION.as_secs()).ok(),
            acquire_time: ours.map_or(Some(MicroTime(wall)), |p| p.acquire_time.clone()),
            renew_time: Some(MicroTime(wall)),
            lease_transitions: Some(transitions + i32::from(ours.is_none() && previous.is_some())),
            ..LeaseSpec::default()
        }
    }
}

/// A candidate, and later the holder.
pub struct Candidate {
    api: Api<Lease>,
    election: Election,
    epoch: Instant,
    /// When the request was sent by which the Lease was last taken or renewed.
    /// Its answer may have come much later, and others count from the write.
    renewed: Instant,
    metrics: Arc<Metrics>,
}

impl Candidate {
    /// A candidate; a random suffix tells a restarted pod from its predecessor.
    #[must_use]
    pub fn new(client: Client, namespace: &str, pod: &str, metrics: Arc<Metrics>) -> Self {
        let mut suffix = [0; 4];
        // Without randomness a restarted pod waits for its own lease to run out.
        let _ = SystemRandom::new().fill(&mut suffix);
        Self {
            api: Api::namespaced(client, namespace),
            election: Election::new(format!("{pod}_{}", hex(&suffix))),
            epoch: Instant::now(),
            renewed: Instant::now(),
            metrics,
        }
    }

    /// Waits until the Lease is ours.
    pub async fn acquire(&mut self) {
        loop {
            let asked = Instant::now();
            match self.try_once().await {
                Ok(true) => {
                    self.renewed = asked;
                    break;
                }
                Ok(false) => {}
                Err(error) => tracing::warn!(%error, "the lease could not be looked at"),
            }
            sleep(RETRY).await;
        }
        self.metrics.set_leader(true);
        tracing::info!("leading");
    }

    /// Renews until that fails for too long or another holds the Lease.
    pub async fn hold(&mut self) -> OperatorError {
        loop {
            let deadline = self.renewed + RENEW_DEADLINE;
            sleep_until(deadline.min(Instant::now() + RETRY)).await;
            let asked = Instant::now();
            match timeout_at(deadline, self.try_once()).await {
                Ok(Ok(true)) => self.renewed = asked,
                Ok(Ok(false)) => {
                    self.metrics.set_leader(false);
                    return OperatorError::LeadershipLost("another replica holds the lease");
                }
                Ok(Err(error)) => tracing::warn!(%error, "the lease was not renewed"),
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

    /// Gives the Lease back, so that a successor need not wait.
    pub async fn release(&mut self) {
        let Ok(Some(mut lease)) = call(self.api.get_opt(LEASE_NAME)).await else {
            return;
        };
        let spec = lease.spec.get_or_insert_default();
        if spec.holder_identity.as_deref() != Some(self.election.me.as_str()) {
            return;
        }
        spec.holder_identity = Some(String::new());
        spec.lease_duration_seconds = Some(1);
        spec.renew_time = Some(MicroTime(Timestamp::now()));
        let written = call(self.api.replace(LEASE_NAME, &PostParams::default(), &lease)).await;
        if let Err(error) = written {
            tracing::warn!(%error, "the lease was not released");
        }
    }

    /// Whether the Lease is ours after one try.
    async fn try_once(&mut self) -> Result<bool, CallError> {
        let wall = Timestamp::now();
        let found = call(self.api.get_opt(LEASE_NAME)).await?;
        let Some(mut lease) = found else {
            let lease = Lease {
                metadata: ObjectMeta {
                    name: Some(LEASE_NAME.to_owned()),
                    ..ObjectMeta::default()
                },
                spec: Some(self.election.record(None, wall)),
            };
            let created = call(self.api.create(&PostParams::default(), &lease)).await;
            return won(created);
        };
        let spec = lease.spec.clone().unwrap_or_default();
        if self.election.look(&spec, self.epoch.elapsed()) == Move::Wait {
            return Ok(false);
        }
        // The resource version that was read makes this a compare-and-swap.
        lease.spec = Some(self.election.record(Some(&spec), wall));
        won(call(self.api.replace(LEASE_NAME, &PostParams::default(), &lease)).await)
    }
}

/// Whether a write went through; losing a race is no error.
fn won(written: Result<Lease, CallError>) -> Result<bool, CallError> {
    match written {
        Ok(_) => Ok(true),
        Err(error) if error.is(409) => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests;
