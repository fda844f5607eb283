//! Triggers for changes of the models that gateways serve.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use fastllm_crds::FastllmProxy;
use futures_util::{StreamExt as _, stream};
use kube::ResourceExt as _;
use kube::runtime::reflector::ObjectRef;
use parking_lot::Mutex;
use tokio::time::{MissedTickBehavior, interval};

use super::Reconciler;
use super::watches::Trigger;
use crate::observe::{ModelsProbe, ReadOutcome};

/// Time between two reads of a gateway's models.
const PERIOD: Duration = Duration::from_secs(3);
/// Maximum number of concurrent reads. A read of a gateway that does not respond
/// takes two seconds.
const CONCURRENCY: usize = 64;

/// The models in the status of each resource. Bounded by the number of resources.
#[derive(Default)]
pub(super) struct ReportedModels(Mutex<HashMap<ObjectRef<FastllmProxy>, ReadOutcome<usize>>>);

impl ReportedModels {
    pub(super) fn record(&self, proxy: &FastllmProxy, models: &ReadOutcome<usize>) {
        let key = ObjectRef::from_obj(proxy);
        self.0.lock().insert(key, models.clone());
    }

    /// Whether other models are reported. False for a resource without a report.
    fn differ(&self, proxy: &ObjectRef<FastllmProxy>, models: &ReadOutcome<usize>) -> bool {
        let reported = self.0.lock();
        reported.get(proxy).is_some_and(|known| known != models)
    }

    fn retain(&self, exists: impl Fn(&ObjectRef<FastllmProxy>) -> bool) {
        self.0.lock().retain(|proxy, _| exists(proxy));
    }
}

impl<P: ModelsProbe> Reconciler<P> {
    /// The resources whose gateway serves other models than their status reports.
    async fn with_other_models(&self) -> Vec<ObjectRef<FastllmProxy>> {
        let proxies = self.caches.proxies.store();
        self.reported_models
            .retain(|proxy| proxies.get(proxy).is_some());
        let changed = stream::iter(proxies.state()).map(|proxy| async move {
            let namespace = proxy.namespace().unwrap_or_default();
            let gateway = self.caches.serving_gateway(&namespace, &proxy.name_any())?;
            let models = self.probe.models(&gateway).await;
            let key = ObjectRef::from_obj(proxy.as_ref());
            self.reported_models.differ(&key, &models).then_some(key)
        });
        let changed = changed.buffer_unordered(CONCURRENCY);
        changed.filter_map(std::future::ready).collect().await
    }
}

/// Triggers the resources whose gateway serves other models than before. The
/// gateways' status ports are read, not the API server.
pub(super) fn changes<P: ModelsProbe>(reconciler: Arc<Reconciler<P>>) -> Trigger {
    let mut ticks = interval(PERIOD);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let batches = stream::unfold((reconciler, ticks), |(reconciler, mut ticks)| async move {
        ticks.tick().await;
        let changed = reconciler.with_other_models().await;
        Some((
            stream::iter(changed.into_iter().map(Ok)),
            (reconciler, ticks),
        ))
    });
    batches.flatten().boxed()
}
