//! The loop: what triggers a pass, and the pass itself.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use fastllm_crds::{ConditionType, FastllmProxy};
use futures_util::stream::{self, BoxStream, SelectAll};
use futures_util::{Stream, StreamExt as _};
use jiff::Timestamp;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Pod, Secret, Service, ServiceAccount};
use kube::api::{Api, PartialObjectMeta};
use kube::runtime::controller::{Action, Config as Concurrency, applier};
use kube::runtime::events::{Recorder, Reporter};
use kube::runtime::reflector::{self, ObjectRef, Store, store::Writer};
use kube::runtime::watcher::{self, watcher};
use kube::runtime::{Predicate as _, PredicateConfig, WatchStreamExt as _, predicates};
use kube::{Client, Resource, ResourceExt as _};
use parking_lot::Mutex;
use ring::rand::{SecureRandom as _, SystemRandom};
use serde::de::DeserializeOwned;
use tokio::time::Instant;

use crate::apply::{self, ApiServer};
use crate::error::OperatorError;
use crate::events;
use crate::metrics::Metrics;
use crate::names::{Component, FIELD_MANAGER, INSTANCE, MANAGED_BY};
use crate::observe::{Caches, Latest, ModelsProbe, SecretReader, gather};
use crate::plan::{Problem, Step, Why, bootstrapped, plan};
use crate::secrets::needed;
use crate::status::{Pass, build};

/// Passes that may run at once.
const CONCURRENCY: u16 = 8;
/// Events that come close together make one pass.
const DEBOUNCE: Duration = Duration::from_millis(50);
/// A look at a resource that is as wanted.
const REQUEUE_READY: Duration = Duration::from_mins(5);
/// A look at a resource that is not.
const REQUEUE: Duration = Duration::from_secs(15);
/// Bounds of the wait after a pass that has to be repeated.
const BACKOFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_mins(5));

type Trigger = BoxStream<'static, Result<ObjectRef<FastllmProxy>, Infallible>>;

/// The controller, ready to run.
pub struct Controller<P> {
    shared: Arc<Shared<P>>,
    triggers: SelectAll<Trigger>,
}

struct Shared<P> {
    caches: Arc<Caches>,
    api: ApiServer,
    probe: P,
    recorder: Recorder,
    metrics: Arc<Metrics>,
    /// Passes in a row that have to be repeated, by resource; cleared by one that has not.
    failures: Mutex<HashMap<ObjectRef<FastllmProxy>, u32>>,
    random: SystemRandom,
}

impl<P: ModelsProbe> Controller<P> {
    /// Sets up the watches, of one namespace or of all.
    #[must_use]
    pub fn new(
        client: &Client,
        namespace: Option<&str>,
        instance: &str,
        probe: P,
        metrics: &Arc<Metrics>,
    ) -> Self {
        let watches = Watches {
            client,
            namespace,
            metrics,
        };
        let mut triggers = SelectAll::new();
        let (proxies, stream) = watches.resources();
        triggers.push(stream);
        let (deployments, stream) = watches.children::<Deployment>();
        triggers.push(stream);
        let (services, stream) = watches.children::<Service>();
        triggers.push(stream);
        let (accounts, stream) = watches.children::<ServiceAccount>();
        triggers.push(stream);
        let (jobs, stream) = watches.children::<Job>();
        triggers.push(stream);
        let (pods, stream) = watches.children::<Pod>();
        triggers.push(stream);
        let (secrets, stream) = watches.secrets(proxies.clone());
        triggers.push(stream);
        let caches = Arc::new(Caches {
            proxies: Latest::new(proxies),
            deployments: Latest::new(deployments),
            services: Latest::new(services),
            accounts: Latest::new(accounts),
            jobs: Latest::new(jobs),
            pods,
            secrets: SecretReader::new(client.clone(), secrets),
        });
        let reporter = Reporter {
            controller: FIELD_MANAGER.to_owned(),
            instance: Some(instance.to_owned()),
        };
        let shared = Shared {
            api: ApiServer::new(client.clone(), Arc::clone(&caches), Arc::clone(metrics)),
            caches,
            probe,
            recorder: Recorder::new(client.clone(), reporter),
            metrics: Arc::clone(metrics),
            failures: Mutex::default(),
            random: SystemRandom::new(),
        };
        Self {
            shared: Arc::new(shared),
            triggers,
        }
    }

    /// The resources, for counting them.
    #[must_use]
    pub fn proxies(&self) -> Store<FastllmProxy> {
        self.shared.caches.proxies.store().clone()
    }

    /// Makes passes until the future is dropped. `filled` is called once the
    /// caches hold what was there at the start.
    ///
    /// # Errors
    /// If the loop ends, which it should not.
    pub async fn run(self, filled: impl FnOnce() + Send) -> Result<(), OperatorError> {
        let Self { shared, triggers } = self;
        let store = shared.caches.proxies.store().clone();
        let config = Concurrency::default()
            .concurrency(CONCURRENCY)
            .debounce(DEBOUNCE);
        let caches = Arc::clone(&shared.caches);
        let passes = applier(
            |proxy, shared: Arc<Shared<P>>| {
                Box::pin(async move { Ok::<_, Infallible>(shared.reconcile(&proxy).await) })
            },
            // A pass tells its own wait; it never ends in an error.
            |_, error, _| match *error {},
            Arc::clone(&shared),
            store,
            triggers,
            config,
        );
        let passes = passes.for_each(|_| std::future::ready(()));
        let ready = async {
            all_filled(&caches).await;
            filled();
            std::future::pending::<()>().await;
        };
        tokio::select! {
            () = passes => {}
            () = ready => {}
        }
        Err(OperatorError::TaskEnded("the reconciler"))
    }
}

/// Waits until every cache holds what was there at the start: before that, an
/// object that exists could be taken for absent. A writer that is gone ends
/// the wait, too; the loop then ends by itself.
async fn all_filled(caches: &Caches) {
    let _ = caches.proxies.store().wait_until_ready().await;
    let _ = caches.deployments.store().wait_until_ready().await;
    let _ = caches.services.store().wait_until_ready().await;
    let _ = caches.accounts.store().wait_until_ready().await;
    let _ = caches.jobs.store().wait_until_ready().await;
    let _ = caches.pods.wait_until_ready().await;
    let _ = caches.secrets.metadata().wait_until_ready().await;
}

/// How watches are set up.
struct Watches<'a> {
    client: &'a Client,
    namespace: Option<&'a str>,
    metrics: &'a Arc<Metrics>,
}

impl Watches<'_> {
    fn api<K>(&self) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        match self.namespace {
            Some(namespace) => Api::namespaced(self.client.clone(), namespace),
            None => Api::all(self.client.clone()),
        }
    }

    fn of<K>(&self, writer: Writer<K>, config: watcher::Config) -> BoxStream<'static, K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + Clone
            + std::fmt::Debug
            + DeserializeOwned
            + Send
            + Sync
            + 'static,
    {
        // Nobody asks who owns which field, and it is half of an object.
        let events = watcher(self.api::<K>(), config)
            .modify(|object| object.meta_mut().managed_fields = None);
        self.touched(events.reflect(writer).default_backoff().touched_objects())
    }

    /// Objects, without the errors of a watch that is set up again.
    fn touched<K: Send + 'static>(
        &self,
        stream: impl Stream<Item = Result<K, watcher::Error>> + Send + 'static,
    ) -> BoxStream<'static, K> {
        let metrics = Arc::clone(self.metrics);
        let objects = stream.filter_map(move |item| {
            let item = item.inspect_err(|error| {
                metrics.watch_restarted();
                tracing::warn!(%error, "a watch broke off");
            });
            std::future::ready(item.ok())
        });
        objects.boxed()
    }

    /// The resources themselves. Their status is ours: were a pass triggered by
    /// the status that the last one wrote, an error whose words change from try
    /// to try would be tried again at once, for ever.
    fn resources(&self) -> (Store<FastllmProxy>, Trigger) {
        let (store, writer) = reflector::store::<FastllmProxy>();
        let events = watcher(self.api::<FastllmProxy>(), watcher::Config::default())
            .modify(|proxy: &mut FastllmProxy| proxy.metadata.managed_fields = None);
        let changed = events
            .reflect(writer)
            .default_backoff()
            .touched_objects()
            .predicate_filter(
                predicates::generation.combine(predicates::annotations),
                PredicateConfig::default(),
            );
        let stream = self.touched(changed);
        let stream = stream.map(|proxy| Ok(ObjectRef::from_obj(&proxy)));
        (store, stream.boxed())
    }

    /// What carries our label, by the label that names its resource.
    fn children<K>(&self) -> (Store<K>, Trigger)
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + Clone
            + std::fmt::Debug
            + DeserializeOwned
            + Send
            + Sync
            + 'static,
    {
        let (store, writer) = reflector::store::<K>();
        let ours = watcher::Config::default().labels(&format!("{MANAGED_BY}={FIELD_MANAGER}"));
        let stream = self.of(writer, ours).filter_map(|child| {
            let resource = child.labels().get(INSTANCE).map(|name| {
                Ok(ObjectRef::new(name).within(&child.namespace().unwrap_or_default()))
            });
            std::future::ready(resource)
        });
        (store, stream.boxed())
    }

    /// Metadata of Secrets, by the resources that reference them.
    fn secrets(&self, proxies: Store<FastllmProxy>) -> (Store<PartialObjectMeta<Secret>>, Trigger) {
        let (store, writer) = reflector::store::<PartialObjectMeta<Secret>>();
        let events = watcher(
            self.api::<PartialObjectMeta<Secret>>(),
            watcher::Config::default(),
        )
        .modify(|secret: &mut PartialObjectMeta<Secret>| {
            // Applied by kubectl, an annotation repeats the whole Secret.
            secret.metadata.managed_fields = None;
            secret.metadata.annotations = None;
            secret.metadata.labels = None;
        });
        let touched = self.touched(events.reflect(writer).default_backoff().touched_objects());
        let stream = touched.flat_map(move |secret| {
            let referencing = proxies.state_filter(|proxy| {
                proxy.namespace() == secret.namespace()
                    && needed(proxy, false)
                        .iter()
                        .any(|(_, r)| r.name == secret.name_any())
            });
            stream::iter(
                referencing
                    .into_iter()
                    .map(|proxy| Ok(ObjectRef::from_obj(proxy.as_ref()))),
            )
        });
        (store, stream.boxed())
    }
}

impl<P: ModelsProbe> Shared<P> {
    /// One pass, and when to look again.
    async fn reconcile(&self, proxy: &FastllmProxy) -> Action {
        all_filled(&self.caches).await;
        let started = Instant::now();
        let (namespace, name) = (proxy.namespace().unwrap_or_default(), proxy.name_any());
        // The cache may lag behind the status that the last pass wrote.
        let proxy = match self.caches.proxies.get(&namespace, &name) {
            Some(latest) if latest.uid() == proxy.uid() => latest,
            _ => Arc::new(proxy.clone()),
        };
        if proxy.metadata.deletion_timestamp.is_some() {
            return Action::await_change();
        }
        let outcome = self.pass(&proxy).await;
        let (word, wait) = match outcome {
            Ok(true) => ("ready", REQUEUE_READY),
            Ok(false) => ("waiting", REQUEUE),
            Err(()) => ("error", Duration::ZERO),
        };
        self.metrics.reconciled(word, started.elapsed());
        let wait = self.wait(ObjectRef::from_obj(&proxy), outcome.is_err(), wait);
        Action::requeue(wait)
    }

    /// Observe, plan, apply, tell. The answer is whether the resource is as
    /// wanted; an error is a pass that has to be repeated.
    async fn pass(&self, proxy: &FastllmProxy) -> Result<bool, ()> {
        let namespace = proxy.namespace().unwrap_or_default();
        let job = Component::Bootstrap.object_name(&proxy.name_any());
        let job = self.caches.jobs.get(&namespace, &job);
        let done = bootstrapped(proxy, job.as_deref());
        let observed = gather(&self.caches, &self.probe, proxy, done).await;
        let plan = plan(proxy, &observed);
        let applied = apply::run(&self.api, proxy, &plan, &observed).await;
        for step in applied.done() {
            tracing::info!("{step}");
            self.count(step);
        }
        let now = Timestamp::from_second(Timestamp::now().as_second()).unwrap_or_default();
        let pass = Pass {
            proxy,
            observed: &observed,
            plan: &plan,
            applied: &applied,
            now,
        };
        let status = build(pass);
        let previous = proxy.status.clone().unwrap_or_default();
        let mut failed = plan.problems.iter().any(Problem::is_unknown);
        if let Some(error) = applied.failure() {
            tracing::warn!(?error, "a step did not work");
            failed = true;
        }
        if status != previous {
            match self.api.write_status(proxy, &status).await {
                Ok(()) => {}
                Err(error) if error.is(404) => return Ok(false),
                // A conflict too: another resource may have taken the name, or
                // a write came between; the next pass sees which.
                Err(error) => {
                    tracing::warn!(%error, "the status was not written");
                    failed = true;
                }
            }
        }
        let told = events::tell(&previous, &status, applied.done());
        events::publish(&self.recorder, proxy, told).await;
        if failed {
            Err(())
        } else {
            Ok(status.is_true(ConditionType::Ready))
        }
    }

    fn count(&self, step: &Step) {
        let Step::Apply {
            object,
            why: Why::Roll(reasons),
            ..
        } = step
        else {
            return;
        };
        for reason in reasons {
            self.metrics.rolled(
                object.component().map_or("", Component::container),
                reason.word(),
            );
        }
    }

    /// The wait before the next look: after a failure twice as long as after
    /// the one before, give or take a fifth.
    fn wait(&self, proxy: ObjectRef<FastllmProxy>, failed: bool, otherwise: Duration) -> Duration {
        let mut failures = self.failures.lock();
        if !failed {
            failures.remove(&proxy);
            return otherwise;
        }
        let exists = |key: &ObjectRef<FastllmProxy>| self.caches.proxies.store().get(key).is_some();
        failures.retain(|key, _| exists(key));
        let count = failures.entry(proxy).or_default();
        let wait = backoff(*count);
        *count = count.saturating_add(1);
        let mut byte = [128];
        // Without randomness the wait is the middle one.
        let _ = self.random.fill(&mut byte);
        wait.mul_f64(0.8 + 0.4 * f64::from(byte[0]) / 255.0)
    }
}

fn backoff(failures: u32) -> Duration {
    let (first, longest) = BACKOFF;
    first.saturating_mul(1 << failures.min(16)).min(longest)
}

#[cfg(test)]
mod tests {
    use super::{BACKOFF, backoff};

    #[test]
    fn waits_grow_from_a_second_to_five_minutes() {
        assert_eq!(backoff(0), BACKOFF.0);
        assert_eq!(backoff(1), BACKOFF.0 * 2);
        assert_eq!(backoff(u32::MAX), BACKOFF.1);
    }
}
