//! The controller: its triggers, and the reconciliation of one resource.

mod definition;
mod probes;
mod undecodable;
mod watches;

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use fastllm_crds::{ConditionType, FastllmProxy, Reason};
use fastllm_process::back_off::{self, BackOff, Jitter};
use futures_util::StreamExt as _;
use futures_util::stream::SelectAll;
use jiff::Timestamp;
use kube::runtime::controller::{Action, Config as Concurrency, applier};
use kube::runtime::events::{Recorder, Reporter};
use kube::runtime::reflector::{ObjectRef, Store};
use kube::{Client, Resource as _, ResourceExt as _};
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::apply::{self, ApiServer};
use crate::definition::DefinitionCheck;
use crate::error::{Chain, OperatorError};
use crate::events;
use crate::health::Liveness;
use crate::metrics::Metrics;
use crate::names::{Component, FIELD_MANAGER};
use crate::observe::{Caches, PlaneProbe, gather};
use crate::pacing::Pacer;
use crate::plan::{ApplyReason, Obstacle, Plan, Step, bootstrapped, plan};
use crate::problem::Problem;
use crate::status::{self, ReconcileOutcome};
use crate::stored::UndecodableProxies;

use probes::KnownReports;
use watches::{Trigger, Watches};

/// Maximum number of concurrent reconciliations.
const CONCURRENCY: u16 = 8;
/// Triggers within this time result in one reconciliation.
const DEBOUNCE: Duration = Duration::from_millis(50);
/// Time until the next reconciliation of a resource that is ready.
const REQUEUE_READY: Duration = Duration::from_mins(5);
/// Time until the next reconciliation of a resource that is not ready.
const REQUEUE: Duration = Duration::from_secs(15);
/// Time until the next reconciliation of a resource that waits for others.
const REQUEUE_QUEUED: Duration = Duration::from_secs(2);
/// Minimum and maximum of the back-off after a failed reconciliation.
const BACK_OFF: back_off::Config =
    back_off::Config::new(Duration::from_secs(1), Duration::from_mins(5))
        .with_jitter(Jitter { min: 0.8, max: 1.2 });

/// Configuration of a [`Controller`].
#[derive(Clone, Copy, Debug)]
pub struct Config<'a> {
    /// The only namespace to watch; `None` watches all of them.
    pub namespace: Option<&'a str>,
    /// Name of this replica in Events.
    pub instance: &'a str,
}

/// A controller that is ready to run.
pub struct Controller<P> {
    reconciler: Arc<Reconciler<P>>,
    triggers: SelectAll<Trigger>,
}

struct Reconciler<P> {
    caches: Arc<Caches>,
    undecodable: Arc<UndecodableProxies>,
    definition: Arc<DefinitionCheck>,
    reports: KnownReports,
    pacer: Pacer,
    health: Arc<Liveness>,
    api: ApiServer,
    probe: P,
    recorder: Recorder,
    metrics: Arc<Metrics>,
    /// Consecutive failures per resource; a success removes the entry.
    failures: Mutex<HashMap<ObjectRef<FastllmProxy>, BackOff>>,
}

/// A resource has to wait for the rollouts of others.
struct Queued;

/// The result of a reconciliation, which decides when the next one follows.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Requeue {
    /// The resource is ready.
    Ready,
    /// The resource is not ready yet.
    Waiting,
    /// The resource waits for the rollouts of others.
    Queued,
    /// A call failed and is retried after a back-off.
    Error,
}

impl Requeue {
    /// Value of the metric label `outcome`.
    fn outcome(self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::Waiting | Self::Queued => "waiting",
            Self::Error => "error",
        }
    }
}

impl<P: PlaneProbe> Controller<P> {
    /// Creates the watches and the reconciler.
    #[must_use]
    pub fn new(config: Config<'_>, client: &Client, probe: P, metrics: &Arc<Metrics>) -> Self {
        let Config {
            namespace,
            instance,
        } = config;
        let watches = Watches {
            client,
            namespace,
            metrics,
        };
        let undecodable = Arc::default();
        let (caches, mut triggers) = watches.start(&undecodable);
        let caches = Arc::new(caches);
        let reporter = Reporter {
            controller: FIELD_MANAGER.to_owned(),
            instance: Some(instance.to_owned()),
        };
        let reconciler = Reconciler {
            api: ApiServer::new(client.clone(), Arc::clone(&caches), Arc::clone(metrics)),
            caches,
            undecodable,
            definition: Arc::new(DefinitionCheck::new(client.clone(), Arc::clone(metrics))),
            reports: KnownReports::default(),
            pacer: Pacer::default(),
            health: Arc::default(),
            probe,
            recorder: Recorder::new(client.clone(), reporter),
            metrics: Arc::clone(metrics),
            failures: Mutex::default(),
        };
        let reconciler = Arc::new(reconciler);
        triggers.push(probes::changes(Arc::clone(&reconciler)));
        triggers.push(definition::changes(Arc::clone(&reconciler)));
        Self {
            reconciler,
            triggers,
        }
    }

    /// The check of the installed definition.
    #[must_use]
    pub fn definition(&self) -> Arc<DefinitionCheck> {
        Arc::clone(&self.reconciler.definition)
    }

    /// The controller's signs of life.
    #[must_use]
    pub fn health(&self) -> Arc<Liveness> {
        Arc::clone(&self.reconciler.health)
    }

    /// The cached resources.
    #[must_use]
    pub fn proxies(&self) -> Store<FastllmProxy> {
        self.reconciler.caches.proxies.store().clone()
    }

    /// Reconciles until the future is dropped. `on_synced` is called once the
    /// caches are filled.
    ///
    /// # Errors
    /// If the triggers end, which is unexpected.
    pub async fn run(self, on_synced: impl FnOnce() + Send) -> Result<(), OperatorError> {
        let Self {
            reconciler,
            triggers,
        } = self;
        let store = reconciler.caches.proxies.store().clone();
        let config = Concurrency::default()
            .concurrency(CONCURRENCY)
            .debounce(DEBOUNCE);
        let reports = Arc::clone(&reconciler);
        let reconciliations = applier(
            |proxy, reconciler: Arc<Reconciler<P>>| {
                Box::pin(async move { Ok::<_, Infallible>(reconciler.reconcile(&proxy).await) })
            },
            |_, error, _| match *error {},
            reconciler,
            store,
            triggers,
            config,
        );
        let reconciliations = reconciliations.for_each(|_| std::future::ready(()));
        let synced = async {
            wait_until_synced(&reports.caches).await;
            on_synced();
            reports.report_undecodable().await;
        };
        let health = Arc::clone(&reports.health);
        reports.definition.refresh().await;
        tokio::select! {
            () = reconciliations => {}
            () = synced => {}
            () = health.beat() => {}
        }
        Err(OperatorError::TaskEnded("the reconciler"))
    }
}

/// Waits until every cache is filled: before that, an existing object could be
/// taken for absent. A dropped writer ends the wait, too; the controller then
/// stops by itself.
async fn wait_until_synced(caches: &Caches) {
    let _ = caches.proxies.store().wait_until_ready().await;
    let _ = caches.deployments.store().wait_until_ready().await;
    let _ = caches.services.store().wait_until_ready().await;
    let _ = caches.accounts.store().wait_until_ready().await;
    let _ = caches.jobs.store().wait_until_ready().await;
    let _ = caches.pods.wait_until_ready().await;
    let _ = caches.endpoints.wait_until_ready().await;
    let _ = caches.autoscalers.wait_until_ready().await;
    let _ = caches.secrets.metadata().wait_until_ready().await;
}

impl<P: PlaneProbe> Reconciler<P> {
    /// Reconciles a resource and schedules its next reconciliation.
    async fn reconcile(&self, proxy: &FastllmProxy) -> Action {
        wait_until_synced(&self.caches).await;
        let _running = self.health.reconciliation();
        let started = Instant::now();
        let (namespace, name) = (proxy.namespace().unwrap_or_default(), proxy.name_any());
        // The watch may lag behind the status that was written last.
        let proxy = match self.caches.proxies.get(&namespace, &name) {
            Some(latest) if latest.uid() == proxy.uid() => latest,
            _ => Arc::new(proxy.clone()),
        };
        if proxy.metadata.deletion_timestamp.is_some() {
            return Action::await_change();
        }
        let requeue = self.reconcile_once(&proxy).await;
        self.metrics
            .record_reconcile(requeue.outcome(), started.elapsed());
        Action::requeue(self.requeue_delay(ObjectRef::from_obj(&proxy), requeue))
    }

    /// Observes, plans, applies, and reports in the status and in Events.
    async fn reconcile_once(&self, proxy: &FastllmProxy) -> Requeue {
        let namespace = proxy.namespace().unwrap_or_default();
        let job = Component::Bootstrap.object_name(&proxy.name_any());
        let job = self.caches.jobs.get(&namespace, &job);
        let bootstrapped = bootstrapped(proxy, job.as_deref());
        let mut observed = gather(&self.caches, &self.probe, proxy, bootstrapped).await;
        observed.missing_fields = self.definition.missing_fields();
        self.reports.record(proxy, &observed.reports);
        let mut plan = plan(proxy, &observed);
        let queued = self.pace(proxy, &mut plan).is_err();
        let applied = apply::execute(&self.api, proxy, &plan, &observed).await;
        for step in applied.done() {
            tracing::info!("{step}");
            self.record_rollouts(step);
        }
        let now = Timestamp::from_second(Timestamp::now().as_second()).unwrap_or_default();
        let status = status::build(ReconcileOutcome {
            proxy,
            observed: &observed,
            plan: &plan,
            applied: &applied,
            now,
        });
        let previous = proxy.status.clone().unwrap_or_default();
        let previous = previous.without_foreign_conditions();
        let mut failed = plan.problems.iter().any(Problem::is_unknown);
        if let Some(error) = applied.failure() {
            tracing::warn!(error = %Chain(error), "reconciliation failed");
            failed = true;
        }
        if status != previous {
            match self.api.write_status(proxy, &status).await {
                Ok(()) => {}
                Err(error) if error.is(404) => return Requeue::Waiting,
                // Includes a conflict: a new resource may have taken the name,
                // or another write came first. The next reconciliation sees which.
                Err(error) => {
                    tracing::warn!(error = %Chain(&error), "cannot write the status");
                    failed = true;
                }
            }
        }
        let events = events::events_for(&previous, &status, applied.done());
        events::publish(&self.recorder, &proxy.object_ref(&()), events).await;
        let ended = status.is_true(ConditionType::Ready) || status.is_true(ConditionType::Stalled);
        if ended && !queued {
            let namespace = proxy.namespace().unwrap_or_default();
            self.pacer.release(&namespace, &proxy.name_any());
        }
        if failed {
            Requeue::Error
        } else if queued {
            Requeue::Queued
        } else if status.is_true(ConditionType::Ready) {
            Requeue::Ready
        } else {
            Requeue::Waiting
        }
    }

    /// Removes the steps of a plan that have to wait for the rollouts of other
    /// resources.
    fn pace(&self, proxy: &FastllmProxy, plan: &mut Plan) -> Result<(), Queued> {
        let first = plan
            .steps
            .iter()
            .position(|s| s.changed_secrets().next().is_some());
        let Some(first) = first.filter(|_| !plan.paused) else {
            return Ok(());
        };
        let secrets: Vec<_> = plan.steps.iter().flat_map(Step::changed_secrets).collect();
        let namespace = proxy.namespace().unwrap_or_default();
        let admitted = self.pacer.admit(&namespace, &proxy.name_any(), &secrets);
        let Err(busy) = admitted else {
            return Ok(());
        };
        let message = busy.to_string();
        plan.steps.truncate(first);
        plan.obstacles.push(Obstacle {
            reason: Reason::RollingControlPlane,
            message,
        });
        Err(Queued)
    }

    fn record_rollouts(&self, step: &Step) {
        let Step::Apply {
            object,
            reason: ApplyReason::Rollout(reasons),
            ..
        } = step
        else {
            return;
        };
        for reason in reasons {
            self.metrics.record_rollout(
                object.component().map_or("", Component::container),
                reason.as_str(),
            );
        }
    }

    /// The time until the next reconciliation. After an error the back-off
    /// doubles, with 20 % jitter.
    fn requeue_delay(&self, proxy: ObjectRef<FastllmProxy>, requeue: Requeue) -> Duration {
        let mut failures = self.failures.lock();
        let fixed = match requeue {
            Requeue::Ready => Some(REQUEUE_READY),
            Requeue::Waiting => Some(REQUEUE),
            Requeue::Queued => Some(REQUEUE_QUEUED),
            Requeue::Error => None,
        };
        if let Some(fixed) = fixed {
            failures.remove(&proxy);
            return fixed;
        }
        let exists = |key: &ObjectRef<FastllmProxy>| self.caches.proxies.store().get(key).is_some();
        failures.retain(|key, _| exists(key));
        let back_off = failures.entry(proxy).or_insert(BACK_OFF.build());
        back_off.next_delay()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::BACK_OFF;

    #[test]
    fn the_back_off_grows_from_one_second_to_five_minutes() {
        let mut back_off = BACK_OFF.build();
        for seconds in [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300] {
            let (delay, full) = (back_off.next_delay(), Duration::from_secs(seconds));
            assert!(
                delay >= full.mul_f64(0.8) && delay <= full.mul_f64(1.2),
                "{delay:?}"
            );
        }
    }
}
