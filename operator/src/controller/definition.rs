//! Triggers for changes of the installed definition.

use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt as _, stream};
use kube::runtime::reflector::ObjectRef;
use tokio::time::sleep;

use super::Reconciler;
use super::watches::Trigger;
use crate::observe::PlaneProbe;

/// Time between two reads of the definition.
const PERIOD: Duration = Duration::from_secs(30);

/// Triggers all resources when the installed definition changed.
pub(super) fn changes<P: PlaneProbe>(reconciler: Arc<Reconciler<P>>) -> Trigger {
    let batches = stream::unfold(reconciler, |reconciler| async move {
        sleep(PERIOD).await;
        let affected = if reconciler.definition.refresh().await {
            reconciler.caches.proxies.store().state()
        } else {
            Vec::new()
        };
        let keys: Vec<_> = affected
            .iter()
            .map(|proxy| Ok(ObjectRef::from_obj(proxy.as_ref())))
            .collect();
        Some((stream::iter(keys), reconciler))
    });
    batches.flatten().boxed()
}
