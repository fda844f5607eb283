//! Triggers for changes of what the planes' pods report about themselves.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use fastllm_crds::FastllmProxy;
use futures_util::{StreamExt as _, stream};
use kube::runtime::reflector::ObjectRef;
use parking_lot::Mutex;
use tokio::time::{MissedTickBehavior, interval};

use super::Reconciler;
use super::watches::Trigger;
use crate::observe::{PlaneProbe, PodReports};

/// Time between two reads of a pod.
const PERIOD: Duration = Duration::from_secs(3);
/// Maximum number of concurrent reads. A read of a pod that does not respond takes two
/// seconds.
const CONCURRENCY: usize = 64;

/// The reports in the status of each resource. Bounded by the number of resources.
#[derive(Default)]
pub(super) struct KnownReports(Mutex<HashMap<ObjectRef<FastllmProxy>, PodReports>>);

impl KnownReports {
    pub(super) fn record(&self, proxy: &FastllmProxy, reports: &PodReports) {
        let key = ObjectRef::from_obj(proxy);
        self.0.lock().insert(key, reports.clone());
    }

    /// Whether other reports are known. False for a resource without any.
    fn differ(&self, proxy: &ObjectRef<FastllmProxy>, reports: &PodReports) -> bool {
        let known = self.0.lock();
        known.get(proxy).is_some_and(|known| known != reports)
    }

    fn retain(&self, exists: impl Fn(&ObjectRef<FastllmProxy>) -> bool) {
        self.0.lock().retain(|proxy, _| exists(proxy));
    }
}

impl<P: PlaneProbe> Reconciler<P> {
    /// The resources whose pods report something else than their status.
    async fn with_other_reports(&self) -> Vec<ObjectRef<FastllmProxy>> {
        let proxies = self.caches.proxies.store();
        self.reports.retain(|proxy| proxies.get(proxy).is_some());
        let changed = stream::iter(proxies.state()).map(|proxy| async move {
            let reports = self.caches.reports(&proxy, &self.probe).await;
            let key = ObjectRef::from_obj(proxy.as_ref());
            self.reports.differ(&key, &reports).then_some(key)
        });
        let changed = changed.buffer_unordered(CONCURRENCY);
        changed.filter_map(std::future::ready).collect().await
    }
}

/// Triggers the resources whose pods report something else than before. The pods are
/// read, not the API server.
pub(super) fn changes<P: PlaneProbe>(reconciler: Arc<Reconciler<P>>) -> Trigger {
    let mut ticks = interval(PERIOD);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let batches = stream::unfold((reconciler, ticks), |(reconciler, mut ticks)| async move {
        ticks.tick().await;
        let changed = reconciler.with_other_reports().await;
        Some((
            stream::iter(changed.into_iter().map(Ok)),
            (reconciler, ticks),
        ))
    });
    batches.flatten().boxed()
}
